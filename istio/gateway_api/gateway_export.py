"""Everything that is exported to the Gateway API, in the order in which it should be applied."""

from typing import Final

from istio.export.istio_export import ceilings
from istio.export.istio_objects import Object
from istio.fidelity import ExportResult
from istio.gateway_api.backend_tls import backend_tls
from istio.gateway_api.backends import backends, reference_grant
from istio.gateway_api.envoy_gateway_policies import backend_traffic_policy, client_traffic_policy
from istio.gateway_api.gateway_fields import gateway_field_fidelities
from istio.gateway_api.gateway_objects import GatewayTarget
from istio.gateway_api.http_routes import HttpRouteExport, http_route
from policies.model import PolicySet
from xds_server.model.fleet import declared

ALWAYS_LOST: Final = (
    "Always lost, because a gateway has no view of the whole fleet:",
    "- Verdicts: no probe asks for a token; an endpoint picker sees queues and caches, but no hangs.",
    "- Admission limits are fixed and do not follow engines. Export again when the fleet changes.",
    "- Each route has its own clusters, with separate limits, budgets and ejections of a pool.",
    "- Retry budgets and admission limits apply per proxy. --proxies divides them evenly, once.",
    "- Degradation levels, `why`, the ledger and shadow mode.",
)
"""What no export can keep, in sentences for the report."""


def export_to_gateway_api(policies: PolicySet, site: GatewayTarget) -> ExportResult:
    """The policies as objects of the Gateway API and Envoy Gateway, and the fate of every field."""
    pools = {name: backends(name, policies, site) for name in policies.pools}
    tried = {name: http_route(route, policies, site, pools) for name, route in policies.routes.items()}
    routes = tuple(one for one in tried.values() if isinstance(one, HttpRouteExport))
    objects: list[Object] = [one for name in policies.pools for one in pools[name].objects]
    # Before routes: a backend that is not known to speak TLS is asked in plain text.
    objects += (one for name, found in pools.items() for one in backend_tls(name, found.of, policies))
    objects += _grants(routes, policies, site)
    objects += (one.made for one in routes)
    if not site.plain and routes:
        limits = ceilings(policies, declared(policies), site.istio_target)
        objects += (
            backend_traffic_policy(one, limits.get(one.route.spec.pools[0].pool), policies) for one in routes
        )
        objects.append(client_traffic_policy(routes, policies, site))
    left_out = {name: str(one) for name, one in tried.items() if not isinstance(one, HttpRouteExport)}
    return ExportResult(
        objects=tuple(objects),
        fields=gateway_field_fidelities(policies, site, left_out, pools),
        left_out={f"ModelRoute/{name}": reason for name, reason in left_out.items()},
    )


def _grants(routes: tuple[HttpRouteExport, ...], policies: PolicySet, site: GatewayTarget) -> list[Object]:
    """ReferenceGrants for routes into other namespaces, without duplicates."""
    granted: dict[tuple[str, str], Object] = {}
    for one in routes:
        namespace = site.of(one.route.metadata)
        for backend in one.backends:
            if backend.namespace != namespace:
                found = reference_grant(backend, namespace, policies, [f"ModelRoute/{one.route.metadata.name}"])
                metadata = found["metadata"]
                name = str(metadata["name"]) if isinstance(metadata, dict) else ""
                granted.setdefault((backend.namespace, name), found)
    return [granted[key] for key in sorted(granted)]
