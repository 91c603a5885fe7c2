"""Everything that is exported to the Gateway API, in the order in which it should be applied."""

from typing import Final

from istio.export.export import ceilings
from istio.export.place import Object
from istio.gateway_api.backend_tls import backend_tls
from istio.gateway_api.backends import backends, grant
from istio.gateway_api.fates import fates
from istio.gateway_api.routes import Exportable, http_route
from istio.gateway_api.site import Site
from istio.gateway_api.traffic import backend_policy, client_policy
from istio.loss import Exported
from policies.model import PolicySet
from xds_server.fleet import declared

BY_NATURE: Final = (
    "Lost whatever the policies say, because a gateway has nobody who looks at the fleet as a whole:",
    "- Verdicts: nobody asks an engine for a token; an endpoint picker sees queues and caches, and no hangs.",
    "- The ceiling follows no engine that leaves, comes or slows down. Export again when the fleet is another.",
    "- Each route has clusters of its own: ceilings, budgets and ejections of a pool are counted once for each.",
    "- Budgets and ceilings are each proxy's own. --proxies divides them evenly, once.",
    "- The ladder of degradation, `why`, the ledger and shadow mode.",
)
"""What no export can keep, in sentences for the report."""


def exported(policies: PolicySet, site: Site) -> Exported:
    """The policies as objects of the Gateway API and Envoy Gateway, and the fate of every field."""
    pools = {name: backends(name, policies, site) for name in policies.pools}
    tried = {name: http_route(route, policies, site, pools) for name, route in policies.routes.items()}
    routes = tuple(one for one in tried.values() if isinstance(one, Exportable))
    objects: list[Object] = [one for name in policies.pools for one in pools[name].objects]
    # Before routes: a backend that is not known to speak TLS is asked in plain text.
    objects += (one for name, found in pools.items() for one in backend_tls(name, found.of, policies))
    objects += _grants(routes, policies, site)
    objects += (one.made for one in routes)
    if not site.plain and routes:
        limits = ceilings(policies, declared(policies), site.place)
        objects += (backend_policy(one, limits.get(one.route.spec.pools[0].pool), policies) for one in routes)
        objects.append(client_policy(routes, policies, site))
    left_out = {name: str(one) for name, one in tried.items() if not isinstance(one, Exportable)}
    return Exported(objects=tuple(objects), fates=fates(policies, site, left_out, pools))


def _grants(routes: tuple[Exportable, ...], policies: PolicySet, site: Site) -> list[Object]:
    """Leave for routes to lead into other namespaces; each is said once."""
    granted: dict[tuple[str, str], Object] = {}
    for one in routes:
        namespace = site.of(one.route.metadata)
        for backend in one.backends:
            if backend.namespace != namespace:
                found = grant(backend, namespace, policies, [f"ModelRoute/{one.route.metadata.name}"])
                metadata = found["metadata"]
                name = str(metadata["name"]) if isinstance(metadata, dict) else ""
                granted.setdefault((backend.namespace, name), found)
    return [granted[key] for key in sorted(granted)]
