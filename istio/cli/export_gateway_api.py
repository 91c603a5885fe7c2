"""``switchgear export gateway-api``: the policies as HTTPRoutes and Envoy Gateway's policies, and what is lost."""

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
    """Namespace, empty where it is not said, and name."""
    namespace, _, name = text.rpartition("/")
    try:
        _NAMES.validate_python(name)
        if "/" in text:
            _NAMES.validate_python(namespace)
    except ValidationError:
        raise click.BadParameter(f"{text!r} is not of the form NAMESPACE/NAME") from None
    return namespace, name


def _picker(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, int]:
    """The form of a Service's name, and its port."""
    name, _, port = text.partition(":")
    try:
        _NAMES.validate_python(name.replace(_POOL, "pool"))
        number = int(port or "9002")
    except ValueError:
        number = 0
    if not 1 <= number <= 65535:
        raise click.BadParameter(f"{text!r} is not of the form {_POOL}-epp:9002")
    return name, number


@click.command(name="gateway-api")
@export_options
@click.option(
    "--gateway",
    callback=_gateway,
    default="switchgear",
    show_default=True,
    metavar="[NAMESPACE/]NAME",
    help="Gateway that routes are attached to; it has to be there.",
)
@click.option(
    "--endpoint-picker",
    callback=_picker,
    default=f"{_POOL}-epp:9002",
    show_default=True,
    metavar="NAME:PORT",
    help="Service of the endpoint picker that each InferencePool needs.",
)
@click.option(
    "--proxies",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Proxies that share the ceilings and retry budgets.",
)
@click.option(
    "--plain",
    is_flag=True,
    help="Nothing of Envoy Gateway's; retries are then said by HTTPRoute.retry, which older releases of the "
    "Gateway API have in their experimental channel only.",
)
def command(
    *,
    options: ExportOptions,
    gateway: tuple[str, str],
    endpoint_picker: tuple[str, int],
    proxies: int,
    plain: bool,
) -> int:
    """Write the policies as objects of the Gateway API and Envoy Gateway, and say what became of every field.

    Exits 0, 1 when the policies have problems or --fail-on finds something, 2 when asked wrongly.
    """
    site = GatewayTarget(
        namespace=options.namespace,
        gateway=gateway[1],
        gateway_namespace=gateway[0] or options.namespace,
        picker=endpoint_picker[0],
        picker_port=endpoint_picker[1],
        proxies=proxies,
        plain=plain,
    )

    def objects(policies: PolicySet) -> ExportResult:
        return export_to_gateway_api(policies, site)

    return export(options, objects, ALWAYS_LOST)
