"""Codes of advice on policies that can be used."""

# ruff: noqa: E501 - a table of prose and of examples that are shown as they stand

from typing import Final

from policies.code import Code


def _example(text: str) -> str:
    return text.strip("\n") + "\n"


def _policy(spec: str) -> str:
    return f"kind: ResiliencePolicy\nmetadata: {{name: default}}\nspec: {{{spec}}}\n"


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
        example=_policy("timeouts: {nonStreaming: {perTry: 2m, total: 5m}}"),
        fix="Raise total to (1 + attempts) x perTry.",
    ),
    Code(
        code="SG102",
        title="try shorter than wait and service",
        meaning="A try is given up while its request, healthy, still waits or runs. The work is thrown away and done "
        "again, which makes the queue longer, which ends more tries. Seen to turn 86 % goodput into 62 %.",
        example=_policy("timeouts: {nonStreaming: {perTry: 9s}}"),
        fix="Raise perTry to maxWait plus the longest service time, or remove it.",
    ),
    Code(
        code="SG103",
        title="try shorter than a long answer",
        meaning="A non-streaming answer sends nothing until all of it exists. This limit kills long generations even "
        "on an idle engine, and has them begun again elsewhere.",
        example=_policy("timeouts: {nonStreaming: {perTry: 3s}}"),
        fix="Raise perTry above the longest service time, or remove it.",
    ),
    Code(
        code="SG104",
        title="total below wait and service",
        meaning="A healthy request that waits as long as it may and then runs as long as it may is cut.",
        example=_policy("timeouts: {nonStreaming: {total: 5s}}"),
        fix="Raise total, or lower maxWait.",
    ),
    Code(
        code="SG105",
        title="silence shorter than the allowed wait",
        meaning="A stream is silent while its request waits in the engine's queue and during a prefill. This limit "
        "cuts it there.",
        example=_policy("timeouts: {streaming: {betweenTokens: 2s}}"),
        fix="Raise the limit above maxWait plus the longest engine step (probe.stallAfter).",
    ),
    Code(
        code="SG106",
        title="wait near the deadline",
        meaning="Waiting may take more than 0.6 of what the deadline leaves after the longest service. Where the "
        "service time is guessed a little too low, answers come too late and their GPU time is lost: a cliff, not a "
        "slope.",
        example=_policy("timeouts: {nonStreaming: {total: 10s}}"),
        fix="Lower maxWait to 0.6 x (total - longest service time), or less; a maxWait that is written and too long is refused (SG042).",
    ),
    Code(
        code="SG107",
        title="drain shorter than a stream",
        meaning="When an engine is drained, streams that are still allowed to run are cut.",
        example=_policy("drain: {deadline: 30s}"),
        fix="Raise drain.deadline to streaming.total, or accept it.",
    ),
    Code(
        code="SG108",
        title="first-token limit without gate",
        meaning="Stock vLLM sends headers before the first token exists. For Envoy the answer has then begun: all it sees is silence. The longer of firstToken and betweenTokens is allowed, then the stream is cut, not tried elsewhere.",
        example=_policy("timeouts: {streaming: {firstToken: 10s}}"),
        fix="Install the first-token gate and say firstTokenGate: true, or rely on betweenTokens.",
    ),
)

