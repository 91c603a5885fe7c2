"""Checks of prefill and decode as two pools: prompts are still computed where they should be. Pure."""

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.fake_engine.call_log import CallOutcome


def prefilled_remotely(case: CheckInput) -> CheckFinding | None:
    """Good answers whose prompt an engine of the prefill pool computed, per 100, from the first fault on.

    Decode engines that prefill everything themselves would keep every other promise.
    """
    limit = case.hypothesis.prefilled_remotely_percent
    if limit is None:
        return None
    said_limit = f">= {text_format.percent(limit)}"
    computed = {one.request_id for one in case.history.prefills if one.fate is CallOutcome.FINISHED}
    good = [one for one in case.judged_requests if one.ok]
    if not good:
        return CheckFinding(
            check="prefilledRemotelyPercent",
            answer=CheckResult.UNKNOWN,
            why="no good answer to judge",
            limit=said_limit,
        )
    remote = sum(one.request_id in computed for one in good)
    measured = 100.0 * remote / len(good)
    return CheckFinding(
        check="prefilledRemotelyPercent",
        answer=CheckResult.YES if measured >= limit else CheckResult.NO,
        why=f"the prefill pool computed the prompts of {remote} of {text_format.count(len(good), 'good answer')}",
        measured=text_format.percent(measured),
        limit=said_limit,
        numbers={"prefilled_remotely_percent": measured, "remote": remote, "good": len(good)},
    )
