"""The interfaces have exactly the methods that algorithms may call."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from trainer_adapter import interfaces

CALIBRATION = [("percentile", 99.9), ("margin", 1.05), ("include_q", False)]
POLICY: dict[str, list[Any]] = {
    "get_logprobs": ["data"],
    "get_reference_policy_logprobs": ["data", ("micro_batch_size", None)],
    "get_topk_logits": ["data", "k", ("micro_batch_size", None)],
    "train": ["data", "loss_fn", ("eval_mode", False), "*", ("gbs", None), ("mbs", None)],
    "calibrate_qkv_fp8_scales": ["data", ("micro_batch_size", None), *CALIBRATION],
    "prepare_for_training": ["args", "kwargs"],
    "finish_training": ["args", "kwargs"],
    "save_checkpoint": ["args", "kwargs"],
    "shutdown": [],
}
COLOCATED: dict[str, list[Any]] = {
    "init_collective": ["ip", "port", "world_size", "*", "train_world_size"],
    "offload_before_refit": [],
    "offload_after_refit": [],
    "prepare_refit_info": [],
    "stream_weights_via_ipc_zmq": ["args", "kwargs"],
    "broadcast_weights_for_collective": [("kv_scales", None)],
    "prepare_for_lp_inference": [],
}


@pytest.mark.parametrize(
    ("kind", "methods"),
    [(interfaces.PolicyInterface, POLICY), (interfaces.ColocatablePolicyInterface, {**POLICY, **COLOCATED})],
    ids=["policy", "colocatable policy"],
)
def test_abstract_methods_and_their_parameters(kind: type, methods: dict[str, list[Any]]) -> None:
    """A parameter with a default is a pair; "*" comes before those that are given by name only."""
    abstract = {name for name, member in inspect.getmembers(kind) if getattr(member, "__isabstractmethod__", False)}
    assert abstract == methods.keys()
    for name, parameters in methods.items():
        assert describe(getattr(kind, name)) == parameters


def describe(method: Any) -> list[Any]:
    described: list[Any] = []
    for name, parameter in [*inspect.signature(method).parameters.items()][1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in described:
            described.append("*")
        described.append(name if parameter.default is parameter.empty else (name, parameter.default))
    return described


def test_output_specs_name_their_tensors() -> None:
    kinds = ("Logprob", "ReferenceLogprob", "Score", "TopkLogits")
    specs = [getattr(interfaces, f"{kind}OutputSpec").__annotations__.keys() for kind in kinds]
    assert specs == [{"logprobs"}, {"reference_logprobs"}, {"scores"}, {"topk_logits", "topk_indices"}]
