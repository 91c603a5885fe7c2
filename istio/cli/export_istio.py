"""``switchgear export istio``: the policies as Istio's objects, and what is lost of them."""

import re
from collections.abc import Callable, Mapping
from typing import Final, TypedDict, Unpack

import click

from istio.export.fidelity_tables import fidelity_tables
from istio.export.istio_export import ALWAYS_LOST, export_to_istio
from istio.export.istio_objects import IstioTarget, Object, istio_duration
from istio.fidelity import ExportResult
from istio.loss_report import ExportOptions, export, export_options
from policies.model import PolicySet
from policies.quantity import parse_duration

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_GATEWAY: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_HOST: Final = re.compile(r"(\*|(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)")
_FAULT: Final = re.compile(r"([^=]+)=([^@]+)@([0-9.]+)%?")


def _matching(pattern: re.Pattern[str], form: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """A check of an option: empty, or as the pattern says."""

    def judged(_context: click.Context, _option: click.Parameter, text: str) -> str:
        if text and (not pattern.fullmatch(text) or len(text) > 253):
            raise click.BadParameter(f"{text!r} is not of the form {form}")
        return text

    return judged


def _table(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(fidelity_tables(), nl=False)
        ctx.exit(0)


class _MeshOptions(TypedDict):
    """The options that describe the mesh, named as the fields of ``IstioTarget``."""

    gateway: str
    host: str
    filter_namespace: str
    proxies: int
    telemetry: bool
    live: bool


@click.command(name="istio")
@export_options
@click.option(
    "--table",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_table,
    help="Print what becomes of each field (Markdown), and exit.",
)
@click.option(
    "--gateway",
    callback=_matching(_GATEWAY, "NAMESPACE/NAME"),
    default="",
    metavar="NAMESPACE/NAME",
    help="Istio Gateway that requests come through; from sidecars when absent.",
)
@click.option(
    "--host",
    callback=_matching(_HOST, "models.example.com"),
    default="",
    help="Host that callers ask for; a service of its own for each port when absent, any with --gateway.",
)
@click.option(
    "--filter-namespace",
    callback=_matching(_NAMESPACE, "istio-system"),
    default="istio-system",
    show_default=True,
    help="Namespace of EnvoyFilters; in the mesh's root namespace they reach every proxy.",
)
@click.option(
    "--proxies",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Proxies that share the ceilings and retry budgets.",
)
@click.option(
    "--telemetry/--no-telemetry", default=True, show_default=True, help="Whether to write Telemetry objects."
)
@click.option(
    "--live",
    is_flag=True,
    help="Send requests only to engines that `switchgear istio run` says are in; have that run first.",
)
@click.option(
    "--abort",
    "aborts",
    multiple=True,
    metavar="ROUTE=STATUS@PERCENT",
    help="A fault to rehearse: answer this share of a ModelRoute's requests with a status.",
)
@click.option(
    "--delay",
    "delays",
    multiple=True,
    metavar="ROUTE=DURATION@PERCENT",
    help="A fault to rehearse: hold this share of a ModelRoute's requests back for so long.",
)
def command(
    *,
    options: ExportOptions,
    aborts: tuple[str, ...],
    delays: tuple[str, ...],
    **mesh: Unpack[_MeshOptions],
) -> int:
    """Write the policies as Istio's objects, and say of every field what became of it.

    Exits 0, 1 when the policies have problems or --fail-on finds something, 2 when asked wrongly.
    """
    place = IstioTarget(namespace=options.namespace, host_suffix=options.host_suffix, **mesh)
    faults = _faults(aborts, delays)

    def objects(policies: PolicySet) -> ExportResult:
        if unknown := sorted(faults.keys() - policies.routes.keys()):
            raise click.UsageError(f"there is no ModelRoute {', '.join(unknown)} to give a fault to")
        return export_to_istio(policies, place, faults)

    return export(options, objects, ALWAYS_LOST)


def _faults(aborts: tuple[str, ...], delays: tuple[str, ...]) -> Mapping[str, Object]:
    """``fault`` of a VirtualService by the name of the ModelRoute."""
    faults: dict[str, Object] = {}
    for text in aborts:
        route, status, percent = _fault(text, "--abort", "ROUTE=STATUS@PERCENT")
        if not re.fullmatch("[2-5][0-9]{2}", status):
            raise click.BadParameter(f"{status!r} is no HTTP status", param_hint="--abort")
        abort = {"httpStatus": int(status), "percentage": {"value": percent}}
        faults[route] = {**faults.get(route, {}), "abort": abort}
    for text in delays:
        route, lasting, percent = _fault(text, "--delay", "ROUTE=DURATION@PERCENT")
        try:
            seconds = parse_duration(lasting)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--delay") from None
        delay = {"fixedDelay": istio_duration(seconds), "percentage": {"value": percent}}
        faults[route] = {**faults.get(route, {}), "delay": delay}
    return faults


def _fault(text: str, option: str, form: str) -> tuple[str, str, float]:
    found = _FAULT.fullmatch(text)
    try:
        percent = float(found[3]) if found else -1.0
    except ValueError:
        percent = -1.0
    if found is None or not 0 < percent <= 100:
        raise click.BadParameter(f"{text!r} is not of the form {form}, of at most 100 percent", param_hint=option)
    return found[1], found[2], percent
