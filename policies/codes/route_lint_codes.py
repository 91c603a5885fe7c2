"""Codes of warnings about routes, degradation, clusters and regions."""

# ruff: noqa: E501 - a table of prose and examples

from typing import Final

from policies.codes.code import Code, as_file, policy_of

_ROUTES: Final = (
    Code(
        code="SG130",
        title="unreachable pool",
        meaning="No route leads to the pool.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: forgotten}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n"
        ),
        fix="Add it to a route.",
    ),
    Code(
        code="SG132",
        title="pools with different rules",
        meaning="Envoy configures retries, timeouts and hedging per route: the policy of the first pool decides.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: canary}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}, {pool: canary, weight: 5}]}\n---\n"
            "kind: ResiliencePolicy\nmetadata: {name: canary}\nspec: {pools: [canary], retries: {attempts: 1}}\n"
        ),
        fix="Use one policy for both pools, or one route for each.",
    ),
    Code(
        code="SG133",
        title="engine on Envoy's port",
        meaning="An engine on loopback uses the port that Envoy listens on; on one machine they exclude each other.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: chat}\n"
            "spec: {model: a, endpoints: [{address: 127.0.0.1, port: 8000}, {address: 127.0.0.1, port: 8001}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 8000}, pools: [{pool: chat}]}\n"
        ),
        fix="Change one of the ports.",
    ),
    Code(
        code="SG134",
        title="unused fallback",
        meaning="The fallback serves another model, and modelChange: never forbids that.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: small}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}], fallbacks: [small], modelChange: never}\n"
        ),
        fix="Use a fallback of the same model, or set modelChange to opt-in or disclosed.",
    ),
    Code(
        code="SG135",
        title="opt-in without effect",
        meaning="modelChange is opt-in, but the route has no other model.",
        example=as_file(
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}], modelChange: opt-in}\n"
        ),
        fix="Use a fallback with another model, or remove modelChange.",
    ),
    Code(
        code="SG136",
        title="hedges despite side effects",
        meaning="The pool hedges, and the route's requests have side effects: only those with an Idempotency-Key are hedged.",
        example=as_file(
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}], sideEffects: true}\n---\n"
            "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {hedging: {enabled: true, delay: 1s}}\n"
        ),
        fix="Send an Idempotency-Key, or mark single requests instead of the route.",
    ),
    Code(
        code="SG137",
        title="split between models",
        meaning="Another model always serves part of the requests, without notice to callers: only fallbacks are disclosed.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: small}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}, {pool: small, weight: 5}]}\n"
        ),
        fix="Make it the fallback, or add a route for each model.",
    ),
    Code(
        code="SG138",
        title="header removed by Envoy",
        meaning="The route matches a header that only Envoy may write (`x-envoy-*`), or a name with an underscore. Listeners remove it from requests before a route is chosen, so the match always has the same result.",
        example=as_file(
            "kind: ModelRoute\nspec:\n  listener: {port: 80}\n"
            "  match: {headers: [{name: x-envoy-force-trace, exact: 'true'}]}\n  pools: [{pool: chat}]\n"
        ),
        fix="Match a header with another name.",
    ),
    Code(
        code="SG139",
        title="listener on a reserved port",
        meaning="The listener has the default port of another process of Switchgear or of Envoy's admin interface. Where both run on one host, Envoy cannot bind the port and refuses the listener (NACK): the route serves nothing.",
        example=as_file("kind: ModelRoute\nspec: {listener: {port: 9901}, pools: [{pool: chat}]}\n"),
        fix="Use another port, or move the other process with the flag that the message names.",
    ),
)

