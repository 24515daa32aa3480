"""The interfaces have exactly the methods that algorithms may call."""

from __future__ import annotations

import inspect

import pytest

from trainer_adapter import interfaces

POLICY = {
    "get_logprobs": ["data"],
    "get_reference_policy_logprobs": ["data", "micro_batch_size"],
    "get_topk_logits": ["data", "k", "micro_batch_size"],
    "train": ["data", "loss_fn", "eval_mode", "gbs", "mbs"],
    "calibrate_qkv_fp8_scales": ["data", "micro_batch_size", "percentile", "margin", "include_q"],
    "prepare_for_training": ["args", "kwargs"],
    "finish_training": ["args", "kwargs"],
    "save_checkpoint": ["args", "kwargs"],
    "shutdown": [],
}
COLOCATED = {
    "init_collective": ["ip", "port", "world_size", "train_world_size"],
    "offload_before_refit": [],
    "offload_after_refit": [],
    "prepare_refit_info": [],
    "stream_weights_via_ipc_zmq": ["args", "kwargs"],
    "broadcast_weights_for_collective": ["kv_scales"],
    "prepare_for_lp_inference": [],
}


@pytest.mark.parametrize(
    ("kind", "methods"),
    [
        (interfaces.PolicyInterface, POLICY),
        (interfaces.ColocatablePolicyInterface, {**POLICY, **COLOCATED}),
    ],
    ids=["policy", "colocatable policy"],
)
def test_abstract_methods_and_their_parameters(kind: type, methods: dict[str, list[str]]) -> None:
    abstract = {name for name, member in inspect.getmembers(kind) if getattr(member, "__isabstractmethod__", False)}
    assert abstract == methods.keys()
    for name, parameters in methods.items():
        assert [*inspect.signature(getattr(kind, name)).parameters][1:] == parameters


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        (interfaces.LogprobOutputSpec, {"logprobs"}),
        (interfaces.ReferenceLogprobOutputSpec, {"reference_logprobs"}),
        (interfaces.ScoreOutputSpec, {"scores"}),
        (interfaces.TopkLogitsOutputSpec, {"topk_logits", "topk_indices"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_output_specs_name_their_tensors(spec: type, keys: set[str]) -> None:
    assert spec.__annotations__.keys() == keys
