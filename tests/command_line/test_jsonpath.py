"""kubectl's JSONPath dialect: the forms of its documentation, and refusals with their place."""

import pytest

from command_line.jsonpath import JsonPathError, parse_path, parse_template

DOCUMENT = {
    "kind": "List",
    "items": [
        {
            "name": "127.0.0.1",
            "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "h1"}},
            "status": {"capacity": {"cpu": "4"}, "addresses": [{"type": "LegacyHostIP", "address": "127.0.0.1"}]},
            "ready": True,
            "load": 1.5,
        },
        {
            "name": "127.0.0.2",
            "metadata": {"name": "n2"},
            "status": {"capacity": {"cpu": "8"}, "addresses": [{"type": "another", "address": "127.0.0.3"}]},
            "ready": False,
            "load": 3,
        },
    ],
    "users": [{"name": "e2e", "user": {"password": "secret", "current-context": "x"}}],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("kind is {.kind}", "kind is List"),
        ("{$.kind}{'-'}{@.kind}", "List-List"),
        (".kind", "List"),
        ("{.items[*].metadata.name}", "n1 n2"),
        ("{.items[0].status.capacity.cpu}", "4"),
        ("{.items[-1].name}", "127.0.0.2"),
        ("{.items[0:1].name}{.items[1:].name}{.items[::2].name}", "127.0.0.1127.0.0.2127.0.0.1"),
        ("{.items[*]['metadata.name', 'name']}", "127.0.0.1 127.0.0.2"),
        ("{.items[0]['name','ready']}", "127.0.0.1 true"),
        ('{.users[?(@.name=="e2e")].user.password}', "secret"),
        ("{.users[0].user.current-context}", "x"),
        ("{.items[?(@.status.addresses)].name}", "127.0.0.1 127.0.0.2"),
        ("{.items[?(@.load > 2)].name}", "127.0.0.2"),
        ("{.items[?(@.ready==true)].name}", "127.0.0.1"),
        ("{.items[?(@.name != '127.0.0.1')].metadata.name}", "n2"),
        ("{.items[?(@.load > 'x')].name}", ""),
        (r"{.items[*].metadata.labels.kubernetes\.io/hostname}", "h1"),
        ("{..cpu}", "4 8"),
        ("{.items[0].metadata.labels}", '{"kubernetes.io/hostname":"h1"}'),
        ('{range .items[*]}{.metadata.name}{"\\t"}{.status.capacity.cpu}{"\\n"}{end}', "n1\t4\nn2\t8\n"),
        (
            "{range .items[*]}{range .status.addresses[*]}{.type}@{$.kind} {end}{end}",
            "LegacyHostIP@List another@List ",
        ),
        ("{range .items[*]}{@.name},{end}", "127.0.0.1,127.0.0.2,"),
        ("{.nothing}{.items[9]}{.kind.deeper}", ""),
        ("no braces", "no braces"),
    ],
)
def test_template_renders_as_in_kubectl(template: str, text: str) -> None:
    assert parse_template(template).render(DOCUMENT) == text


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{.items[*]", "the brace { is not closed"),
        ("{range .items[*]}{.name}", "{range} without {end}"),
        ("{.a}{end}", "{end} without {range}"),
        ("{name}", "a path starts with"),
        ("{.items[}", "expected an index"),
        ("{.items[1.5]}", "expected an index"),
        ("{.items[::0]}", "is not 0"),
        ("{.items[?(@.a ~ 1)]}", "expected ')'"),
        ("{.items[?('a')]}", "expected one of =="),
        ("{.items[?(@.a == 1 && @.b == 2)]}", "one comparison"),
        ('{"open}', "is not closed"),
        ("{.}{.a.}", "expected a key"),
        ("{.a b}", "expected '}'"),
    ],
)
def test_malformed_template_is_refused_with_its_column(template: str, problem: str) -> None:
    with pytest.raises(JsonPathError, match="column") as refused:
        parse_template(template)
    assert problem in str(refused.value)


@pytest.mark.parametrize("text", ["items[0].name", ".items[0].name", "{.items[0].name}", "$.items[0].name"])
def test_custom_column_path_may_leave_out_dot_and_braces(text: str) -> None:
    assert parse_path(text).find(DOCUMENT, DOCUMENT) == ["127.0.0.1"]


@pytest.mark.parametrize("text", ["", "{}", ".a}", "a b", "a{b"])
def test_malformed_path_is_refused(text: str) -> None:
    with pytest.raises(JsonPathError):
        parse_path(text)
