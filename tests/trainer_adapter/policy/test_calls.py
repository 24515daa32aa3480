"""Calls that go to all ranks with the same arguments; see serial_group.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.trainer_adapter.policy.serial_group import SerialGroup, config_of

from trainer_adapter.interfaces import ColocatablePolicyInterface
from trainer_adapter.policy import DataPlanePolicy

COLLECTIVE = {"ip": "192.0.2.1", "port": 1, "world_size": 4, "train_world_size": 2}
SAVED = {"weights_path": "w", "optimizer_path": None}
WITHOUT_ARGUMENTS = ["prepare_for_training", "prepare_for_lp_inference", "finish_training"]
WITHOUT_ARGUMENTS += ["offload_before_refit", "offload_after_refit"]

SCALES = {"kv_scales": {"k": 1.0}}
FUTURES = ["{} of 0", "{} of 1"]


@pytest.mark.parametrize(
    ("method", "given", "reached", "returned"),
    [
        *((method, {}, {}, None) for method in WITHOUT_ARGUMENTS),
        ("load_checkpoint", {"weights_path": "w"}, SAVED, None),
        (
            "save_checkpoint",
            {"weights_path": "w", "checkpointing_cfg": {"a": 1}},
            {**SAVED, "tokenizer_path": None, "checkpointing_cfg": {"a": 1}},
            None,
        ),
        ("prepare_refit_info", {}, {}, "{} of 0"),
        ("stream_weights_via_ipc_zmq", {}, {"buffer_size_bytes": 0, "kv_scales": None}, FUTURES),
        ("broadcast_weights_for_collective", SCALES, SCALES, FUTURES),
        ("init_collective", COLLECTIVE, COLLECTIVE, FUTURES),
    ],
)
def test_every_rank_is_called_and_what_engines_take_part_in_gives_one_future_a_rank(
    method: str, given: dict[str, Any], reached: dict[str, Any], returned: Any
) -> None:
    group = SerialGroup(2)
    found = getattr(DataPlanePolicy(config_of(), group), method)(**given)
    assert json.dumps(found) == json.dumps(returned).replace("{}", method)
    assert [worker.calls for worker in group.workers] == [[(method, reached)]] * 2


def test_shutdown_ends_the_group() -> None:
    group = SerialGroup(1)
    policy: ColocatablePolicyInterface = DataPlanePolicy(config_of(), group)
    assert policy.shutdown()
    assert group.is_shut_down
