"""A session stays on its engine for its life, and health wins, at a real Envoy."""

import base64
import io
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.with_envoy.translate.conftest import Rig, view, with_pools, write_routes
from tests.with_envoy.translate.recording_engine import Hearing
from tests.with_envoy.translate.test_affinity import policy
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.model.fleet import EngineId
from xds_server.model.type_urls import ENDPOINT
from xds_server.translate.envoy_json import as_json
from xds_server.translate.view_resources import translate

pytestmark = pytest.mark.envoy

ENGINES = 4
COOKIE = "{mode: strict, cookie: {name: chat, ttl: 1h}}"
HEADER = "{mode: strict, header: x-session}"


@pytest.fixture
async def engines() -> AsyncIterator[tuple[Hearing, ...]]:
    """Engines that say who they are, and keep the headers that they get."""
    found = tuple(Hearing(says={"x-engine": str(number)}) for number in range(ENGINES))
    runners = {one.port: runner for one in found for runner in (await one.listen(),)}
    for one in found:
        one.stop = runners[one.port].cleanup
    yield found
    for runner in runners.values():
        await runner.cleanup()


@dataclass
class Session:
    """A caller that sends back what the answers set, and no more."""

    rig: Rig
    token: str = ""
    tokens: list[str] = field(default_factory=list)

    async def ask(self, status: int = 200, headers: Mapping[str, str] | None = None) -> str:
        sent = {**(headers or {}), **({"cookie": f"a=b; chat={self.token}; c=d"} if self.token else {})}
        async with self.rig.client.post(
            f"{self.rig.url}/v1/completions", data=io.BytesIO(b"{}"), headers=sent
        ) as answer:
            assert answer.status == status, await answer.text()
            assert not [name for name in answer.headers if "switchgear-host" in name or "served-by" in name]
            if (cookie := answer.headers.get("set-cookie")) is not None:
                self.token = cookie.partition(";")[0].removeprefix("chat=")
                self.tokens.append(cookie)
            return answer.headers.get("x-engine", "")


async def sessions(rig: Rig, count: int = 16) -> dict[str, list[Session]]:
    """Fresh sessions by their engine."""
    found: dict[str, list[Session]] = {}
    for _ in range(count):
        one = Session(rig)
        found.setdefault(await one.ask(), []).append(one)
    return found


async def push(
    one: Rig,
    out: Mapping[str, Health],
    *,
    kept: Mapping[str, float] | None = None,
    weights: Mapping[str, int] | None = None,
    cuts: bool = False,
) -> None:
    """Pushes endpoints and routes with this health and kept sessions; returns when Envoy has them."""
    decided = {
        EngineId("p", name): EngineDecision(health=health, reason="", since_s=0.0) for name, health in out.items()
    }
    zones = {("p", ""): weights} if weights else {}
    sessions = {EngineId("p", name): percent for name, percent in (kept or {}).items()}
    decisions = replace(with_pools({"p": {"sessions": sessions}}, zone_weights=zones), engines=decided)
    items = translate(one.policies, one.fleet, decisions, view(cuts=cuts))
    taken = ("cluster.p.update_success", "http.port-8080.rds.port-8080.update_success")
    before = {name: (await one.envoy.stats(name))[name] for name in taken}
    one.push_endpoints({item.name: as_json(item) for item in items if item.type_url == ENDPOINT})
    write_routes(one.routes_path, items)

    async def seen() -> bool:
        return all([(await one.envoy.stats(name))[name] > before[name] for name in taken])

    await one.envoy.wait_for(seen, "knowing endpoints and routes")


async def start(
    rig, engines: Sequence[Hearing], affinity: str = COOKIE, *, cuts: bool = False, **more: str
) -> Rig:
    return await rig(policy(engines, affinity, **more), dynamic_endpoints=True, dynamic_routes=True, cuts=cuts)


@pytest.mark.parametrize("cuts", [False, True])
async def test_sessions_stay_and_new_ones_are_spread(rig, engines, cuts):
    one = await start(rig, engines, cuts=cuts)
    begun = await sessions(one, 40)
    assert set(begun) == {"0", "1", "2", "3"}
    for home, some in begun.items():
        for session in some:
            assert {await session.ask() for _ in range(3)} == {home}
            assert len(session.tokens) == 1, "only the first answer sets the cookie"


@pytest.mark.parametrize("cuts", [False, True])
async def test_ejected_engine_loses_its_sessions_and_gets_none_back(rig, engines, cuts):
    one = await start(rig, engines, cuts=cuts)
    begun = await sessions(one)
    await push(one, {"e0": Health.UNHEALTHY}, cuts=cuts)
    moved = {id(session): await session.ask() for session in begun["0"]}
    assert "0" not in moved.values()
    for home in "123":
        for session in begun.get(home, ()):
            assert await session.ask() == home, "sessions of other engines stay"
    await push(one, {}, cuts=cuts)
    for session in begun["0"]:
        assert await session.ask() == moved[id(session)], "a session that moved has a new home"


async def test_retry_elsewhere_does_not_move_the_session(rig, engines):
    one = await start(rig, engines)
    session = Session(one)
    home = int(await session.ask())
    engines[home].status = 503
    assert int(await session.ask()) != home
    engines[home].status = 200
    assert int(await session.ask()) == home, "one shed request does not move the session"


