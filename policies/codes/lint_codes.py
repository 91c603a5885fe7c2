"""Codes of warnings about valid policies."""

# ruff: noqa: E501 - a table of prose and examples

from typing import Final

from policies.codes.code import Code, as_file, policy_of
from policies.codes.route_lint_codes import ON_ROUTES

_TIMING: Final = (
    Code(
        code="SG100",
        title="empty file",
        meaning="The file is empty or only a comment, like a file that was written only in part.",
        situation="an empty `pool.yaml` among others",
        fix="Add a policy, or remove the file.",
    ),
    Code(
        code="SG101",
        title="total below all tries",
        meaning="The request ends before its tries can: the last tries are wasted.",
        example=policy_of("timeouts: {nonStreaming: {perTry: 2m, total: 5m}}"),
        fix="Raise total to (1 + attempts) x perTry.",
    ),
    Code(
        code="SG102",
        title="try shorter than wait and service",
        meaning="A try is aborted while its healthy request still waits or runs. The work is lost and repeated, the queue grows, and more tries are aborted. Measured: goodput drops from 86 % to 62 %.",
        example=policy_of("timeouts: {nonStreaming: {perTry: 9s}}"),
        fix="Raise perTry to maxWait plus the longest service time, or remove it.",
    ),
    Code(
        code="SG103",
        title="try shorter than a long answer",
        meaning="A non-streaming answer sends nothing before it is complete. This limit aborts long generations even on an idle engine and repeats them on others.",
        example=policy_of("timeouts: {nonStreaming: {perTry: 3s}}"),
        fix="Raise perTry above the longest service time, or remove it.",
    ),
    Code(
        code="SG104",
        title="total below wait and service",
        meaning="A healthy request that waits and runs as long as allowed is cut.",
        example=policy_of("timeouts: {nonStreaming: {total: 5s}}"),
        fix="Raise total, or lower maxWait.",
    ),
    Code(
        code="SG105",
        title="silence shorter than the wait",
        meaning="A stream is silent while its request waits in the engine's queue and during a prefill. This limit cuts it then.",
        example=policy_of("timeouts: {streaming: {betweenTokens: 2s}}"),
        fix="Raise the limit above maxWait plus the longest engine step (probe.stallAfter).",
    ),
    Code(
        code="SG106",
        title="wait near the deadline",
        meaning="The allowed wait exceeds 0.6 of what the deadline leaves after the longest service. If the service time is underestimated, answers come too late and their GPU time is lost.",
        example=policy_of("timeouts: {nonStreaming: {total: 10s}}"),
        fix="Lower maxWait to at most 0.6 x (total - longest service time); a written maxWait above that is refused (SG042).",
    ),
    Code(
        code="SG107",
        title="drain shorter than a stream",
        meaning="A drain cuts streams that are still within their deadline.",
        example=policy_of("drain: {deadline: 30s}"),
        fix="Raise drain.deadline to streaming.total, or accept it.",
    ),
    Code(
        code="SG108",
        title="first-token limit without gate",
        meaning="Stock vLLM sends headers before the first token, so for Envoy the answer has begun. Envoy allows the longer of firstToken and betweenTokens, then cuts the stream instead of retrying it.",
        example=policy_of("timeouts: {streaming: {firstToken: 10s}}"),
        fix="Install the first-token gate and set firstTokenGate: true, or use betweenTokens.",
    ),
)