_RETRIES: Final = (
    Code(
        code="SG110",
        title="amplification",
        meaning="The worst case of tries and hedges multiplies GPU work; the message has the number.",
        example=_policy("retries: {attempts: 8}"),
        fix="Three attempts without hedging, one with it.",
    ),
    Code(
        code="SG111",
        title="retry that repeats GPU work",
        meaning="The condition holds after the engine has worked, so the work is done twice; a prompt that breaks "
        "engines tours the fleet. `reset` is not warned of: it is what rescues requests of hung and crashed engines.",
        example=_policy("retries: {conditions: [connect-failure, 5xx]}"),
        fix="Keep to connect-failure, refused-stream and reset, and leave statuses out: 500 is then retried except "
        "where nearly all engines fail at once.",
    ),
    Code(
        code="SG112",
        title="budget that allows nothing",
        meaning="The retry budget is shut, so the attempts that are configured never happen.",
        example=_policy("retryBudget: {percent: 0, minConcurrency: 0}"),
        fix="Open the budget, or set attempts to 0.",
    ),
    Code(
        code="SG113",
        title="open budget without ceiling",
        meaning="The admission ceiling is what stops retry storms. With limits this wide there is none, and the retry "
        "budget is open too.",
        example=_policy("limits: {concurrentPerSlot: 100}"),
        fix="Lower the limits, or retryBudget.percent to 20.",
    ),
    Code(
        code="SG114",
        title="hedging that never comes",
        meaning="Hedging is enabled, and another field of it leaves no room for a single hedge.",
        example=_policy("hedging: {enabled: true, delay: 1s, belowUtilizationPercent: 0}"),
        fix="belowUtilizationPercent 60 and maxPercent 5, or turn hedging off.",
    ),
    Code(
        code="SG115",
        title="hedging without cap",
        meaning="Hedges are allowed for a large share of requests, or while the pool is full.",
        example=_policy("hedging: {enabled: true, delay: 1s, maxPercent: 100}"),
        fix="maxPercent 5, belowUtilizationPercent 60.",
    ),
    Code(
        code="SG117",
        title="hedging blind to streams",
        meaning="Without the first-token gate, headers end Envoy's wait at once: streams are never hedged, and "
        "non-streaming requests repeat the whole generation.",
        example=_policy("hedging: {enabled: true, delay: 1s}"),
        fix="Install the gate and say firstTokenGate: true, or turn hedging off.",
    ),
    Code(
        code="SG118",
        title="limit that hedging replaces",
        meaning="A hedge runs on Envoy's timer of one try, spends its retry budget and counts as a local failure. So "
        "while hedging is on, perTry and firstToken end no try and hedging.maxPercent bounds retries, too; and where "
        "it is enabled at all, connection failures in a row eject no engine.",
        example=_policy("hedging: {enabled: true, delay: 1s}, timeouts: {nonStreaming: {perTry: 1m}}"),
        fix="Remove the limit, or turn hedging off.",
    ),
)