@pytest.mark.parametrize("cuts", [False, True])
async def test_draining_engine_keeps_a_part_of_its_sessions(rig, engines, cuts):
    one = await start(rig, engines, cuts=cuts)
    mine = (await sessions(one, 160))["0"]
    draining = {"e0": Health.DRAINING}
    await push(one, draining, kept={"e0": 100.0}, cuts=cuts)
    assert {await session.ask() for session in mine} == {"0"}
    assert "0" not in await sessions(one, 12), "it gets no new session"
    staying = []
    for percent in (60.0, 30.0):
        await push(one, draining, kept={"e0": percent}, cuts=cuts)
        staying.append(sum([await session.ask() == "0" for session in mine]))
    assert len(mine) > staying[0] > staying[1] > 0
    await push(one, draining, cuts=cuts)
    assert "0" not in {await session.ask() for session in mine}


async def test_zone_without_weight_keeps_its_sessions_and_gets_no_new_one(rig, engines):
    one = await start(rig, engines)
    begun = await sessions(one)
    await push(one, {}, weights={"b": 100})
    assert {await session.ask() for session in begun["0"]} == {"0"}
    assert set(await sessions(one, 12)) <= {"2", "3"}


async def test_two_gateways_agree_on_the_engine(rig, engines):
    one, other = await start(rig, engines), await start(rig, engines)
    for home, some in (await sessions(one, 12)).items():
        for session in some:
            session.rig = other
            assert await session.ask() == home


async def test_token_has_no_address_and_chooses_no_other_host(rig, engines):
    one = await start(rig, engines)
    session = Session(one)
    await session.ask()
    [cookie] = session.tokens
    assert cookie.endswith("; Max-Age=3600; Path=/; HttpOnly; SameSite=Lax")
    name, dot, part = session.token.partition(".")
    assert (len(bytes.fromhex(name)), dot, len(bytes.fromhex(part))) == (8, ".", 1)
    address = base64.b64encode(f"127.0.0.1:{engines[1].port}".encode()).decode()
    for token in (address, f"{'0' * 16}.00", "name.00", "", "x" * 5000):
        assert len(set(await asked_with(one, token))) > 1, "an unknown token is none"
    forged = {"x-envoy-switchgear-host": address}
    assert len({await Session(one).ask(headers=forged) for _ in range(16)}) > 1


async def asked_with(rig: Rig, token: str) -> list[str]:
    return [await Session(rig, token=token).ask() for _ in range(16)]


async def test_engines_get_no_header_of_ours(rig, engines):
    one, plain = await start(rig, engines), await start(rig, engines, "{header: x-session}")
    seen: list[set[str]] = []
    for each in (one, plain):
        session = Session(each)
        await session.ask()
        await session.ask(headers={"x-session": "s", "cookie": "a=b"})
        seen.append({header for engine in engines for request in engine.seen for header in request})
        for engine in engines:
            engine.seen.clear()
    assert seen[0] == seen[1]


async def test_header_of_the_answer_is_the_session(rig, engines):
    one = await start(rig, engines, HEADER)
    url = f"{one.url}/v1/completions"
    async with one.client.post(url, data=io.BytesIO(b"{}")) as answer:
        home, token = answer.headers["x-engine"], answer.headers["x-session"]
    for _ in range(8):
        async with one.client.post(url, data=io.BytesIO(b"{}"), headers={"x-session": token}) as answer:
            assert answer.headers["x-engine"] == home
            assert "x-session" not in answer.headers
    async with one.client.post(url, data=io.BytesIO(b"{}"), headers={"x-session": "mine"}) as answer:
        assert answer.headers["x-session"] != "mine", "a caller's own value names no engine"


async def test_session_of_another_region_is_none(rig, engines):
    everywhere = await start(rig, engines[:2], more=", region: eu")
    text = policy(engines[:2], COOKIE, more=", region: eu", route=", allowedRegions: [eu]")
    limited = await rig(text.replace("zone: a, region: eu}]", "zone: a, region: us}]"))
    abroad = (await sessions(everywhere, 12))["1"][0]
    abroad.rig = limited
    assert await abroad.ask() == "0"


async def test_fallback_serves_without_taking_the_session(rig, engines):
    spare = (
        "---\napiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: spare}\n"
        f"spec: {{model: fake-model, endpoints: [{{name: s, address: 127.0.0.1, port: {engines[3].port}}}]}}\n"
    )
    one = await rig(policy(engines[:3], COOKIE, route=", fallbacks: [spare]") + spare)
    session = Session(one)
    home = await session.ask()
    await one.set_runtime({"switchgear.route.r.p": 0, "switchgear.route.r.spare": 100})
    assert await session.ask() == "3"
    await one.set_runtime({"switchgear.route.r.p": 100, "switchgear.route.r.spare": 0})
    assert await session.ask() == home


@pytest.mark.parametrize("cuts", [False, True])
async def test_crashed_engine_loses_its_sessions_without_a_control_plane(rig, engines, cuts):
    dying = Hearing(says={"x-engine": "dying"})
    runner = await dying.listen()
    one = await start(rig, (dying, *engines[1:]), cuts=cuts)
    session = (await sessions(one, 24))["dying"][0]
    before = session.token
    await runner.cleanup()
    for _ in range(20):
        assert await session.ask() != "dying", "a retry answers until Envoy ejects the engine"
        if session.token != before:
            break
    assert session.token != before
