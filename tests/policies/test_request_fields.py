"""Routes whose callers state fields in headers: what is refused, where, and how to fix it."""

from pathlib import Path

import pytest

from policies.findings import PolicyErrors
from policies.lints.lint import lint
from policies.load import load_contents
from policies.route import can_be_stated
from tests.policies.test_external_services import POOL, route

HEADERS, BODY = "requestFields: headers", "requestFields: body"


def one_error(*routes: str) -> tuple[str, str, str, str]:
    """Code, origin, message and hint of the only problem."""
    with pytest.raises(PolicyErrors) as caught:
        load_contents({Path("p.yaml"): "".join((POOL, *routes)).encode()})
    [found] = caught.value.exceptions
    return found.code, str(found.origin), found.message, found.hint


def lines(*routes: str) -> list[tuple[int, str]]:
    return list(enumerate("".join((POOL, *routes)).splitlines(), 1))


def test_routes_of_one_port_have_one_source() -> None:
    routes = route("a", HEADERS), route("b", "address: 0.0.0.0")
    code, at, message, hint = one_error(*routes)
    first, second = (line for line, text in lines(*routes) if "listener:" in text)
    assert (code, at) == ("SG036", f"p.yaml:{second}:13")
    assert f"port 8080 has requestFields body here and headers in route a, at p.yaml:{first}:13" in message
    assert "same requestFields" in hint


@pytest.mark.parametrize("model", ["a,b", "größe", " a", "a ", "a  b", "a\tb"])
def test_model_that_no_header_carries_is_refused(model: str) -> None:
    written = route("a", HEADERS).replace("{model: a}", f'{{model: "{model}"}}')
    code, at, message, hint = one_error(written)
    [line] = (line for line, text in lines(written) if "match:" in text)
    assert (code, at.rpartition(":")[0]) == ("SG040", f"p.yaml:{line}")
    assert "x-switchgear-model" in message
    assert "requestFields: body" in hint
    load_contents({Path("p.yaml"): (POOL + written.replace(HEADERS, BODY)).encode()})


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.3-70B-Instruct", "a", "~!+x", "a b", "it's:8b@q4_k"])
def test_usual_models_can_be_stated(model: str) -> None:
    assert can_be_stated(model)


def test_public_route_matches_no_stated_field() -> None:
    code, _, message, _ = one_error(route("a", HEADERS, more="public: true"))
    assert (code, "choose by a header" in message) == ("SG040", True)
    open_to_all = route("b", HEADERS, more="public: true").replace("{model: b}", "{}")
    code, _, message, _ = one_error(route("a", HEADERS), open_to_all)
    assert (code, "only a stated header tells" in message) == ("SG045", True)


def test_stated_fields_draw_no_warning() -> None:
    read, stated = (
        load_contents({Path("p.yaml"): (POOL + route("a", source)).encode()}) for source in (BODY, HEADERS)
    )
    assert [one.code for one in lint(stated)] == [one.code for one in lint(read)]


def test_size_is_refused_where_no_body_is_read() -> None:
    written = route("a", HEADERS).replace("{model: a}", "{tokensAbove: 4000}")
    code, at, message, hint = one_error(written)
    [line] = (line for line, text in lines(written) if "match:" in text)
    assert (code, at.rpartition(":")[0]) == ("SG040", f"p.yaml:{line}")
    assert "estimates no tokens" in message
    assert "requestFields: body" in hint
    load_contents({Path("p.yaml"): (POOL + written.replace(HEADERS, BODY)).encode()})


def test_routes_may_differ_in_size_alone() -> None:
    sizes = "{}", "{tokensAbove: 4000}", "{tokensAbove: 9000}"
    routes = [
        route(f"r{number}", BODY).replace(f"{{model: r{number}}}", size) for number, size in enumerate(sizes)
    ]
    load_contents({Path("p.yaml"): "".join((POOL, *routes)).encode()})
    code, *_ = one_error(*routes, route("r3", BODY).replace("{model: r3}", sizes[1]))
    assert code == "SG037"


def test_public_route_has_no_size() -> None:
    code, *_ = one_error(route("a", BODY, more="public: true").replace("{model: a}", "{tokensAbove: 9}"))
    assert code == "SG040"
