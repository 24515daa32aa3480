"""Calls that go to all ranks with the same arguments; see serial_group.py."""

from __future__ import annotations

from typing import Any

import pytest
from tests.trainer_adapter.policy.serial_group import SerialGroup, config_of

from trainer_adapter.interfaces import ColocatablePolicyInterface
from trainer_adapter.policy import DataPlanePolicy

COLLECTIVE = {"ip": "192.0.2.1", "port": 1, "world_size": 4, "train_world_size": 2}
WITHOUT_ARGUMENTS = ["prepare_for_training", "prepare_for_lp_inference", "finish_training"]
WITHOUT_ARGUMENTS += ["offload_before_refit", "offload_after_refit"]


@pytest.mark.parametrize(
    ("method", "given", "reached"),
    [
        *((method, {}, {}) for method in WITHOUT_ARGUMENTS),
        ("load_checkpoint", {"weights_path": "w"}, {"weights_path": "w", "optimizer_path": None}),
        (
            "save_checkpoint",
            {"weights_path": "w", "checkpointing_cfg": {"a": 1}},
            {"weights_path": "w", "optimizer_path": None, "tokenizer_path": None, "checkpointing_cfg": {"a": 1}},
        ),
    ],
)
def test_every_rank_is_called_and_nothing_comes_back(
    method: str, given: dict[str, Any], reached: dict[str, Any]
) -> None:
    group = SerialGroup(2)
    assert getattr(DataPlanePolicy(config_of(), group), method)(**given) is None
    assert [worker.calls for worker in group.workers] == [[(method, reached)]] * 2


@pytest.mark.parametrize(
    ("method", "given", "reached"),
    [
        ("stream_weights_via_ipc_zmq", {}, {"buffer_size_bytes": 0, "kv_scales": None}),
        ("broadcast_weights_for_collective", {"kv_scales": {"k": 1.0}}, {"kv_scales": {"k": 1.0}}),
        ("init_collective", COLLECTIVE, COLLECTIVE),
    ],
)
def test_what_engines_take_part_in_gives_one_future_a_rank(
    method: str, given: dict[str, Any], reached: dict[str, Any]
) -> None:
    group = SerialGroup(2)
    futures = getattr(DataPlanePolicy(config_of(), group), method)(**given)
    assert futures == [f"{method} of 0", f"{method} of 1"]
    assert [worker.calls for worker in group.workers] == [[(method, reached)]] * 2


def test_what_will_be_sent_is_what_the_first_rank_says() -> None:
    found: Any = DataPlanePolicy(config_of(), SerialGroup(2)).prepare_refit_info()
    assert found == "prepare_refit_info of 0"


def test_shutdown_ends_the_group() -> None:
    group = SerialGroup(1)
    policy: ColocatablePolicyInterface = DataPlanePolicy(config_of(), group)
    assert policy.shutdown()
    assert group.is_shut_down
