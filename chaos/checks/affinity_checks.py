"""Checks of conversations: engines find prompts in their prefix caches, and no engine gets most of them. Pure."""

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.measures.prefix_locality import largest_share, prefix_hits


def prefix_hit(case: CheckInput) -> CheckFinding | None:
    """Prompt tokens that engines found in their prefix caches, per 100, from the first fault on."""
    limit = case.hypothesis.prefix_hit_percent
    if limit is None:
        return None
    hits = prefix_hits(case.history, case.from_s, case.end_s)
    if not hits.prompt_tokens:
        return CheckFinding(
            check="prefixHitPercent",
            answer=CheckResult.UNKNOWN,
            why="no engine computed a prompt",
            limit=f">= {text_format.percent(limit)}",
        )
    return CheckFinding(
        check="prefixHitPercent",
        answer=CheckResult.YES if hits.percent >= limit else CheckResult.NO,
        why=f"engines found {hits.cached_tokens} of {hits.prompt_tokens} prompt tokens in their prefix caches",
        measured=text_format.percent(hits.percent),
        limit=f">= {text_format.percent(limit)}",
        numbers={"prefix_hit_percent": hits.percent, "prompt_tokens": hits.prompt_tokens},
    )


def largest_share_times(case: CheckInput) -> CheckFinding | None:
    """Requests of the engine with most, over its share by slots, from the first fault on."""
    limit = case.hypothesis.largest_share_times
    if limit is None:
        return None
    found = largest_share(case.history, case.from_s, case.end_s)
    if found is None:
        return CheckFinding(
            check="largestShareTimes",
            answer=CheckResult.UNKNOWN,
            why="no engine got a request",
            limit=f"<= {limit:g}",
        )
    return CheckFinding(
        check="largestShareTimes",
        answer=CheckResult.YES if found.times <= limit else CheckResult.NO,
        why=f"{found.engine} got {found.requests} of {found.all_requests} requests",
        measured=f"{found.times:.2f}",
        limit=f"<= {limit:g}",
        numbers={"largest_share_times": found.times},
    )