_DEGRADATION: Final = (
    Code(
        code="SG140",
        title="levels out of order",
        meaning="A degradation level begins at a lower pressure than the level before it. Levels are entered in order, so it begins where that one does.",
        example=policy_of("degradation: {fallback: {abovePressurePercent: 150}}"),
        fix="Raise abovePressurePercent from noHedging to fallback, shed and maintenance.",
    ),
    Code(
        code="SG141",
        title="fallback level without fallback",
        meaning="The policy sets when overflow goes to the fallback, but no route to the pool has one.",
        example=policy_of("degradation: {fallback: {maxSharePercent: 50}}"),
        fix="Set a fallback in the route, or remove the level.",
    ),
    Code(
        code="SG142",
        title="nothing to shed",
        meaning="Level 3 refuses batch requests and long answers. The pool has no batch route, and shed.maxTokens is not set. Or shed.longAnswers is set without shed.maxTokens.",
        example=policy_of("degradation: {shed: {abovePressurePercent: 120}}"),
        fix="Set shed.maxTokens, or priority: batch in routes that can wait.",
    ),
    Code(
        code="SG143",
        title="early maintenance",
        meaning="All callers get the maintenance answer at a pressure where the pool still serves many requests; the admission limit would refuse only the rest.",
        example=policy_of("degradation: {maintenance: {enabled: true, abovePressurePercent: 150}}"),
        fix="Write 1000, or leave maintenance to operators.",
    ),
    Code(
        code="SG144",
        title="oscillating levels",
        meaning="A level is left before the pressure can react, or at the pressure that enters it.",
        example=policy_of("degradation: {leaveAfter: 500ms}"),
        fix="Set leaveAfter: 5s and marginPercent: 10.",
    ),
    Code(
        code="SG145",
        title="objective that cannot be met",
        meaning="A limit of spec.objectives is below what the policies of a target pool allow: requests may wait longer for a slot than firstToken allows, or serviceTime is longer than total. Under load the objective is missed although everything works.",
        example=as_file(
            "kind: ModelRoute\nspec:\n  listener: {port: 80}\n  pools: [{pool: chat}]\n"
            "  objectives: {total: {p99: 100ms}}\n"
        ),
        fix="Raise the limit, or lower limits.maxWait (firstToken) or serviceTime (total) if the engines are faster.",
    ),
    Code(
        code="SG146",
        title="first-token objective without gate",
        meaning="objectives.firstToken measures the first byte. Without the first-token gate vLLM sends headers before the first token, so the objective is met even when no token ever comes.",
        example=as_file(
            "kind: ModelRoute\nspec:\n  listener: {port: 80}\n  pools: [{pool: chat}]\n"
            "  objectives: {firstToken: {p99: 5s}}\n"
        ),
        fix="Install the gate and set `firstTokenGate: true` on the pool, or use objectives.total.",
    ),
    Code(
        code="SG147",
        title="time between tokens without agents",
        meaning="objectives.betweenTokens is measured by agents, which read their engine's histogram. No engine of the pool has an agent, so the objective never has a measurement, and no alert can fire.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: llama\n  endpoints:\n    - {address: 10.0.0.1, port: 8000}\n"
            "  objectives: {betweenTokens: {p99: 100ms}}\n"
        ),
        fix="Run agents and set `agentPort` of the engines, or remove betweenTokens.",
    ),
    Code(
        code="SG148",
        title="static answer instead of the fallback",
        meaning="staticAnswer.fromLevel is 1 or 2, and the route has a fallback. From that level on Envoy answers every request itself, so no overflow reaches the fallback at level 2.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: small}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec:\n  listener: {port: 80}\n  pools: [{pool: chat}]\n  fallbacks: [small]\n"
            "  staticAnswer: {fromLevel: 2, body: '{}'}\n"
        ),
        fix="Write fromLevel: 3, or remove fallbacks.",
    ),
    Code(
        code="SG149",
        title="static answer that is not JSON",
        meaning="staticAnswer.contentType is application/json, the default, and the body is not JSON. Envoy sends it as it is, and clients fail to parse it.",
        example=as_file(
            "kind: ModelRoute\nspec:\n  listener: {port: 80}\n  pools: [{pool: chat}]\n"
            "  staticAnswer: {body: Back at noon.}\n"
        ),
        fix="Write JSON, or set `contentType: text/plain`.",
    ),
)

_CLUSTER: Final = (
    Code(
        code="SG150",
        title="invalid engine in the cluster",
        meaning="A pod of the pool has an invalid annotation, or cannot be an engine. The engine gets the default or is left out; the pool is served.",
        situation="a pod with the annotation `switchgear.dev/slots: many`",
        fix="Correct the annotation, the pod's ports, or the ports in spec.kubernetes.",
    ),
    Code(
        code="SG151",
        title="object not in force",
        meaning="The current version of an object is refused. Its last accepted version stays in force, if any; other objects are not affected.",
        situation="`kubectl edit enginepool chat`, with a typing error",
        fix="Read the reason in the object's status, and apply a corrected object.",
    ),
)

