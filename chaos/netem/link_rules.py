"""Link rules, and their combined effect on one connection.

Several rules may be active on one link; they add up. Values only.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, IPvAnyAddress, TypeAdapter, ValidationError

ANY_SOURCE: Final = "*"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRule:
    """Impairment of some peers on some links, in both directions.

    ``links`` are link names; ``sources`` the peers' addresses, or ``*`` for all. ``latency_s`` and up to
    ``jitter_s`` more are added per direction. The selected peers share ``bytes_per_s`` per link and direction.
    ``black_hole``: all packets are dropped, including SYNs. ``reset``: open and new connections are reset.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    links: Annotated[tuple[str, ...], Field(min_length=1)]
    sources: Annotated[tuple[str, ...], Field(min_length=1)] = (ANY_SOURCE,)
    latency_s: Seconds = 0.0
    jitter_s: Seconds = 0.0
    loss_percent: Annotated[float, Field(ge=0, le=100)] = 0.0
    bytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    black_hole: bool = False
    reset: bool = False

    def means(self, link: str, source: str) -> bool:
        """Whether it applies to this peer on this link."""
        return link in self.links and (ANY_SOURCE in self.sources or source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConditions:
    """Combined rules for one connection.

    ``loss_share`` is 1 in a black hole; ``caps`` are the names of the rules that limit its bandwidth.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss_share: float = 0.0
    caps: tuple[str, ...] = ()
    reset: bool = False

    @property
    def black_hole(self) -> bool:
        """Whether all packets are dropped."""
        return self.loss_share >= 1.0


UNIMPAIRED: Final = LinkConditions()


class LinkRuleError(ValueError):
    """Invalid rule; the message has the cause."""


def parse_link_rule(answer: Any, known_links: Sequence[str]) -> LinkRule:
    """Parse a rule from a JSON object; raises LinkRuleError, also for unknown links."""
    try:
        rule = _RULE.validate_python(answer)
        for source in rule.sources:
            if source != ANY_SOURCE:
                _ADDRESS.validate_python(source)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        msg = f"{place}: {first['msg']}" if place else str(first["msg"])
        raise LinkRuleError(msg) from error
    if unknown := [link for link in rule.links if link not in known_links]:
        msg = f"links: unknown link {unknown[0]!r}; use one of {', '.join(known_links)}"
        raise LinkRuleError(msg)
    return rule


def link_conditions(rules: Mapping[str, LinkRule], link: str, source: str) -> LinkConditions:
    """Combine the rules, by name, for a peer on a link."""
    meant = {name: rule for name, rule in rules.items() if rule.means(link, source)}
    if not meant:
        return UNIMPAIRED
    kept = math.prod(0.0 if rule.black_hole else 1.0 - rule.loss_percent / 100 for rule in meant.values())
    return LinkConditions(
        latency_s=sum(rule.latency_s for rule in meant.values()),
        jitter_s=sum(rule.jitter_s for rule in meant.values()),
        loss_share=1.0 - kept,
        caps=tuple(name for name, rule in meant.items() if rule.bytes_per_s is not None),
        reset=any(rule.reset for rule in meant.values()),
    )


def named_sources(rules: Iterable[LinkRule], link: str) -> tuple[str, ...]:
    """Addresses named by rules on this link, sorted."""
    named = {source for rule in rules if link in rule.links for source in rule.sources if source != ANY_SOURCE}
    return tuple(sorted(named))


_RULE: Final = TypeAdapter(LinkRule)
_ADDRESS: Final[TypeAdapter[Any]] = TypeAdapter(IPvAnyAddress)
