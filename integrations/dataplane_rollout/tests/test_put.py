"""Converted rollouts are put as groups, or plainly, and read back token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import InvalidArgumentError, PreconditionError
from dataplane_rollout import PER_TOKEN_FIELDS, RolloutRows, from_message_logs, from_vllm
from dataplane_rollout.tests.recordings import RequestOutput
from dataplane_rollout.tests.test_messages import LOG
from dataplane_rollout.tests.test_vllm import COLUMNS, EXPERTS, FIRST, REQUESTS, TAGS
from dataplane_server.testing import running_server


@pytest.fixture
def client() -> Iterator[DataPlaneClient]:
    with running_server() as address, connect(address, timeout_s=200.0) as client:
        fields = [*COLUMNS, "routed_experts", "turn_lengths", "reward"]
        client.register_partition("p", fields, 0, ["train"], per_token_fields=PER_TOKEN_FIELDS)
        yield client


def rows() -> RolloutRows:
    rows = from_vllm(REQUESTS)
    rows.columns["reward"] = [0.5, 1.0, 0.0]
    return rows


def check_stored(client: DataPlaneClient, version: int | None) -> None:
    with client.claim("p", "train", [*COLUMNS, "reward"], 3) as claim:
        stored = client.read_columns(claim.meta, list(COLUMNS), layout="jagged")
        for name in ("input_ids", "token_mask", "generation_logprobs"):
            assert [row.tolist() for row in stored[name].unbind()] == COLUMNS[name]
        for name in ("input_lengths", "sample_mask", "response"):
            assert stored[name].tolist() == COLUMNS[name]
        own: dict[str, Any] = {} if version is None else {"weight_version": version}
        assert claim.meta.tags == [{**tags, **own} for tags in TAGS]
        assert claim.meta.sequence_lengths == [5, 4, 1]


def test_the_samples_of_a_prompt_are_put_as_a_group(client: DataPlaneClient) -> None:
    meta = rows().put(client, "p", weight_version=7)
    assert meta.sample_ids == ["12_g0", "12_g1", "13_g0"]
    with client.claim("p", "train", ["input_ids"], 2, whole_groups=True) as claim:
        groups = [(group.group_id, group.rows, group.start_weight_version) for group in claim.groups]
        claim.release()
    assert groups == [("12", 2, 7), ("13", 1, 7)]
    check_stored(client, 7)


def test_integers_beside_floats_are_floats_also_in_a_group_of_their_own(client: DataPlaneClient) -> None:
    batch = rows()
    batch.columns["reward"] = [0, 1, 0.5]
    batch.put(client, "p")
    assert client.get_samples(batch.sample_ids, "p", ["reward"])["reward"].tolist() == [0.0, 1.0, 0.5]


@pytest.mark.parametrize("version", [None, 7])
def test_rows_are_put_plainly_in_one_call(client: DataPlaneClient, version: int | None) -> None:
    assert rows().put(client, "p", weight_version=version, grouped=False).sample_ids == ["12_g0", "12_g1", "13_g0"]
    assert client.partition("p").rows == 3
    check_stored(client, version)


def test_rows_of_one_length_and_routed_experts_are_per_token_fields(client: DataPlaneClient) -> None:
    batch = from_vllm([RequestOutput("12", None, [4, 5, 6], [FIRST, FIRST])])
    batch.columns["routed_experts"] = [EXPERTS, EXPERTS]
    batch.put(client, "p")
    stored = client.get_samples(["12_g0", "12_g1"], "p", ["input_ids", "routed_experts"], layout="auto")
    assert (stored["input_ids"].tolist(), stored["routed_experts"].tolist()) == (
        [[4, 5, 6, 7, 2]] * 2,
        [EXPERTS.tolist()] * 2,
    )


def test_turn_lengths_are_read_back(client: DataPlaneClient) -> None:
    from_message_logs([LOG], group_ids=["q"]).put(client, "p")
    assert client.get_samples(["q_g0"], "p", ["turn_lengths"])["turn_lengths"][0].tolist() == [2, 3, 2, 1, 2, 0]


def test_a_group_that_fails_leaves_those_before_it(client: DataPlaneClient) -> None:
    client.put_samples(["13_g0"], "p", {"reward": [1.0]})
    with pytest.raises(PreconditionError, match="'13_g0'"):
        rows().put(client, "p")
    assert client.list_samples("p").meta.sample_ids == ["13_g0", "12_g0", "12_g1"]


def test_rows_of_an_engine_that_uses_its_request_ids_again_replace_none(client: DataPlaneClient) -> None:
    rows().put(client, "p", grouped=False)
    with pytest.raises(PreconditionError, match="'12_g0'"):
        rows().put(client, "p", grouped=False)


@pytest.mark.parametrize("grouped", [True, False])
def test_a_column_of_another_length_is_refused_and_no_rows_are_nothing_to_do(
    client: DataPlaneClient, grouped: bool
) -> None:
    short = rows()
    short.columns["reward"] = [1.0]
    with pytest.raises(InvalidArgumentError, match="column 'reward' has 1 entries for 3 rows"):
        short.put(client, "p", grouped=grouped)
    assert from_vllm([]).put(client, "p", grouped=grouped).sample_ids == []
    assert client.partition("p").rows == 0


def test_converting_imports_no_torch(run: Callable[..., str]) -> None:
    code = """
        import sys
        from dataplane_rollout.tests.test_vllm import REQUESTS, from_vllm
        assert len(from_vllm(REQUESTS).sample_ids) == 3
        print(*{"torch", "transformers", "tensordict"} & sys.modules.keys())
    """
    assert run(code).split() == []
