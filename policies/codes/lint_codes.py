"""Codes of advice on policies that can be used."""

# ruff: noqa: E501 - a table of prose and of examples that are shown as they stand

from typing import Final

from policies.codes.code import Code, as_file, policy_of
from policies.codes.route_lint_codes import ON_ROUTES

_TIMING: Final = (
    Code(
        code="SG100",
        title="file that says nothing",
        meaning="The file is empty or only a comment. Half-written files look like that, so it is worth a word.",
        situation="an empty `pool.yaml` beside others",
        fix="Write a policy into it, or remove it.",
    ),
    Code(
        code="SG101",
        title="total below all tries",
        meaning="The request ends before its tries could: the last ones are begun for nothing.",
        example=policy_of("timeouts: {nonStreaming: {perTry: 2m, total: 5m}}"),
        fix="Raise total to (1 + attempts) x perTry.",
    ),
    Code(
        code="SG102",
        title="try shorter than wait and service",
        meaning="A try is given up while its request, healthy, still waits or runs. The work is thrown away and done "
        "again, which makes the queue longer, which ends more tries. Seen to turn 86 % goodput into 62 %.",
        example=policy_of("timeouts: {nonStreaming: {perTry: 9s}}"),
        fix="Raise perTry to maxWait plus the longest service time, or remove it.",
    ),
    Code(
        code="SG103",
        title="try shorter than a long answer",
        meaning="A non-streaming answer sends nothing until all of it exists. This limit kills long generations even "
        "on an idle engine, and has them begun again elsewhere.",
        example=policy_of("timeouts: {nonStreaming: {perTry: 3s}}"),
        fix="Raise perTry above the longest service time, or remove it.",
    ),
    Code(
        code="SG104",
        title="total below wait and service",
        meaning="A healthy request that waits as long as it may and then runs as long as it may is cut.",
        example=policy_of("timeouts: {nonStreaming: {total: 5s}}"),
        fix="Raise total, or lower maxWait.",
    ),
    Code(
        code="SG105",
        title="silence shorter than the allowed wait",
        meaning="A stream is silent while its request waits in the engine's queue and during a prefill. This limit "
        "cuts it there.",
        example=policy_of("timeouts: {streaming: {betweenTokens: 2s}}"),
        fix="Raise the limit above maxWait plus the longest engine step (probe.stallAfter).",
    ),
    Code(
        code="SG106",
        title="wait near the deadline",
        meaning="Waiting may take more than 0.6 of what the deadline leaves after the longest service. Where the "
        "service time is guessed a little too low, answers come too late and their GPU time is lost: a cliff, not a "
        "slope.",
        example=policy_of("timeouts: {nonStreaming: {total: 10s}}"),
        fix="Lower maxWait to 0.6 x (total - longest service time), or less; a maxWait that is written and too long is refused (SG042).",
    ),
    Code(
        code="SG107",
        title="drain shorter than a stream",
        meaning="When an engine is drained, streams that are still allowed to run are cut.",
        example=policy_of("drain: {deadline: 30s}"),
        fix="Raise drain.deadline to streaming.total, or accept it.",
    ),
    Code(
        code="SG108",
        title="first-token limit without gate",
        meaning="Stock vLLM sends headers before the first token exists. For Envoy the answer has then begun: all it sees is silence. The longer of firstToken and betweenTokens is allowed, then the stream is cut, not tried elsewhere.",
        example=policy_of("timeouts: {streaming: {firstToken: 10s}}"),
        fix="Install the first-token gate and say firstTokenGate: true, or rely on betweenTokens.",
    ),
)

_RETRIES: Final = (
    Code(
        code="SG110",
        title="amplification",
        meaning="The worst case of tries and hedges multiplies GPU work; the message has the number.",
        example=policy_of("retries: {attempts: 8}"),
        fix="Three attempts without hedging, one with it.",
    ),
    Code(
        code="SG111",
        title="retry that repeats GPU work",
        meaning="The condition holds after the engine has worked, so the work is done twice; a prompt that breaks "
        "engines tours the fleet. `reset` is not warned of: it is what rescues requests of hung and crashed engines.",
        example=policy_of("retries: {conditions: [connect-failure, 5xx]}"),
        fix="Keep to connect-failure, refused-stream and reset, and leave statuses out: 500 is then retried except "
        "where nearly all engines fail at once.",
    ),
    Code(
        code="SG112",
        title="budget that allows nothing",
        meaning="The retry budget is shut, so the attempts that are configured never happen.",
        example=policy_of("retryBudget: {percent: 0, minConcurrency: 0}"),
        fix="Open the budget, or set attempts to 0.",
    ),
    Code(
        code="SG113",
        title="open budget without ceiling",
        meaning="The admission ceiling is what stops retry storms. With limits this wide there is none, and the retry "
        "budget is open too.",
        example=policy_of("limits: {concurrentPerSlot: 100}"),
        fix="Lower the limits, or retryBudget.percent to 20.",
    ),
    Code(
        code="SG114",
        title="hedging that never comes",
        meaning="Hedging is enabled, and another field of it leaves no room for a single hedge.",
        example=policy_of("hedging: {enabled: true, delay: 1s, belowUtilizationPercent: 0}"),
        fix="belowUtilizationPercent 60 and maxPercent 5, or turn hedging off.",
    ),
    Code(
        code="SG115",
        title="hedging without cap",
        meaning="Hedges are allowed for a large share of requests, or while the pool is full.",
        example=policy_of("hedging: {enabled: true, delay: 1s, maxPercent: 100}"),
        fix="maxPercent 5, belowUtilizationPercent 60.",
    ),
    Code(
        code="SG117",
        title="hedging blind to streams",
        meaning="Without the first-token gate, headers end Envoy's wait at once: streams are never hedged, and "
        "non-streaming requests repeat the whole generation.",
        example=policy_of("hedging: {enabled: true, delay: 1s}"),
        fix="Install the gate and say firstTokenGate: true, or turn hedging off.",
    ),
    Code(
        code="SG118",
        title="limit that hedging replaces",
        meaning="A hedge runs on Envoy's timer of one try, spends its retry budget and counts as a local failure. So "
        "while hedging is on, perTry and firstToken end no try and hedging.maxPercent bounds retries, too; and where "
        "it is enabled at all, connection failures in a row eject no engine.",
        example=policy_of("hedging: {enabled: true, delay: 1s}, timeouts: {nonStreaming: {perTry: 1m}}"),
        fix="Remove the limit, or turn hedging off.",
    ),
)

