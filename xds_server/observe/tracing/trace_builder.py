"""Builds the span tree of a change. Pure.

Measurements are monotonic; ``unix_ns`` maps all times of a trace to one wall clock, so that setting the clock
cannot tear it apart. Stages of a round are known by duration, counted back from the publication.
"""

from collections.abc import Callable, Iterator
from typing import Final

from xds_server.ledger.event import Event
from xds_server.model.type_urls import PUSH_ORDER, SHORT_NAMES
from xds_server.observe.tracing import spans
from xds_server.observe.tracing.propagation import Propagation, TracedChange, TracedNack
from xds_server.observe.tracing.spans import STAGES, Span, span_attributes

MOST_DECISIONS: Final = 10
"""Decisions of a round with a span; further ones are counted."""

OTHER: Final = "other"

Clock = Callable[[float], int]
"""Converts monotonic seconds to Unix nanoseconds."""


def trace_of(journey: TracedChange, unix_ns: Clock) -> Span:
    """Trace of a change that has arrived, or was followed long enough."""
    children = (*_before(journey, unix_ns), *_round(journey, unix_ns), *_after(journey, unix_ns))
    first = journey.events[0]
    proxies = {node for spread in journey.propagations.values() for node in spread.waiting}
    return Span(
        name=f"{journey.change} change",
        start_ns=min(child.start_ns for child in children),
        end_ns=max(_ends(child) for child in children),
        attributes=span_attributes(
            *_about(first),
            (spans.CAUSE, journey.cause),
            (spans.DECISIONS, journey.decided),
            (spans.PROXIES, max((spread.expected for spread in journey.propagations.values()), default=0)),
            (spans.UNCONFIRMED, len(proxies)),
            (spans.REFUSED, max((spread.nacked for spread in journey.propagations.values()), default=0)),
            (spans.VERSION, journey.policies.version or ""),
            (spans.DIGEST, journey.policies.digest),
            (spans.AUTHOR, journey.policies.author if journey.change == "policies" else ""),
        ),
        error="proxies refused it" if any(spread.nacked for spread in journey.propagations.values()) else "",
        children=children,
    )


def unattributed_nack(type_url: str, refusal: TracedNack, unix_ns: Clock) -> Span:
    """Trace of a refusal outside any followed change, e.g. of a proxy that connected later."""
    return _refused(type_url, refusal, refusal.at_s, unix_ns)


def _about(event: Event) -> tuple[tuple[str, spans.Value], ...]:
    subject = event.subject
    return (
        (spans.POOL, subject.pool),
        (spans.ENGINE, subject.engine),
        (spans.ZONE, subject.zone),
        (spans.BEFORE, event.before),
        (spans.AFTER, event.after),
        (spans.REASON, event.evidence),
        (spans.RULE, event.rule),
        (spans.PLACE, event.place),
        (spans.EVENT, event.number),
        (spans.REQUESTS, event.requests),
    )


def _began_s(journey: TracedChange) -> float:
    """Start of the round, according to its stages."""
    return journey.published_s - sum(journey.stages_s.get(stage, 0.0) for stage in STAGES)


def _before(journey: TracedChange, unix_ns: Clock) -> Iterator[Span]:
    """Spans before the round."""
    if journey.offered_s is not None:
        yield _span("offered", journey.offered_s, max(journey.offered_s, _began_s(journey)), unix_ns)
    if journey.detected_s is not None:
        until_s = journey.published_s if journey.news_s is None else journey.news_s
        yield _span("detect", min(journey.detected_s, until_s), until_s, unix_ns)


def _round(journey: TracedChange, unix_ns: Clock) -> Iterator[Span]:
    """Stages of the round, up to publication."""
    at_s = _began_s(journey)
    for stage in STAGES:
        until_s = at_s + journey.stages_s.get(stage, 0.0)
        decisions: tuple[Span, ...] = ()
        if stage == "decide":
            decisions = tuple(
                _span("decision", at_s, until_s, unix_ns, *_about(event)) for event in journey.events
            )
        yield _span(stage, at_s, until_s, unix_ns, children=decisions)
        at_s = until_s


def _after(journey: TracedChange, unix_ns: Clock) -> Iterator[Span]:
    """Propagation to proxies, and late requests to ejected engines."""
    known = [kind for kind in PUSH_ORDER if kind in journey.propagations]
    for type_url in (*known, *(kind for kind in journey.propagations if kind not in known)):
        yield _pushed(type_url, journey.propagations[type_url], journey.published_s, unix_ns)
    for (pool, engine), at_s in list(journey.last_request_s.items())[:MOST_DECISIONS]:
        yield _span("last request", journey.published_s, at_s, unix_ns, (spans.POOL, pool), (spans.ENGINE, engine))


def _pushed(type_url: str, spread: Propagation, published_s: float, unix_ns: Clock) -> Span:
    kind = SHORT_NAMES.get(type_url, OTHER)
    children: list[Span] = []
    if spread.acked:
        ack = _span(
            "ack",
            spread.first_push_s,
            spread.last_ack_s,
            unix_ns,
            (spans.TYPE, kind),
            (spans.PROXIES, spread.acked),
            (spans.FIRST_S, round(spread.first_ack_s - spread.first_push_s, 6)),
            (spans.SLOWEST, spread.slowest),
            (spans.SLOWEST_S, round(spread.slowest_s, 6)),
        )
        children.append(ack)
    children.extend(_refused(type_url, one, spread.first_push_s, unix_ns) for one in spread.nacks)
    unsent = spread.unsent
    return _span(
        "push",
        published_s,
        spread.last_push_s if spread.pushed else published_s,
        unix_ns,
        (spans.TYPE, kind),
        (spans.PROXIES, spread.pushed),
        (spans.UNSENT, unsent),
        (spans.UNCONFIRMED, len(spread.waiting) - unsent),
        (spans.REFUSED, spread.nacked),
        children=tuple(children),
    )


def _refused(type_url: str, refusal: TracedNack, since_s: float, unix_ns: Clock) -> Span:
    return Span(
        name="refused",
        start_ns=unix_ns(since_s),
        end_ns=unix_ns(refusal.at_s),
        attributes=span_attributes(
            (spans.TYPE, SHORT_NAMES.get(type_url, OTHER)),
            (spans.PROXY, refusal.node),
            (spans.RESOURCES, tuple(spans.attribute_text(name) for name in refusal.resources)),
            (spans.PLACE, ", ".join(refusal.places)),
            (spans.REASON, refusal.reason),
        ),
        error=spans.attribute_text(refusal.reason),
    )


def _span(
    name: str,
    from_s: float,
    to_s: float,
    unix_ns: Clock,
    *pairs: tuple[str, spans.Value],
    children: tuple[Span, ...] = (),
) -> Span:
    return Span(
        name=name,
        start_ns=unix_ns(from_s),
        end_ns=unix_ns(max(from_s, to_s)),
        attributes=span_attributes(*pairs),
        children=children,
    )


def _ends(span: Span) -> int:
    return max((span.end_ns, *(_ends(child) for child in span.children)))