_REGIONS: Final = (
    Code(
        code="SG160",
        title="route without engines",
        meaning="The route allows only regions in which its pools have no engine. Every request gets 503.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: two}\nspec: {model: m, endpoints: ["
            "{address: 10.1.0.1, port: 80, region: eu}, {address: 10.1.0.2, port: 80, region: us}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}], allowedRegions: [ap]}\n"
        ),
        fix="Set the region of the endpoints, or use other pools.",
    ),
    Code(
        code="SG161",
        title="unknown region",
        meaning="No engine of the pool is in a named region: probably a typing error.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: two}\nspec: {model: m, endpoints: ["
            "{address: 10.1.0.1, port: 80, region: eu}, {address: 10.1.0.2, port: 80, region: us}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}], allowedRegions: [eu, uss]}\n"
        ),
        fix="Correct or remove the region.",
    ),
    Code(
        code="SG162",
        title="engines without a region",
        meaning="An engine without a region gets no requests from a route that names regions.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: two}\nspec: {model: m, endpoints: ["
            "{address: 10.1.0.1, port: 80, region: eu}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}], allowedRegions: [eu]}\n"
        ),
        fix="Set the region of every endpoint.",
    ),
    Code(
        code="SG163",
        title="region without replacement",
        meaning="No other region serves this revision, and regions.acrossRevisions excludes the others. If the region fails, its callers get 503.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: two}\nspec: {model: m, endpoints: ["
            "{address: 10.1.0.1, port: 80, region: eu, revision: 1.4.0}, {address: 10.1.0.2, port: 80, region: us, revision: 2.0.1}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}]}\n"
        ),
        fix="Serve the same major revision in two regions, or set regions.acrossRevisions: any.",
    ),
    Code(
        code="SG164",
        title="connect shorter than a round trip",
        meaning="The pool has engines in several regions, and connections to a distant one take longer than timeouts.connect allows. Its engines look dead to proxies of the other regions.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: two}\nspec: {model: m, endpoints: ["
            "{address: 10.1.0.1, port: 80, region: eu}, {address: 10.1.0.2, port: 80, region: us}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}]}\n"
        ),
        fix="Set timeouts.connect: 1s for the pool.",
    ),
)


def _with_affinity(affinity: str, more: str = "") -> str:
    engines = ", ".join(f"{{address: 10.1.0.{number}, port: 80}}" for number in (1, 2, 3))
    return as_file(
        f"kind: EnginePool\nmetadata: {{name: three}}\nspec: {{model: a, endpoints: [{engines}]}}\n---\n"
        "kind: ModelRoute\n"
        f"spec: {{listener: {{port: 80}}, pools: [{{pool: three}}], affinity: {{{affinity}}}}}\n{more}"
    )


_AFFINITY: Final = (
    Code(
        code="SG165",
        title="affinity to few engines",
        meaning="A target pool of a route with affinity has fewer than three engines. When one leaves, half of the keys move at once, or all.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: two}\n"
            "spec: {model: a, endpoints: [{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: two}], affinity: {prefix: {}}}\n"
        ),
        fix="Add engines, or remove affinity.",
    ),
    Code(
        code="SG166",
        title="affinity by a useless header",
        meaning="The header of affinity never reaches Envoy's load balancer, or differs in each request. Requests are then balanced as without a key. With `mode: strict` answers set the header, so it must be one of its own.",
        example=_with_affinity("header: x-request-id"),
        fix="Use a header that names the session.",
    ),
    Code(
        code="SG167",
        title="affinity with hedging",
        meaning="A hedge runs on another engine, which has neither the session nor the prefix in its cache: it costs a full prefill.",
        example=_with_affinity(
            "prefix: {}",
            "---\nkind: ResiliencePolicy\nmetadata: {name: three}\nspec: {pools: [three], hedging: {enabled: true, delay: 2s}}\n",
        ),
        fix="Disable hedging for the pool, or remove affinity.",
    ),
    Code(
        code="SG168",
        title="two settings of one pool",
        meaning="Routes with different slackPercent, or returnAfter, lead to one pool. Envoy has one table of keys for each pool, with the smallest of them.",
        example=_with_affinity(
            "header: x-session, slackPercent: 50",
            "---\nkind: ModelRoute\nmetadata: {name: other}\n"
            "spec: {listener: {port: 80}, match: {pathPrefix: /other}, pools: [{pool: three}], affinity: {header: x-session}}\n",
        ),
        fix="Set the same values in these routes.",
    ),
    Code(
        code="SG169",
        title="affinity setting without effect",
        meaning="`slackPercent` bounds the load of keys with `mode: soft`, and `returnAfter` holds them back. `moveWithin` moves sessions of `mode: strict`.",
        example=_with_affinity("mode: strict, header: x-session, slackPercent: 50"),
        fix="Remove the setting, or set the other mode.",
    ),
)


