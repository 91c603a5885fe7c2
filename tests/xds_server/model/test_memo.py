"""Results are reused while their inputs are the same objects, and are then the same object."""

from xds_server.model.memo import LastResult, reuse_equal, reuse_mapping, reuse_tuple


def test_last_result_is_reused_for_identical_inputs() -> None:
    made: list[int] = []
    last: LastResult[list[int]] = LastResult()

    def make() -> list[int]:
        made.append(1)
        return [len(made)]

    one, other = [1], [1]
    first = last.of((one,), make)
    assert last.of((one,), make) is first
    assert last.of((other,), make) == [2]  # equal, and another object
    assert last.of((other, one), make) == [3]
    assert last.of((one,), make) == [4]  # only the last one is kept


def test_equal_value_is_reused() -> None:
    before, equal, other = [1], [1], [2]
    assert reuse_equal(before, equal) is before
    assert reuse_equal(before, other) is other
    assert reuse_equal(None, other) is other


def test_mapping_with_the_same_objects_is_reused() -> None:
    item = object()
    before = {"a": item}
    assert reuse_mapping(before, {"a": item}) is before
    for after in ({"a": object()}, {"b": item}, {}, {"a": item, "b": item}):
        assert reuse_mapping(before, after) is after
    empty_before, none_after = {"a": None}, {"b": None}
    assert reuse_mapping(empty_before, none_after) is none_after


def test_tuple_with_the_same_objects_is_reused() -> None:
    one, other = [1], [1]
    before = (one, other)
    assert reuse_tuple(before, tuple([one, other])) is before  # noqa: C409 - a literal might be the same object
    for after in ((other, one), (one,), ()):
        assert reuse_tuple(before, after) is after