_CAPACITY: Final = (
    Code(
        code="SG120",
        title="zone with no capacity to lose",
        meaning="Without its largest zone the pool is below its own capacity floor; or nothing may leave a zone that "
        "has one engine.",
        example=_example(
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
        example=_example("kind: EnginePool\nspec: {model: llama, endpoints: [{address: 10.0.0.1, port: 8000}]}\n"),
        fix="Add an engine, or give its routes a fallback.",
    ),
    Code(
        code="SG122",
        title="no engine",
        meaning="The pool is empty.",
        example=_example("kind: EnginePool\nspec: {model: llama}\n"),
        fix="List its engines.",
    ),
    Code(
        code="SG123",
        title="floor of 0",
        meaning="Errors or slowness may take every engine out: the pool panics itself empty.",
        example=_policy("breaker: {capacityFloorPercent: 0}"),
        fix="50; dead and hung engines leave in any case.",
    ),
    Code(
        code="SG124",
        title="floor of 100",
        meaning="The breaker never ejects: an engine that fails every call keeps its share of them.",
        example=_policy("breaker: {capacityFloorPercent: 100}"),
        fix="50, unless ejecting is to be off.",
    ),
    Code(
        code="SG125",
        title="shares of more than everything",
        meaning="A pool serves both priority classes, and they are promised more than 100 % together. Both then get less in proportion; shares below 100 % waste nothing, because what is free is lent.",
        example=_example(
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
        example=_policy("limits: {maxWait: 1s, maxConcurrent: 20}"),
        fix="Remove one; `maxConcurrent: null` takes back what a layer below said.",
    ),
    Code(
        code="SG127",
        title="engine in two pools",
        meaning="Each pool admits as much as the engine holds, so together they admit twice that.",
        example=_example(
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
        example=_example(
            "kind: EnginePool\nspec:\n  model: llama\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.2, port: 8000, weight: 2}\n"
        ),
        fix="Say slots.",
    ),
    Code(
        code="SG129",
        title="probe off",
        meaning="Only a probe sees an engine that hangs while its /health answers 200.",
        example=_example(
            "kind: EnginePool\nspec:\n  model: llama\n  probe: {enabled: false}\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.2, port: 8000}\n"
        ),
        fix="Leave it on.",
    ),
)

_ROUTES: Final = (
    Code(
        code="SG130",
        title="pool that is not reached",
        meaning="No route leads to the pool.",
        example=_example(
            "kind: EnginePool\nmetadata: {name: forgotten}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n"
        ),
        fix="Write a route for it.",
    ),
    Code(
        code="SG131",
        title="fallback that is a target",
        meaning="The fallback is one of the pools it should stand in for.",
        example=_example(
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}], fallback: chat}\n"
        ),
        fix="Name another pool.",
    ),
    Code(
        code="SG132",
        title="pools with different rules",
        meaning="Retries, timeouts and hedging belong to a route in Envoy. A route with several pools is ruled by the policy of the first one.",
        example=_example(
            "kind: EnginePool\nmetadata: {name: canary}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}, {pool: canary, weight: 5}]}\n---\n"
            "kind: ResiliencePolicy\nmetadata: {name: canary}\nspec: {pools: [canary], retries: {attempts: 1}}\n"
        ),
        fix="One policy for both pools, or one route for each.",
    ),
    Code(
        code="SG133",
        title="engine on Envoy's port",
        meaning="An engine on loopback has the port that Envoy listens on: on one machine they exclude each other.",
        example=_example(
            "kind: EnginePool\nmetadata: {name: chat}\n"
            "spec: {model: a, endpoints: [{address: 127.0.0.1, port: 8000}, {address: 127.0.0.1, port: 8001}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 8000}, pools: [{pool: chat}]}\n"
        ),
        fix="Give one of them another port.",
    ),
    Code(
        code="SG134",
        title="fallback that is never used",
        meaning="The fallback serves another model, and modelChange says that no caller ever gets one.",
        example=_example(
            "kind: EnginePool\nmetadata: {name: small}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}], fallback: small, modelChange: never}\n"
        ),
        fix="Name a fallback of the same model, or say modelChange: opt-in or disclosed.",
    ),
    Code(
        code="SG135",
        title="nothing to opt in to",
        meaning="Callers are to opt in to another model, but the route can lead to no other.",
        example=_example(
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}], modelChange: opt-in}\n"
        ),
        fix="Name a fallback of another model, or leave modelChange out.",
    ),
    Code(
        code="SG136",
        title="hedges for what must not run twice",
        meaning="The pool hedges, and the route's requests have side effects: of those only the ones that carry an Idempotency-Key are hedged.",
        example=_example(
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}], sideEffects: true}\n---\n"
            "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {hedging: {enabled: true, delay: 1s}}\n"
        ),
        fix="Have callers send an Idempotency-Key, or mark single requests instead of the route.",
    ),
    Code(
        code="SG137",
        title="split between models",
        meaning="Part of the requests for a model is always served by another one, and nothing tells their callers: only fallbacks are disclosed.",
        example=_example(
            "kind: EnginePool\nmetadata: {name: small}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}, {pool: small, weight: 5}]}\n"
        ),
        fix="Make it the fallback, or give each model a route.",
    ),
)

