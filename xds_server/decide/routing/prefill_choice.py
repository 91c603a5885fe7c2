"""Whether prefill engines are quicker than local prefill: for how many requests of a decode pool one is named.

Streams whose prompt another engine computed are compared with streams of the same sizes whose prompt the decode
engine computed, by the median time to the first token over the last minute. So some requests always go the other
way: ``OTHER_PERCENT`` of them. That also tries the slower way again, without a timer of its own.

After a change both medians are from before it for a minute, so the next one comes later.
"""

from typing import Final

from policies.pool import EnginePoolSpec
from xds_server.decide.decisions import PrefillDecision
from xds_server.model.pool_traffic import PrefillUse

OTHER_PERCENT: Final = 5.0
"""Requests that go the other way, for comparison."""

MIN_STREAMS: Final = 20
"""Streams of each kind below which a median is chance."""

SLOWER: Final = 1.2
"""Times the median of local prefill above which prefill engines are slower; they are used again below it."""

CHANGES_EACH_S: Final = 70.0
"""The window of telemetry: a minute, in slices of ten seconds."""


def prefill_choice(
    pool: EnginePoolSpec, use: PrefillUse | None, before: PrefillDecision | None, now_s: float
) -> PrefillDecision:
    """The decision now; the same object as before if nothing changed."""
    if not pool.first_token_gate:
        reason = "not compared with local prefill: the pool has no first-token gate"
        return before if before is not None and before.reason == reason else _decided(100.0, reason, now_s)
    if before is None or before.named_percent == 100.0:
        return _decided(100.0 - OTHER_PERCENT, "not yet compared with local prefill", now_s)
    named, local = (None, None) if use is None else (use.named_first_byte, use.local_first_byte)
    if named is None or local is None or min(named.calls, local.calls) < MIN_STREAMS:
        return before
    remote, waits = before.named_percent > OTHER_PERCENT, now_s - before.since_s < CHANGES_EACH_S
    stays = named.p50_s <= SLOWER * local.p50_s if remote else named.p50_s >= local.p50_s
    if waits or stays:
        return before
    what = "slower than local prefill" if remote else "faster than local prefill again"
    found = f"median first token {named.p50_s:.2g} s with a prefill engine, {local.p50_s:.2g} s without"
    return _decided(OTHER_PERCENT if remote else 100.0 - OTHER_PERCENT, f"{what}: {found}", now_s)


def _decided(percent: float, reason: str, now_s: float) -> PrefillDecision:
    return PrefillDecision(named_percent=percent, reason=reason, since_s=now_s)
