"""When an engine that is well again may really return: at once, unless it has left too often, or was cut off.

Health passes at once, for recovery noticed late is what costs most. Two waits are worth their price. An engine
whose requests were cut comes back in two steps, because each proxy must have opened its way there again before it
is sent requests. And an engine that comes and goes all the time does more harm each time it leaves than it does
good in between, so it waits longer each time.
"""

from dataclasses import dataclass, replace
from typing import Final

from xds_server.decide.decision_memory import FlapState

MAX_FLAPS: Final = 3
"""Returns within ``FLAP_WINDOW_S`` from which an engine has to wait."""

FLAP_WINDOW_S: Final = 60.0
MAX_RETURN_DELAY_S: Final = 30.0

RECONNECT_DELAY_S: Final = 0.3
"""From the order to open the way again to the first request: two looks of a proxy at it, and the way there."""

NEW_FLAP_STATE: Final = FlapState()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnDelay:
    """An engine that is well and not back yet: until when, and why. ``flapping``: because it left too often."""

    until_s: float
    reason: str
    flapping: bool


def while_ejected(before: FlapState | None, *, uncut: bool, now_s: float) -> FlapState | None:
    """Its memory while something speaks against the engine; ``uncut``: its requests are no longer cut."""
    if before is None and not uncut:
        return None
    state = NEW_FLAP_STATE if before is None else before
    if uncut:
        return replace(state, uncut_at_s=now_s, well_since_s=None)
    return state if state.well_since_s is None else replace(state, well_since_s=None)


def while_returning(
    before: FlapState | None, *, uncut: bool, patient: bool, now_s: float
) -> tuple[FlapState, ReturnDelay | None]:
    """Its memory when an engine that is out would be back, and what it waits for; None: it is back now.

    ``patient`` False: somebody ordered it back, so that it does not wait for having left too often.
    """
    state = NEW_FLAP_STATE if before is None else before
    if uncut:
        state = replace(state, uncut_at_s=now_s)
    if state.well_since_s is None:
        state = replace(state, well_since_s=now_s)
    well_since_s = now_s if state.well_since_s is None else state.well_since_s
    lately = tuple(moment for moment in state.at_s if now_s - moment < FLAP_WINDOW_S)
    wait_s = min(MAX_RETURN_DELAY_S, 2.0 ** min(state.waits, 10)) if patient and len(lately) >= MAX_FLAPS else 0.0
    if wait_s and now_s < well_since_s + wait_s:
        reason = (
            f"well again, but it came back {len(lately)} times in {FLAP_WINDOW_S:g} s "
            f"(allowed {MAX_FLAPS - 1}): waits {wait_s:g} s"
        )
        return state, ReturnDelay(until_s=well_since_s + wait_s, reason=reason, flapping=True)
    if state.uncut_at_s is not None and now_s < state.uncut_at_s + RECONNECT_DELAY_S:
        reason = f"well again: proxies open their way to it for {RECONNECT_DELAY_S:g} s before they use it"
        return state, ReturnDelay(until_s=state.uncut_at_s + RECONNECT_DELAY_S, reason=reason, flapping=False)
    waits = state.waits + 1 if wait_s else state.waits
    return FlapState(at_s=(*lately, now_s), waits=waits), None


def while_admitted(before: FlapState, now_s: float) -> FlapState | None:
    """Its memory while the engine is in; None once it has been well for long."""
    return None if not before.at_s or now_s - before.at_s[-1] >= FLAP_WINDOW_S else before