_CAPACITY: Final = (
    Code(
        code="SG120",
        title="zone with no capacity to lose",
        meaning="Without its largest zone the pool is below its own capacity floor; or nothing may leave a zone that "
        "has one engine.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: llama\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000, zone: a}\n    - {address: 10.0.0.2, port: 8000, zone: a}\n"
            "    - {address: 10.0.0.3, port: 8000, zone: b}\n"
        ),
        fix="Spread the engines more evenly, or allow spill.",
    ),
    Code(
        code="SG121",
        title="one engine",
        meaning="There is nowhere else to go when it fails.",
        example=as_file("kind: EnginePool\nspec: {model: llama, endpoints: [{address: 10.0.0.1, port: 8000}]}\n"),
        fix="Add an engine, or give its routes a fallback.",
    ),
    Code(
        code="SG122",
        title="no engine",
        meaning="The pool is empty.",
        example=as_file("kind: EnginePool\nspec: {model: llama}\n"),
        fix="List its engines.",
    ),
    Code(
        code="SG123",
        title="floor of 0",
        meaning="Errors or slowness may take every engine out: the pool panics itself empty.",
        example=policy_of("breaker: {capacityFloorPercent: 0}"),
        fix="50; dead and hung engines leave in any case.",
    ),
    Code(
        code="SG124",
        title="floor of 100",
        meaning="The breaker never ejects: an engine that fails every call keeps its share of them.",
        example=policy_of("breaker: {capacityFloorPercent: 100}"),
        fix="50, unless ejecting is to be off.",
    ),
    Code(
        code="SG125",
        title="shares of more than everything",
        meaning="A pool serves both priority classes, and they are promised more than 100 % together. Both then get less in proportion; shares below 100 % waste nothing, because what is free is lent.",
        example=as_file(
            "kind: ResiliencePolicy\nmetadata: {name: default}\n"
            "spec: {limits: {priorities: {interactive: {sharePercent: 95}}}}\n---\n"
            "kind: ModelRoute\nmetadata: {name: day}\nspec: {listener: {port: 80}, pools: [{pool: chat}]}\n---\n"
            "kind: ModelRoute\nmetadata: {name: night}\n"
            "spec: {listener: {port: 81}, priority: batch, pools: [{pool: chat}]}\n"
        ),
        fix="Make interactive and batch add up to 100 or less.",
    ),
    Code(
        code="SG126",
        title="limit that has no effect",
        meaning="There are three ways to say how much is let in, and the first one given wins: maxConcurrent, "
        "concurrentPerSlot, maxWait. This one loses, also when it stands in a later layer.",
        example=policy_of("limits: {maxWait: 1s, maxConcurrent: 20}"),
        fix="Remove one; `maxConcurrent: null` takes back what a layer below said.",
    ),
    Code(
        code="SG127",
        title="engine in two pools",
        meaning="Each pool admits as much as the engine holds, so together they admit twice that.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: chat}\n"
            "spec: {model: a, endpoints: [{address: 10.0.0.1, port: 80}, {address: 10.0.0.2, port: 80}]}\n---\n"
            "kind: EnginePool\nmetadata: {name: code}\n"
            "spec: {model: a, endpoints: [{address: 10.0.0.1, port: 80}, {address: 10.0.0.3, port: 80}]}\n"
        ),
        fix="One pool, and routes with priority classes.",
    ),
    Code(
        code="SG128",
        title="unequal weights",
        meaning="With unequal weights Envoy no longer picks the engine with the fewest requests, and a slow engine "
        "gets its share of the queue.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: llama\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.2, port: 8000, weight: 2}\n"
        ),
        fix="Say slots.",
    ),
    Code(
        code="SG129",
        title="probe off",
        meaning="Only a probe sees an engine that hangs while its /health answers 200.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: llama\n  probe: {enabled: false}\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.2, port: 8000}\n"
        ),
        fix="Leave it on.",
    ),
)

_QUANTITIES: Final = (
    Code(
        code="SG170",
        title="fraction where a percentage is asked for",
        meaning="A percentage between 0 and 1 is most likely a fraction: 0.4 is less than one in two hundred, and not "
        "40 %. A breaker that says so takes engines out for a single failure.",
        example=policy_of("breaker: {errorRatePercent: 0.4}"),
        fix="Write 40 for 40 %.",
    ),
)

ADVICE: Final = (*_TIMING, *_RETRIES, *_CAPACITY, *ON_ROUTES, *_QUANTITIES)
