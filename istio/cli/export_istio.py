"""``switchgear export istio``: policies as Istio objects, with a loss report."""

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
    """Callback that accepts empty text or a match of the pattern."""

    def checked(_context: click.Context, _option: click.Parameter, text: str) -> str:
        if text and (not pattern.fullmatch(text) or len(text) > 253):
            raise click.BadParameter(f"{text!r} is invalid: write {form}")
        return text

    return checked


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
    help="Print the fate of each field (Markdown), and exit.",
)
@click.option(
    "--gateway",
    callback=_matching(_GATEWAY, "NAMESPACE/NAME"),
    default="",
    metavar="NAMESPACE/NAME",
    help="Istio Gateway of the requests; sidecars when absent.",
)
@click.option(
    "--host",
    callback=_matching(_HOST, "models.example.com"),
    default="",
    help="Host of the requests. [default: one service per port; any host with --gateway]",
)
@click.option(
    "--filter-namespace",
    callback=_matching(_NAMESPACE, "istio-system"),
    default="istio-system",
    show_default=True,
    help="Namespace of EnvoyFilters; those in the root namespace apply to every proxy.",
)
@click.option(
    "--proxies",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of proxies that share admission limits and retry budgets.",
)
@click.option("--telemetry/--no-telemetry", default=True, show_default=True, help="Write Telemetry objects.")
@click.option(
    "--live",
    is_flag=True,
    help="Send requests only to engines that `switchgear istio run` labels as serving; start that first.",
)
@click.option(
    "--abort",
    "aborts",
    multiple=True,
    metavar="ROUTE=STATUS@PERCENT",
    help="Inject a fault: answer this share of a ModelRoute's requests with STATUS.",
)
@click.option(
    "--delay",
    "delays",
    multiple=True,
    metavar="ROUTE=DURATION@PERCENT",
    help="Inject a fault: delay this share of a ModelRoute's requests.",
)
def command(
    *,
    options: ExportOptions,
    aborts: tuple[str, ...],
    delays: tuple[str, ...],
    **mesh: Unpack[_MeshOptions],
) -> int:
    """Convert policies to Istio objects, and report the fate of every field.

    Exit code: 0, or 1 for invalid policies or --fail-on, or 2 for a usage error.
    """
    place = IstioTarget(namespace=options.namespace, host_suffix=options.host_suffix, **mesh)
    faults = _faults(aborts, delays)

    def objects(policies: PolicySet) -> ExportResult:
        if unknown := sorted(faults.keys() - policies.routes.keys()):
            raise click.UsageError(f"--abort, --delay: unknown ModelRoute {', '.join(unknown)}")
        return export_to_istio(policies, place, faults)

    return export(options, objects, ALWAYS_LOST)


def _faults(aborts: tuple[str, ...], delays: tuple[str, ...]) -> Mapping[str, Object]:
    """``fault`` of a VirtualService by the name of the ModelRoute."""
    faults: dict[str, Object] = {}
    for text in aborts:
        route, status, percent = _fault(text, "--abort", "ROUTE=STATUS@PERCENT")
        if not re.fullmatch("[2-5][0-9]{2}", status):
            raise click.BadParameter(f"{status!r} is not an HTTP status", param_hint="--abort")
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
        raise click.BadParameter(
            f"{text!r} is invalid: write {form}, with PERCENT above 0 and at most 100", param_hint=option
        )
    return found[1], found[2], percent