_RETRIES: Final = (
    Code(
        code="SG110",
        title="amplification",
        meaning="Tries and hedges multiply GPU work in the worst case; the message has the factor.",
        example=policy_of("retries: {attempts: 8}"),
        fix="Use at most three attempts without hedging, one with hedging.",
    ),
    Code(
        code="SG111",
        title="retry that repeats GPU work",
        meaning="The condition applies after the engine has worked: the work is repeated, and a prompt that crashes engines reaches further engines. `reset` draws no warning, because it rescues requests of hung and crashed engines.",
        example=policy_of("retries: {conditions: [connect-failure, 5xx]}"),
        fix="Use connect-failure, refused-stream and reset, and remove statuses: 500 is then retried unless nearly all engines fail at once.",
    ),
    Code(
        code="SG112",
        title="budget without retries",
        meaning="The retry budget allows no retry, so the configured attempts never happen.",
        example=policy_of("retryBudget: {percent: 0, minConcurrency: 0}"),
        fix="Raise the budget, or set attempts to 0.",
    ),
    Code(
        code="SG113",
        title="open budget without limit",
        meaning="The admission limit stops retry storms. These limits are too wide for that, and the retry budget is open too.",
        example=policy_of("limits: {concurrentPerSlot: 100}"),
        fix="Lower the limits, or set retryBudget.percent to 20.",
    ),
    Code(
        code="SG114",
        title="hedging without effect",
        meaning="Hedging is enabled, but another field leaves no room for a hedge.",
        example=policy_of("hedging: {enabled: true, delay: 1s, belowUtilizationPercent: 0}"),
        fix="Set belowUtilizationPercent: 60 and maxPercent: 5, or disable hedging.",
    ),
    Code(
        code="SG115",
        title="hedging without cap",
        meaning="Hedges may take a large share of requests, or run while the pool is full.",
        example=policy_of("hedging: {enabled: true, delay: 1s, maxPercent: 100}"),
        fix="Set maxPercent: 5 and belowUtilizationPercent: 60.",
    ),
    Code(
        code="SG117",
        title="hedging without streams",
        meaning="Without the first-token gate headers arrive at once: streams are never hedged, and non-streaming requests repeat the whole generation.",
        example=policy_of("hedging: {enabled: true, delay: 1s}"),
        fix="Install the gate and set firstTokenGate: true, or disable hedging.",
    ),
    Code(
        code="SG118",
        title="limit replaced by hedging",
        meaning="A hedge uses Envoy's per-try timer and retry budget and counts as a local failure. While hedging is active, perTry and firstToken abort no try and hedging.maxPercent limits retries too; while it is enabled, consecutive connection failures eject no engine.",
        example=policy_of("hedging: {enabled: true, delay: 1s}, timeouts: {nonStreaming: {perTry: 1m}}"),
        fix="Remove the limit, or disable hedging.",
    ),
)