def _with_adapter(model: str, more: str = "") -> str:
    return as_file(
        f"kind: EnginePool\nmetadata: {{name: two}}\nspec: {{model: base, {more}endpoints: ["
        "{address: 10.1.0.1, port: 80}, {address: 10.1.0.2, port: 80}]}\n---\n"
        f"kind: ModelRoute\nspec: {{listener: {{port: 80}}, match: {{model: {model}}}, pools: [{{pool: two}}], "
        "adapter: true}\n"
    )


_ADAPTERS: Final = (
    Code(
        code="SG158",
        title="adapter named like a model",
        meaning="The route has adapter: true, and match.model is the model of its pool. No engine lists an adapter by this name, so requests get 503.",
        example=_with_adapter("base"),
        fix="Remove adapter, or set match.model to the name of the adapter.",
    ),
    Code(
        code="SG159",
        title="adapters of unread engines",
        meaning="The pool has neither probes nor agents. Which engine has the adapter is unknown, so requests go to every engine, and those without it answer 404.",
        example=_with_adapter("sql", "probe: {enabled: false}, "),
        fix="Enable the probe, or run agents.",
    ),
    Code(
        code="SG156",
        title="adapter loaded for no route",
        meaning="The pool has engines load an adapter, and no route with adapter: true asks the pool for it. Its requests go to every engine, or get 404.",
        example=_with_adapter("sql", "adapters: [{name: law, path: /adapters/law}], "),
        fix="Add a route with adapter: true and this name as match.model, or remove the adapter.",
    ),
    Code(
        code="SG157",
        title="adapter for more engines than there are",
        meaning="An adapter of the pool wants more engines than the pool has.",
        example=_with_adapter("sql", "adapters: [{name: sql, path: /adapters/sql, engines: 3}], "),
        fix="Remove engines (default: all), or add engines to the pool.",
    ),
)


def _staged(prefill: str, decode: str, route: str = ", prefill: {pool: first}", more: str = "") -> str:
    return as_file(
        f"kind: EnginePool\nmetadata: {{name: first}}\nspec: {{model: base, stage: prefill, {prefill}}}\n---\n"
        f"kind: EnginePool\nmetadata: {{name: chat}}\nspec: {{model: base, stage: decode, {decode}}}\n---\n"
        f"kind: ModelRoute\nspec: {{listener: {{port: 80}}, pools: [{{pool: chat}}]{route}}}\n{more}"
    )


_ENGINE: Final = "endpoints: [{address: 10.0.0.1, port: 80, zone: a}]"

