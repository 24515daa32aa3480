"""Open partitions: a call that names a field which is not declared declares it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import BYTES, Caller

from dataplane_server.core.calls.refusal import Reason


@pytest.fixture
def opened(new_caller: Callable[..., Caller]) -> Caller:
    """Partition p with field a, which may have four fields."""
    caller = new_caller(memory_bytes=1 << 12, max_fields=4)
    caller.register(("a",), open=True)
    return caller


def fields(caller: Caller) -> list[str]:
    info = caller.plane.partition_info("p")
    assert [field.name for field in info.fields] == list(info.definition.fields)
    return list(info.definition.fields)


def put_to_a_group(caller: Caller, **more: object) -> None:
    reservation_id = caller.reserve("g", ["s2", "s3"]).reservation_id
    caller.put(caller.put_call(**more, reservation_id=reservation_id))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda c: c.put_rows(["s1"], "new", size=3), id="put"),
        pytest.param(
            lambda c: c.finish(c.apply(c.commit_call(c.take("a").claim_id, {"new": [3]})).ticket), id="commit"
        ),
        pytest.param(lambda c: c.write_back(c.take("a").claim_id, ["s1"], {"new": [3]}), id="write-back"),
        pytest.param(lambda c: put_to_a_group(c, sample_ids=["s2"], lengths={"new": [3]}), id="put to a group"),
        pytest.param(lambda c: put_to_a_group(c, sample_ids=(), lengths={"new": [3]}, shared=True), id="shared put"),
    ],
)
def test_a_write_declares_the_fields_that_it_names(opened: Caller, call: Callable[[Caller], object]) -> None:
    opened.put_rows(["s1"], "a")
    call(opened)
    assert fields(opened) == ["a", "new"]
    new = opened.plane.partition_info("p").fields[1]
    assert (new.shape, new.per_token, new.size_bytes) == (BYTES, False, 3)


def test_an_append_does_not_declare_a_field(opened: Caller) -> None:
    opened.register(("t",), partition_id="q", per_token_fields=frozenset("t"), open=True)
    with opened.refuses(Reason.INVALID_REQUEST, "'q'", "'new'", "is not declared"):
        opened.apply(opened.put_call(["s1"], {"t": [1], "new": [1]}, partition_id="q", append=True))