_CAPACITY: Final = (
    Code(
        code="SG120",
        title="no spare zone capacity",
        meaning="Without its largest zone the pool falls below its capacity floor; or spill is off and a zone has one engine.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: llama\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000, zone: a}\n    - {address: 10.0.0.2, port: 8000, zone: a}\n"
            "    - {address: 10.0.0.3, port: 8000, zone: b}\n"
        ),
        fix="Spread the engines more evenly, or allow spill.",
    ),
    Code(
        code="SG121",
        title="single engine",
        meaning="No other engine can take over when it fails.",
        example=as_file("kind: EnginePool\nspec: {model: llama, endpoints: [{address: 10.0.0.1, port: 8000}]}\n"),
        fix="Add an engine, or a fallback in its routes.",
    ),
    Code(
        code="SG122",
        title="pool without engines",
        meaning="The pool has no engines.",
        example=as_file("kind: EnginePool\nspec: {model: llama}\n"),
        fix="List its engines.",
    ),
    Code(
        code="SG123",
        title="capacity floor of 0",
        meaning="Errors or slowness may eject every engine.",
        example=policy_of("breaker: {capacityFloorPercent: 0}"),
        fix="Set 50; dead and hung engines are ejected in any case.",
    ),
    Code(
        code="SG124",
        title="capacity floor of 100",
        meaning="The breaker never ejects: an engine that fails every call keeps its share.",
        example=policy_of("breaker: {capacityFloorPercent: 100}"),
        fix="Set 50, unless ejection is meant to be off.",
    ),
    Code(
        code="SG125",
        title="shares above 100 %",
        meaning="The shares of the priority classes exceed 100 % in total, and a pool serves both classes or the policy writes both shares. Both then get proportionally less. Lower shares waste nothing, because unused capacity is lent.",
        example=as_file(
            "kind: ResiliencePolicy\nmetadata: {name: default}\n"
            "spec: {limits: {priorities: {interactive: {sharePercent: 95}}}}\n---\n"
            "kind: ModelRoute\nmetadata: {name: day}\nspec: {listener: {port: 80}, pools: [{pool: chat}]}\n---\n"
            "kind: ModelRoute\nmetadata: {name: night}\n"
            "spec: {listener: {port: 81}, priority: batch, pools: [{pool: chat}]}\n"
        ),
        fix="Lower interactive and batch to 100 % or less in total.",
    ),
    Code(
        code="SG126",
        title="limit without effect",
        meaning="Three fields set the admission limit; the first one given wins: maxConcurrent, concurrentPerSlot, maxWait. This one loses, even in a later layer.",
        example=policy_of("limits: {maxWait: 1s, maxConcurrent: 20}"),
        fix="Remove one; `maxConcurrent: null` unsets the value of a lower layer.",
    ),
    Code(
        code="SG127",
        title="engine in two pools",
        meaning="Each pool admits the full capacity of the engine, so together they admit twice that.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: chat}\n"
            "spec: {model: a, endpoints: [{address: 10.0.0.1, port: 80}, {address: 10.0.0.2, port: 80}]}\n---\n"
            "kind: EnginePool\nmetadata: {name: code}\n"
            "spec: {model: a, endpoints: [{address: 10.0.0.1, port: 80}, {address: 10.0.0.3, port: 80}]}\n"
        ),
        fix="Use one pool, and routes with priority classes.",
    ),
    Code(
        code="SG128",
        title="unequal weights",
        meaning="With unequal weights Envoy no longer picks the engine with the fewest requests, so a slow engine keeps its share of the queue.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: llama\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.2, port: 8000, weight: 2}\n"
        ),
        fix="Set slots instead.",
    ),
    Code(
        code="SG129",
        title="probe disabled",
        meaning="Only a probe detects an engine that hangs while its /health answers 200.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: llama\n  probe: {enabled: false}\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.2, port: 8000}\n"
        ),
        fix="Enable the probe.",
    ),
)