_DEGRADATION: Final = (
    Code(
        code="SG140",
        title="levels out of order",
        meaning="A level of the ladder is to begin at a lower pressure than the one before it. Levels are entered one after another, so it begins where that one does.",
        example=_policy("degradation: {fallback: {abovePressurePercent: 150}}"),
        fix="Let abovePressurePercent rise from noHedging to fallback, shed and maintenance.",
    ),
    Code(
        code="SG141",
        title="fallback level without a fallback",
        meaning="The policy says when the fallback takes what does not fit, but no route to the pool has one.",
        example=_policy("degradation: {fallback: {maxSharePercent: 50}}"),
        fix="Name a fallback in the route, or leave it out.",
    ),
    Code(
        code="SG142",
        title="nothing to shed",
        meaning="Level 3 refuses batch requests and long answers. The pool has no batch route, and no length is named.",
        example=_policy("degradation: {shed: {abovePressurePercent: 120}}"),
        fix="Say shed.maxTokens, or priority: batch in the routes that can wait.",
    ),
    Code(
        code="SG143",
        title="maintenance too early",
        meaning="Everyone gets the maintenance answer at a pressure at which the pool still serves much of what is asked; the ceiling would refuse only the rest.",
        example=_policy("degradation: {maintenance: {enabled: true, abovePressurePercent: 150}}"),
        fix="1000, or leave maintenance to an operator.",
    ),
    Code(
        code="SG144",
        title="ladder that goes to and fro",
        meaning="A level is left sooner than the pressure can show what leaving it does, or at the very pressure at which it is entered.",
        example=_policy("degradation: {leaveAfter: 500ms}"),
        fix="leaveAfter 5s, marginPercent 10.",
    ),
)

_CLUSTER: Final = (
    Code(
        code="SG150",
        title="odd engine in the cluster",
        meaning="A pod that belongs to the pool has an annotation that says nothing usable, or cannot be an engine at all. The engine keeps the default, or is left out; the pool is served.",
        situation="a pod with the annotation `switchgear.dev/slots: many`",
        fix="Correct the annotation, the pod's ports, or the ports of spec.kubernetes.",
    ),
    Code(
        code="SG151",
        title="object not served as it is",
        meaning="An object of the cluster is not served as it now is. It is served as it was last accepted, or not at all; other objects are not affected.",
        situation="`kubectl edit enginepool chat`, with a slip",
        fix="Read the reason in the object's status, and apply a corrected one.",
    ),
)

_REGIONS: Final = (
    Code(
        code="SG160",
        title="route that may go nowhere",
        meaning="The route names the regions that may see its requests, and none of its pools has an engine there. Every request is answered 503.",
        example=_example(
            "kind: EnginePool\nmetadata: {name: two}\nspec: {model: m, endpoints: ["
            "{address: 10.1.0.1, port: 80, region: eu}, {address: 10.1.0.2, port: 80, region: us}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}], allowedRegions: [ap]}\n"
        ),
        fix="Say the region of the engines that are there, or send the route to other pools.",
    ),
    Code(
        code="SG161",
        title="region without engines",
        meaning="A region is named in which no engine of the pool is: most likely a slip.",
        example=_example(
            "kind: EnginePool\nmetadata: {name: two}\nspec: {model: m, endpoints: ["
            "{address: 10.1.0.1, port: 80, region: eu}, {address: 10.1.0.2, port: 80, region: us}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}], allowedRegions: [eu, uss]}\n"
        ),
        fix="Correct the name, or leave it out.",
    ),
    Code(
        code="SG162",
        title="engines that no bound route can use",
        meaning="An engine that says no region is in none, so a route that names regions never goes there.",
        example=_example(
            "kind: EnginePool\nmetadata: {name: two}\nspec: {model: m, endpoints: ["
            "{address: 10.1.0.1, port: 80, region: eu}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}], allowedRegions: [eu]}\n"
        ),
        fix="Say the region of every endpoint.",
    ),
    Code(
        code="SG163",
        title="region that nobody may stand in for",
        meaning="No other region serves the revision of this one, and regions.acrossRevisions keeps others out. When the region is lost its callers get 503.",
        example=_example(
            "kind: EnginePool\nmetadata: {name: two}\nspec: {model: m, endpoints: ["
            "{address: 10.1.0.1, port: 80, region: eu, revision: 1.4.0}, {address: 10.1.0.2, port: 80, region: us, revision: 2.0.1}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}]}\n"
        ),
        fix="Serve the same major revision in two regions, or say regions.acrossRevisions: any.",
    ),
)

ADVICE: Final = (*_TIMING, *_RETRIES, *_CAPACITY, *_ROUTES, *_DEGRADATION, *_CLUSTER, *_REGIONS)
