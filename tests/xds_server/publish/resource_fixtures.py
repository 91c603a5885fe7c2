"""Resources with one-word content, and their NACKs."""

from collections.abc import Collection

from xds_server.model.snapshot import Resource, resource
from xds_server.model.type_urls import CLUSTER
from xds_server.publish import NackDecision, NackPolicy, NackReport


def cluster(name: str, content: str, *origins: str) -> Resource:
    """A cluster of this name with content for tests."""
    return resource(CLUSTER, name, content.encode(), origins)


def nack(
    policy: NackPolicy,
    suspects: Collection[Resource],
    reason: str,
    *,
    node: str = "",
    answers_trial: bool = True,
) -> NackDecision:
    """Decide on a NACK, and apply the decision."""
    (type_url,) = {item.type_url for item in suspects}
    report = NackReport(
        type_url=type_url, suspects=tuple(suspects), reason=reason, node=node, answers_trial=answers_trial
    )
    decision = policy.decide(report)
    policy.apply(decision)
    return decision
