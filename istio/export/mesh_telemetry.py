"""Telemetry: reports of mesh proxies about requests to pools, in place of reports to Switchgear.

Switchgear hears of each attempt; Istio's providers hear of requests. A log line for each that failed, and the name
of the route on the counters, are as near as it gets.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from istio.export.istio_objects import IstioTarget, Object, istio_object
from istio.export.virtual_services import RoutePort
from policies.model import PolicySet

API: Final = "telemetry.istio.io/v1"
ROUTE_TAG: Final = "switchgear_route"


def telemetries(entries: Sequence[RoutePort], policies: PolicySet, place: IstioTarget) -> Iterator[Object]:
    """One Telemetry for each namespace that has routes: Istio takes no second one without a selector."""
    if not place.telemetry:
        return
    for namespace in sorted({entry.namespace for entry in entries}):
        here = [entry for entry in entries if entry.namespace == namespace]
        names = sorted({rule.name for entry in here for rule in entry.rules})
        known = ", ".join(f"'{name}'" for name in names)
        spec: Object = {
            "accessLogging": [
                {
                    "match": {"mode": "CLIENT"},
                    "filter": {
                        "expression": f"xds.route_name in [{known}] && "
                        "(response.code >= 400 || response.flags != 0)"
                    },
                    "providers": [{"name": "envoy"}],
                }
            ],
            "metrics": [
                {
                    "providers": [{"name": "prometheus"}],
                    "overrides": [
                        {
                            "match": {"metric": metric, "mode": "CLIENT"},
                            "tagOverrides": {ROUTE_TAG: {"operation": "UPSERT", "value": "xds.route_name"}},
                        }
                        for metric in ("REQUEST_COUNT", "REQUEST_DURATION")
                    ],
                }
            ],
        }
        of = tuple(dict.fromkeys(name for entry in here for name in entry.of if name.startswith("ModelRoute/")))
        yield istio_object("Telemetry", "switchgear", namespace, spec, policies=policies, of=of, version=API)
