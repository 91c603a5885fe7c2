"""Generated policies: any field may be set, with values at and between its limits."""

from typing import Any

from hypothesis import strategies as st

HEADERS = st.sampled_from(["x-tier", "X-Tier", "x-tenant", ":method", ":authority", "accept"])
STATUSES = st.lists(st.sampled_from([400, 404, 429, 430, 499, 500, 502, 503, 504, 599]), unique=True, max_size=4)
CONDITIONS = [
    "connect-failure",
    "refused-stream",
    "reset-before-request",
    "reset",
    "gateway-error",
    "5xx",
    "retriable-4xx",
]
ZONES = st.sampled_from(["", "a", "zone-b", "Zone.C", "z" * 63, "y" * 100])


def durations(low: str, *more: str) -> st.SearchStrategy[str]:
    return st.sampled_from([low, *more])


def sometimes(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


PERCENT = st.sampled_from([0, 0.5, 33.3, 50, 99, 100])
MODE = st.sampled_from(["enforce", "shadow"])

POLICIES = sometimes(
    mode=MODE,
    breaker=sometimes(
        mode=MODE,
        errorRatePercent=PERCENT,
        windowCalls=st.sampled_from([8, 25, 100000]),
        interval=durations("100ms", "1.0001s", "10m"),
        consecutiveErrors=st.sampled_from([0, 1, 100000]),
        consecutiveLocalErrors=st.sampled_from([0, 2]),
        cooldown=durations("100ms", "60s"),
        localEjection=durations("100ms", "1s", "24h"),
        capacityFloorPercent=PERCENT,
        countStatuses=STATUSES,
    ),
    limits=sometimes(
        mode=MODE,
        maxWait=durations("0s", "2s", "1h"),
        concurrentPerSlot=st.sampled_from([0.01, 1000]),
        priorities=sometimes(batch=sometimes(sharePercent=PERCENT)),
        maxConnections=st.sampled_from([1, 4_000_000_000]),
    ),
    retries=sometimes(
        attempts=st.sampled_from([0, 1, 10]),
        conditions=st.lists(st.sampled_from(CONDITIONS), unique=True, max_size=7),
        statuses=STATUSES,
        backoff=st.just({"base": "0.1ms", "max": "60s"}),
        retryAfter=sometimes(honour=st.booleans(), max=durations("0.5ms", "2s")),
    ),
    retryBudget=sometimes(percent=PERCENT, minConcurrency=st.sampled_from([0, 12, 100_000])),
    timeouts=sometimes(
        connect=durations("0.1ms", "250ms", "60s"),
        streaming=sometimes(
            firstToken=durations("0s", "5s", "1h"),
            betweenTokens=durations("0s", "2s", "30s"),
            total=durations("0s", "15m", "24h"),
        ),
        nonStreaming=sometimes(perTry=durations("0s", "0.4ms", "3s"), total=durations("0s", "5m")),
    ),
    hedging=sometimes(enabled=st.booleans(), delay=durations("0.3ms", "1s"), maxPercent=PERCENT),
    zones=sometimes(preferLocal=st.booleans(), spill=st.booleans()),
    slowStart=sometimes(window=durations("0s", "0.5ms", "30s"), minWeightPercent=PERCENT),
)

ENGINES = st.fixed_dictionaries(
    {
        "address": st.sampled_from(["10.0.0.1", "fd00::1", "gpu-1.example.com"]),
        "port": st.sampled_from([3, 8000, 65535]),
    },
    optional={
        "zone": ZONES,
        "region": ZONES,
        "slots": st.sampled_from([1, 8, 65536]),
        "weight": st.sampled_from([1, 128]),
        "labels": st.sampled_from([{"app": "vllm"}, {"no label": "-", "fine/x": "y" * 70}]),
    },
)
KUBERNETES = st.sampled_from(
    [
        {"service": "engines", "port": 8000},
        {"service": "engines", "port": "api"},
        {"selector": {"app": "vllm"}, "port": 8000},
        {"selector": {"app": "vllm"}, "port": "api"},
    ]
)
MATCHES = sometimes(
    pathPrefix=st.sampled_from(["/", "/v1/", "/v1/chat"]),
    headers=st.lists(
        st.builds(
            lambda name, condition, invert: {"name": name, **condition, "invert": invert},
            HEADERS,
            st.sampled_from(
                [{}, {"exact": ""}, {"exact": "gold"}, {"prefix": "go"}, {"regex": "g.*"}, {"present": False}]
            ),
            st.booleans(),
        ),
        max_size=3,
    ),
    model=st.sampled_from(["llama", "meta/llama-3.1:70b"]),
    stream=st.booleans(),
)
TLS = st.builds(
    lambda asked, names: {"secret": "engines", "serverName": asked, "subjectAltNames": names},
    # Without serverName, engines at IP addresses need subjectAltNames.
    st.sampled_from(["engine.example.com", "Engine_1.Example.com", "y" * 63]),
    st.lists(
        st.sampled_from(
            [
                "a.example.com",
                "*.example.com",
                "A_b.example.com",
                "spiffe://x/*",
                "urn://" + "y" * 300,
                "b",
                "c",
                "d",
            ]
        ),
        unique=True,
        max_size=8,
    ),
)
NAMES = st.sampled_from(["p", "q", "a-pool-with-a-name-that-fills-all-the-sixty-three-places-of-it"])


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Documents that hold together: pools, a route or three, and up to two policies."""
    names = draw(st.lists(NAMES, unique=True, min_size=1, max_size=3))
    found: list[dict[str, Any]] = []
    for name in names:
        engines = draw(st.lists(ENGINES, max_size=3))
        # No two engines may share an address.
        engines = [
            {**one, "name": f"e{number}", "port": one["port"] - number} for number, one in enumerate(engines)
        ]
        spec: dict[str, Any] = {"model": draw(st.sampled_from(["llama", "other"])), "endpoints": engines}
        spec["firstTokenGate"] = draw(st.booleans())
        if draw(st.booleans()):
            spec["kubernetes"] = draw(KUBERNETES)
        if draw(st.booleans()):
            spec["tls"] = draw(TLS)
        found.append(_document("EnginePool", name, spec, draw))
    for number in range(draw(st.integers(0, 3))):
        spec = {
            "listener": {"port": draw(st.sampled_from([1, 8080, 65535]))},
            "match": draw(MATCHES),
            "pools": [
                {"pool": name, "weight": draw(st.sampled_from([0, 1, 1_000_000] if place else [7, 1_000_000]))}
                for place, name in enumerate(draw(st.lists(st.sampled_from(names), unique=True, min_size=1)))
            ],
            "priority": draw(st.sampled_from(["interactive", "batch"])),
            "sideEffects": draw(st.booleans()),
            "allowedRegions": draw(st.sampled_from([[], ["a"], ["a", "zone-b"], ["y" * 100]])),
        }
        found.append(_document("ModelRoute", f"r{number}", spec, draw))
    if draw(st.booleans()):
        found.append(_document("ResiliencePolicy", "default", draw(POLICIES), draw))
    if draw(st.booleans()):
        found.append(_document("ResiliencePolicy", "own", {**draw(POLICIES), "pools": names[:1]}, draw))
    return found


def _document(kind: str, name: str, spec: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    metadata = {"name": name}
    if kind == "EnginePool" and draw(st.booleans()):
        metadata["namespace"] = "models"
    return {"apiVersion": "switchgear.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
