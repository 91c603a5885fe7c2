"""When a recovered engine returns: at once, unless it flaps or its requests were cut.

Late returns cost most, so there are only two waits. An engine whose requests were cut returns in two steps: each
proxy first reopens its connection, then sends requests. An engine that flaps does more harm with each ejection
than good in between, so it waits longer each time.
"""

from dataclasses import dataclass, replace
from typing import Final

from xds_server.decide.decision_memory import FlapState

MAX_FLAPS: Final = 3
"""Returns within ``FLAP_WINDOW_S`` from which an engine has to wait."""

FLAP_WINDOW_S: Final = 60.0
MAX_RETURN_DELAY_S: Final = 30.0

RECONNECT_DELAY_S: Final = 0.3
"""From the order to reconnect to the first request: two polls of a proxy, and the connection."""

NEW_FLAP_STATE: Final = FlapState()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnDelay:
    """Why and until when a recovered engine waits. ``flapping``: it was ejected too often."""

    until_s: float
    reason: str
    flapping: bool


def while_ejected(before: FlapState | None, *, uncut: bool, now_s: float) -> FlapState | None:
    """The state while there is evidence against the engine; ``uncut``: its requests are no longer cut."""
    if before is None and not uncut:
        return None
    state = NEW_FLAP_STATE if before is None else before
    if uncut:
        return replace(state, uncut_at_s=now_s, well_since_s=None)
    return state if state.well_since_s is None else replace(state, well_since_s=None)


def while_returning(
    before: FlapState | None, *, uncut: bool, patient: bool, now_s: float
) -> tuple[FlapState, ReturnDelay | None]:
    """The state of an ejected engine that could return, and what it waits for; None: it returns now.

    ``patient`` False: an operator ordered its return, so it does not wait for flapping.
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
            f"recovered, but it flaps: {len(lately)} returns in {FLAP_WINDOW_S:g} s "
            f"(limit {MAX_FLAPS - 1}); waits {wait_s:g} s"
        )
        return state, ReturnDelay(until_s=well_since_s + wait_s, reason=reason, flapping=True)
    if state.uncut_at_s is not None and now_s < state.uncut_at_s + RECONNECT_DELAY_S:
        reason = f"recovered: proxies reconnect for {RECONNECT_DELAY_S:g} s before they send requests"
        return state, ReturnDelay(until_s=state.uncut_at_s + RECONNECT_DELAY_S, reason=reason, flapping=False)
    waits = state.waits + 1 if wait_s else state.waits
    return FlapState(at_s=(*lately, now_s), waits=waits), None


def while_admitted(before: FlapState, now_s: float) -> FlapState | None:
    """The state while the engine is in rotation; None once it has been healthy for long."""
    return None if not before.at_s or now_s - before.at_s[-1] >= FLAP_WINDOW_S else before