_QUANTITIES: Final = (
    Code(
        code="SG170",
        title="fraction instead of percentage",
        meaning="A percentage between 0 and 1 is probably a fraction: 0.4 means 0.4 %, not 40 %. Such a breaker ejects engines for a single failure.",
        example=policy_of("breaker: {errorRatePercent: 0.4}"),
        fix="Write 40 for 40 %.",
    ),
    Code(
        code="SG171",
        title="placeholder model",
        meaning="spec.model is a placeholder such as `MODEL`, `<model>` or `{{ .Values.model }}`. No engine serves it, "
        "so every request fails with 404.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: chat}\nspec:\n  model: MODEL\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.2, port: 8000}\n"
        ),
        fix="Write the model name that the engines list at `/v1/models`.",
    ),
    Code(
        code="SG172",
        title="fewer connections than slots",
        meaning="limits.maxConnections limits the connections and the pending requests of one Envoy to a pool. Below the slots of the pool, engines stay idle while Envoy refuses requests: with 1 for 8 requests, 2 passed and 6 got 503.",
        example=policy_of("limits: {maxConnections: 1}"),
        fix="Raise maxConnections to the slots of the pool or more, or remove it. limits.maxWait sets the admission limit.",
    ),
    Code(
        code="SG173",
        title="status of callers or overload",
        meaning="breaker.countStatuses contains a status that says nothing about the engine: 4xx and 501 are errors of callers, 429 and 503 are load shedding. One caller with a wrong path then ejects healthy engines, down to the capacity floor.",
        example=policy_of("breaker: {countStatuses: [404, 500, 502, 504]}"),
        fix="Remove the status from countStatuses.",
    ),
    Code(
        code="SG174",
        title="probe slower than its promise",
        meaning="probe.interval exceeds probe.stallAfter, so a hang lasts longer than stallAfter promises. Or interval + timeout exceed the shortest silence limit of streams, so callers meet the hung engine before a probe does.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: llama\n  probe: {interval: 10s}\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.2, port: 8000}\n"
        ),
        fix="Lower probe.interval to stallAfter or less, and timeout until interval + timeout are below the limit named.",
    ),
    Code(
        code="SG175",
        title="probe timeout below a slow engine's answer",
        meaning="probe.timeout limits the time of one token from an idle engine. Below 250 ms an engine that is ten times slower than usual, or a prober short of CPU, misses it: the engine counts as hung instead of slow, and its requests are cut.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: chat}\nspec:\n  model: m\n  probe: {timeout: 100ms}\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.2, port: 8000}\n"
        ),
        fix="Write 1s, or remove it.",
    ),
    Code(
        code="SG178",
        title="port for large requests only",
        meaning="Every route of the port has match.tokensAbove, so smaller requests, and those without a body, match none and get 404.",
        example=as_file(
            "kind: ModelRoute\nspec: {listener: {port: 80}, match: {tokensAbove: 4000}, pools: [{pool: chat}]}\n"
        ),
        fix="Add a route without tokensAbove to the port.",
    ),
    Code(
        code="SG179",
        title="rules by size without sizes",
        meaning="The pool's policy has time limits, retries or hedges by the tokens of a request, but the route's listener has requestFields: headers: Envoy reads no body, estimates no tokens, and has the rules of all other requests.",
        example=as_file(
            "kind: ModelRoute\nspec: {listener: {port: 80, requestFields: headers}, pools: [{pool: chat}]}\n---\n"
            "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {retries: {large: {tokensAbove: 4000}}}\n"
        ),
        fix="Set requestFields: body, or remove the rules.",
    ),
)

_PLAYED: Final = (
    Code(
        code="SG180",
        title="slots out of reach",
        meaning="`validate --deep` sent as many requests at once as the pool has slots. Limits refused some of them although slots were free.",
        situation="limits: {maxConnections: 1} for a pool of 32 slots: 2 of 32 requests are served.",
        fix="Raise or remove the limit named.",
    ),
    Code(
        code="SG181",
        title="one caller ejects engines",
        meaning="`validate --deep` let one caller repeat a request that healthy engines refuse, such as a wrong path. The breaker counts the status and ejected engines.",
        situation="breaker: {countStatuses: [404, 500]}: a loop of 404s ejects engines down to the capacity floor.",
        fix="Remove the status of callers from countStatuses.",
    ),
    Code(
        code="SG182",
        title="hung engine stays in rotation",
        meaning="`validate --deep` hung one engine at 50 % load. It stayed in rotation for more than 1.5 s beyond probe.stallAfter (default 1 s).",
        situation="probe: {interval: 10s}: no probe sees the hang within stallAfter.",
        fix="Lower probe.interval, or enable the probe.",
    ),
    Code(
        code="SG183",
        title="restart loses requests",
        meaning="`validate --deep` restarted one engine at 80 % load. Less than 85 % of what the other engines can serve was served.",
        situation="retries: {attempts: 0} and a slow probe: requests to the restarting engine fail.",
        fix="Allow a retry, or remove the limit named.",
    ),
)

_NOTES: Final = (
    Code(
        code="SG199",
        title="older apiVersion",
        meaning="Documents use `switchgear.dev/v1alpha1`. It means the same as `switchgear.dev/v1beta1`, is deprecated, and works until a later version removes it.",
        situation="`apiVersion: switchgear.dev/v1alpha1` in a file",
        fix="Rewrite the files with `switchgear convert --in-place` once every control plane and program that reads them knows `switchgear.dev/v1beta1`.",
        note=True,
    ),
)

ADVICE: Final = (*_TIMING, *_RETRIES, *_CAPACITY, *ON_ROUTES, *_QUANTITIES, *_PLAYED, *_NOTES)
