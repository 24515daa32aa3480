"""Claims of whole groups: complete ones only, in the order in which they became complete, their rows side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.core.caller import Caller
from tests.semantics.callers import Caller as AnyCaller
from tests.semantics.conftest import ON_ONE_WAY

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InvalidArgumentError
from dataplane_server.core.calls.answers import Waiting
from dataplane_server.core.calls.requests import AbandonClaim


def whole(caller: Caller, batch_size: int = 1, *fields: str, **more: object) -> tuple[str, ...]:
    """Rows of whole groups that are there, or none."""
    sizes = {"batch_size": batch_size, "min_size": 1}
    request = caller.claim_call(*(fields or ("a",)), whole_groups=True, **sizes, **more)  # type: ignore[arg-type]
    answer = caller.apply(request)
    if isinstance(answer, Waiting):
        caller.apply(AbandonClaim(answer.ticket))
        return ()
    assert sum(part.rows for part in answer.groups) == len(answer.sample_ids)
    return answer.sample_ids


def test_whole_groups_are_claimed_with_their_weight_versions_and_a_row_without_one_is_a_group(via: AnyCaller) -> None:
    via.put("s", "a")
    for group_id, ids, start, end in (("g", "xy", 3, 4), ("h", "z", 5, None)):
        group = via.reserve(group_id, ids, version=start)
        group.put(ids, "a", sequence_lengths=[10] * len(ids))
        group.finish(end)
    via.put("t", "a")
    claim = via.claim("a", size=4, whole_groups=True)
    assert claim.ids == "sxyzt"
    assert claim.groups == [("", 1, None, None), ("g", 2, 3, 4), ("h", 1, 5, None), ("", 1, None, None)]
    assert claim.deliveries == [1] * 5
    via.release(claim)
    assert via.claim("a", size=9, least=1, whole_groups=True, max_tokens=29).ids == "sxy"


def test_a_group_that_a_clear_completes_is_ordered_by_its_remaining_rows(caller: Caller) -> None:
    assert whole(caller, order="oldest_version") == ()
    caller.put_group("g", ["g1"], "a")
    reservation = caller.reserve("h", ["h1", "h2"]).reservation_id
    caller.put(caller.put_call(["h1", "h2"], {"b": [1, 1]}, reservation_id=reservation))
    caller.put(caller.put_call(["h2"], {"a": [1]}, tags=[{"weight_version": 0}], reservation_id=reservation))
    caller.finish_group(reservation)
    caller.clear(["h1"])
    assert whole(caller, 2, order="oldest_version") == ("h2", "g1")


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_no_claim_hands_out_more_rows_of_whole_groups_than_a_call_may_name(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    caller.register()
    ids = [[f"g{group}r{row}" for row in range(4096)] for group in range(17)]
    for group, of_group in enumerate(ids):
        reservation_id = caller.reserve(f"g{group}", of_group).reservation_id
        caller.put(caller.put_call([], {"a": [1]}, reservation_id=reservation_id, shared=True))
        caller.finish_group(reservation_id)
    assert len(whole(caller, 17)) == 65_536
    assert whole(caller, 17) == tuple(ids[16])


# -- counted by rows ---------------------------------------------------------------------------------------------------


def test_a_claim_that_waits_for_rows_is_served_when_that_many_are_ready_in_whole_groups(via: AnyCaller) -> None:
    waiting = via.begin_claim("a", size=9, least=4, whole_groups=True, unit="rows")
    via.put_group("g", "uvw")
    group = via.reserve("h", "xy")
    group.put("xy", "a", sequence_lengths=[5, 5])
    assert via.waiting() == 1
    group.finish()
    assert waiting.answer().ids == "uvwxy"
    via.reset()
    assert via.claim("a", size=9, least=1, whole_groups=True, unit="rows", max_tokens=9).ids == "uvw"


@ON_ONE_WAY
def test_a_unit_that_makes_no_sense_is_refused(client: DataPlaneClient) -> None:
    client.register_partition("p", ["a"], 4, ["train"])
    wrong: dict[str, dict[str, Any]] = {
        "unit 'groups' needs whole_groups=True": {"unit": "groups"},
        "unit 'rows' needs whole_groups=True": {"unit": "rows"},
        r"unit must be one of \('rows', 'groups'\) or None": {"unit": "tokens"},
        "balance 'groups' needs whole_groups=True": {"balance": "groups"},
    }
    for words, call in wrong.items():
        with pytest.raises(InvalidArgumentError, match=words):
            client.claim_shard("p", "train", ["a"], 2, step=0, dp_rank=0, dp_world=2, **call)