_STAGES: Final = (
    Code(
        code="SG152",
        title="stage without partner",
        meaning="No route names the prefill pool, so its engines get no work; or no route to the decode pool has prefill, so its engines always prefill themselves.",
        example=_staged(_ENGINE, _ENGINE.replace("10.0.0.1", "10.0.0.2"), route=""),
        fix="Set spec.prefill in the route to the decode pool, or remove stage.",
    ),
    Code(
        code="SG153",
        title="no prefill engine in the zone",
        meaning="A zone has decode engines and no engine that prefills for them. Each KV cache crosses zones.",
        example=_staged(_ENGINE, _ENGINE.replace("10.0.0.1", "10.0.0.2").replace("zone: a", "zone: b")),
        fix="Put prefill engines into each zone with decode engines.",
    ),
    Code(
        code="SG154",
        title="hedges that prefill again",
        meaning="The decode pool hedges. A hedge runs on another decode engine, whose side-car lets a prefill engine compute the prompt a second time.",
        example=_staged(
            _ENGINE,
            _ENGINE.replace("10.0.0.1", "10.0.0.2"),
            more=f"---\n{policy_of('hedging: {enabled: true, delay: 2s}, retries: {attempts: 1}')}",
        ),
        fix="Disable hedging for the decode pool, or remove prefill.",
    ),
    Code(
        code="SG155",
        title="unread prefill engines",
        meaning="The prefill pool has neither probes nor agents. No proxy sees calls to its engines, so nothing tells that one is dead: it stays named, and requests fail.",
        example=_staged(f"probe: {{enabled: false}}, {_ENGINE}", _ENGINE.replace("10.0.0.1", "10.0.0.2")),
        fix="Enable the probe, or run agents.",
    ),
    Code(
        code="SG176",
        title="prefill not compared",
        meaning="The route has prefill.whileFaster, and a pool of it has no first-token gate. Proxies then see no first token, only headers, which local prefill sends earlier. Nothing is compared for this pool, and prefill engines are named as without the field.",
        example=_staged(
            _ENGINE,
            _ENGINE.replace("10.0.0.1", "10.0.0.2"),
            route=", prefill: {pool: first, whileFaster: true}",
        ),
        fix="Install the gate and set firstTokenGate: true on the pool, or remove whileFaster.",
    ),
)

_JWKS: Final = "remoteJwks: {uri: 'https://idp.example.com/keys'}"


def _listener(fields: str, more: str = "") -> str:
    return as_file(
        f"kind: ModelRoute\nspec: {{listener: {{port: 80, {fields}}}, pools: [{{pool: chat}}]{more}}}\n"
    )


def _provider(fields: str) -> str:
    return _listener(f"jwt: {{providers: [{{name: idp, issuer: 'https://idp.example.com', {fields}}}]}}")


_CALLERS: Final = (
    Code(
        code="SG190",
        title="token keys over plain HTTP",
        meaning="Envoys fetch the keys of an issuer without TLS. An attacker on the way can answer with own keys, and then makes valid tokens.",
        example=_provider("audiences: [chat], remoteJwks: {uri: 'http://idp.example.com/keys'}"),
        fix="Use an https URI.",
    ),
    Code(
        code="SG191",
        title="tokens for any audience",
        meaning="A provider has no audiences. A token that the issuer wrote for another service is accepted, so that service can call the engines in the name of its callers.",
        example=_provider(_JWKS),
        fix="Set audiences.",
    ),
    Code(
        code="SG192",
        title="tokens in plain text",
        meaning="The listener requires tokens, has no TLS, and trusts no load balancer in front of it. Tokens can be read on the way and used by others.",
        example=_provider(f"audiences: [chat], {_JWKS}"),
        fix="Set listener.tls, or trustedHops where a load balancer ends TLS.",
    ),
    Code(
        code="SG193",
        title="open while authorization is lost",
        meaning="With failureModeAllow every caller is served while the authorization service cannot be asked. Who can disturb the service gets in.",
        example=_listener("extAuth: {address: authz, port: 9001, failureModeAllow: true}"),
        fix="Remove failureModeAllow.",
    ),
    Code(
        code="SG194",
        title="service out of reach",
        meaning="No Envoy can connect to the address of a service: it is unspecified, multicast or broadcast. Authorization then refuses all callers, and logs are lost.",
        example=_listener("extAuth: {address: 0.0.0.0, port: 9001}"),
        fix="Write the address or host name of the service.",
    ),
    Code(
        code="SG195",
        title="public without effect",
        meaning="The route is public, but its listener requires no token and no authorization.",
        example=_listener("address: 0.0.0.0", ", public: true"),
        fix="Remove public, or set listener.jwt or listener.extAuth.",
    ),
    Code(
        code="SG196",
        title="trusted header on an open port",
        meaning="The listener believes the header that names the tenant, trusts no proxy in front of it and asks no authorization service. A caller that reaches the port directly takes the quota of any tenant.",
        example=_listener("tenants: {header: x-tenant, trustHeader: true, others: {requests: 5}}"),
        fix="Write the header from a claim, or set trustedHops and let only that proxy reach the port.",
    ),
)

ON_ROUTES: Final = (*_ROUTES, *_DEGRADATION, *_CLUSTER, *_REGIONS, *_AFFINITY, *_ADAPTERS, *_STAGES, *_CALLERS)
