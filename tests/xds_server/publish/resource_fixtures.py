"""Resources whose content is a word, and NACKs of them."""

from collections.abc import Collection

from xds_server.model.snapshot import Resource, resource
from xds_server.model.type_urls import CLUSTER
from xds_server.publish import NackDecision, NackPolicy, NackReport


def cluster(name: str, content: str, *origins: str) -> Resource:
    """A cluster of this name; what it says is for tests to read, and for no proxy."""
    return resource(CLUSTER, name, content.encode(), origins)


def nack(
    policy: NackPolicy,
    suspects: Collection[Resource],
    reason: str,
    *,
    node: str = "",
    answers_trial: bool = True,
) -> NackDecision:
    """Decide on a NACK of these, and do what was decided."""
    (type_url,) = {item.type_url for item in suspects}
    report = NackReport(
        type_url=type_url, suspects=tuple(suspects), reason=reason, node=node, answers_trial=answers_trial
    )
    decision = policy.decide(report)
    policy.apply(decision)
    return decision
