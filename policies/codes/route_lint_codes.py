"""Codes of advice on routes, degradation, clusters and regions: where requests go, and where when things fail."""

# ruff: noqa: E501 - a table of prose and of examples that are shown as they stand

from typing import Final

from policies.codes.code import Code, as_file, policy_of

_ROUTES: Final = (
    Code(
        code="SG130",
        title="pool that is not reached",
        meaning="No route leads to the pool.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: forgotten}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n"
        ),
        fix="Write a route for it.",
    ),
    Code(
        code="SG131",
        title="fallback that is a target",
        meaning="The fallback is one of the pools it should stand in for.",
        example=as_file("kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}], fallback: chat}\n"),
        fix="Name another pool.",
    ),
    Code(
        code="SG132",
        title="pools with different rules",
        meaning="Retries, timeouts and hedging belong to a route in Envoy. A route with several pools is ruled by the policy of the first one.",
        example=as_file(
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
        example=as_file(
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
        example=as_file(
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
        example=as_file(
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}], modelChange: opt-in}\n"
        ),
        fix="Name a fallback of another model, or leave modelChange out.",
    ),
    Code(
        code="SG136",
        title="hedges for what must not run twice",
        meaning="The pool hedges, and the route's requests have side effects: of those only the ones that carry an Idempotency-Key are hedged.",
        example=as_file(
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}], sideEffects: true}\n---\n"
            "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {hedging: {enabled: true, delay: 1s}}\n"
        ),
        fix="Have callers send an Idempotency-Key, or mark single requests instead of the route.",
    ),
    Code(
        code="SG137",
        title="split between models",
        meaning="Part of the requests for a model is always served by another one, and nothing tells their callers: only fallbacks are disclosed.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: small}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}, {pool: small, weight: 5}]}\n"
        ),
        fix="Make it the fallback, or give each model a route.",
    ),
    Code(
        code="SG138",
        title="header that never arrives",
        meaning="The route asks for a header that only Envoy may write. Listeners take it out of what callers send before a route is chosen, so the condition always comes out the same.",
        example=as_file(
            "kind: ModelRoute\nspec:\n  listener: {port: 80}\n"
            "  match: {headers: [{name: x-envoy-force-trace, exact: 'true'}]}\n  pools: [{pool: chat}]\n"
        ),
        fix="Have callers send a header of another name.",
    ),
)

_DEGRADATION: Final = (
    Code(
        code="SG140",
        title="levels out of order",
        meaning="A level of the ladder is to begin at a lower pressure than the one before it. Levels are entered one after another, so it begins where that one does.",
        example=policy_of("degradation: {fallback: {abovePressurePercent: 150}}"),
        fix="Let abovePressurePercent rise from noHedging to fallback, shed and maintenance.",
    ),
    Code(
        code="SG141",
        title="fallback level without a fallback",
        meaning="The policy says when the fallback takes what does not fit, but no route to the pool has one.",
        example=policy_of("degradation: {fallback: {maxSharePercent: 50}}"),
        fix="Name a fallback in the route, or leave it out.",
    ),
    Code(
        code="SG142",
        title="nothing to shed",
        meaning="Level 3 refuses batch requests and long answers. The pool has no batch route, and no length is named.",
        example=policy_of("degradation: {shed: {abovePressurePercent: 120}}"),
        fix="Say shed.maxTokens, or priority: batch in the routes that can wait.",
    ),
    Code(
        code="SG143",
        title="maintenance too early",
        meaning="Everyone gets the maintenance answer at a pressure at which the pool still serves much of what is asked; the ceiling would refuse only the rest.",
        example=policy_of("degradation: {maintenance: {enabled: true, abovePressurePercent: 150}}"),
        fix="1000, or leave maintenance to an operator.",
    ),
    Code(
        code="SG144",
        title="ladder that goes to and fro",
        meaning="A level is left sooner than the pressure can show what leaving it does, or at the very pressure at which it is entered.",
        example=policy_of("degradation: {leaveAfter: 500ms}"),
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
        example=as_file(
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
        example=as_file(
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
        example=as_file(
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
        example=as_file(
            "kind: EnginePool\nmetadata: {name: two}\nspec: {model: m, endpoints: ["
            "{address: 10.1.0.1, port: 80, region: eu, revision: 1.4.0}, {address: 10.1.0.2, port: 80, region: us, revision: 2.0.1}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}]}\n"
        ),
        fix="Serve the same major revision in two regions, or say regions.acrossRevisions: any.",
    ),
)

ON_ROUTES: Final = (*_ROUTES, *_DEGRADATION, *_CLUSTER, *_REGIONS)
