"""``switchgear export gateway-api``: policies as Gateway API and Envoy Gateway objects, with a loss report."""

import click
from pydantic import TypeAdapter, ValidationError

from istio.fidelity import ExportResult
from istio.gateway_api.gateway_export import ALWAYS_LOST, export_to_gateway_api
from istio.gateway_api.gateway_objects import GatewayTarget
from istio.loss_report import ExportOptions, export, export_options
from policies.model import PolicySet
from policies.quantity import Name

_NAMES: TypeAdapter[str] = TypeAdapter(Name)
_POOL = "{pool}"


def _gateway(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, str]:
    """Namespace (may be empty) and name."""
    namespace, _, name = text.rpartition("/")
    try:
        _NAMES.validate_python(name)
        if "/" in text:
            _NAMES.validate_python(namespace)
    except ValidationError:
        raise click.BadParameter(f"{text!r} is invalid: write NAMESPACE/NAME") from None
    return namespace, name


def _picker(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, int]:
    """Template of the Service name, and port."""
    name, _, port = text.partition(":")
    try:
        _NAMES.validate_python(name.replace(_POOL, "pool"))
        number = int(port or "9002")
    except ValueError:
        number = 0
    if not 1 <= number <= 65535:
        raise click.BadParameter(f"{text!r} is invalid: write e.g. {_POOL}-epp:9002")
    return name, number


@click.command(name="gateway-api")
@export_options
@click.option(
    "--gateway",
    callback=_gateway,
    default="switchgear",
    show_default=True,
    metavar="[NAMESPACE/]NAME",
    help="Existing Gateway to attach the routes to.",
)
@click.option(
    "--endpoint-picker",
    callback=_picker,
    default=f"{_POOL}-epp:9002",
    show_default=True,
    metavar="NAME:PORT",
    help="Service of each InferencePool's endpoint picker.",
)
@click.option(
    "--proxies",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of proxies that share admission limits and retry budgets.",
)
@click.option(
    "--plain",
    is_flag=True,
    help="Write no Envoy Gateway objects.",
)
@click.option(
    "--channel",
    type=click.Choice(["standard", "experimental"]),
    default="standard",
    show_default=True,
    help="Channel of the cluster's Gateway API CRDs: with --plain, retries need the experimental one.",
)
def command(
    *,
    options: ExportOptions,
    gateway: tuple[str, str],
    endpoint_picker: tuple[str, int],
    proxies: int,
    plain: bool,
    channel: str,
) -> int:
    """Convert policies to Gateway API and Envoy Gateway objects, and report the fate of every field.

    Exit code: 0, or 1 for invalid policies, a route that cannot be exported, or --fail-on, or 2 for a usage error.
    """
    site = GatewayTarget(
        namespace=options.namespace,
        gateway=gateway[1],
        gateway_namespace=gateway[0] or options.namespace,
        picker=endpoint_picker[0],
        picker_port=endpoint_picker[1],
        proxies=proxies,
        plain=plain,
        experimental=channel == "experimental",
    )

    def objects(policies: PolicySet) -> ExportResult:
        return export_to_gateway_api(policies, site)

    return export(options, objects, ALWAYS_LOST)
