"""Process group, model, optimizer and schedule of a single rank, and the layouts that are refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from tests.trainer_adapter.automodel import setup_cases
from tests.trainer_adapter.automodel.setup_cases import assert_refused, policy_config, set_up
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from trainer_adapter.automodel import setup
from trainer_adapter.automodel.config import DistributedContext, RuntimeConfig
from trainer_adapter.automodel.packages import is_installed
from trainer_adapter.automodel.parallel.fsdp import fsdp2_config
from trainer_adapter.automodel.parallel.tensor import parallelize_tensors
from trainer_adapter.automodel.setup._distributed import choose_gpu

pytestmark = pytest.mark.usefixtures("only_rank")

THREE_RANKS: Any = SimpleNamespace(size=lambda: 3)


def test_a_single_rank_gets_all_parts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with set_up(policy_config(folder / "llama")) as state:
        assert {parameter.dtype for parameter in state.model.parameters()} == {torch.float32}
        assert state.model_class is type(state.model)
        model: Any = state.model
        assert state.model_config is model.config
        assert model.config.pad_token_id == setup_cases.TOKENIZER.pad_token_id
        assert isinstance(state.optimizer, torch.optim.SGD)
        assert (state.is_hf_model, state.is_moe_model, state.is_reward_model) == (True, False, False)
        assert (state.peft_config, state.autocast_enabled) == (None, True)
    printed = capsys.readouterr().out
    assert "No weights path provided" in printed
    assert "cpu, gloo: dp 1, tp 1, cp 1; collectives wait 1800 s" in printed
    assert "LlamaForCausalLM of transformers" in printed


def test_every_later_group_waits_as_long_as_configured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        monkeypatch.setattr(distributed_c10d, name, timedelta(seconds=1))
    with set_up(policy_config(folder / "llama", collective_timeout_s=77)):
        waits = [distributed_c10d._get_default_timeout(distributed_c10d.Backend(name)) for name in ("gloo", "nccl")]
    assert waits == [timedelta(seconds=77)] * 2


def test_layers_compute_in_the_configured_precision_and_logits_keep_it(folder: Path) -> None:
    inside: list[torch.dtype] = []
    with set_up({**policy_config(folder / "llama"), "precision": "bfloat16"}) as state:
        model: Any = state.model
        model.model.layers[0].mlp.register_forward_hook(lambda _module, _inputs, output: inside.append(output.dtype))
        logits = model(input_ids=setup_cases.BATCH, use_cache=False).logits
    assert inside == [torch.bfloat16]
    assert logits.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("backend", "setting", "pins"), [("nccl", None, True), ("nccl", False, False), ("gloo", None, False)]
)
def test_offloaded_weights_are_in_pinned_memory_beside_a_gpu(backend: str, setting: bool | None, pins: bool) -> None:
    given = {"sequence_parallel": False} | ({} if setting is None else {"pin_host_memory": setting})
    policy = fsdp2_config(given, torch.bfloat16, cpu_offload=True, backend=backend).offload_policy
    assert isinstance(policy, CPUOffloadPolicy)
    assert policy.pin_memory == pins


def test_the_reference_is_a_copy_that_training_leaves_alone(folder: Path) -> None:
    with set_up(policy_config(folder / "llama")) as state:
        reference = setup.setup_reference_model_state(state.model)
        before = {name: value.clone() for name, value in reference.items()}
        setup_cases.train_step(state, 0, 1)
        after = setup.setup_reference_model_state(state.model)
    assert reference.keys() == before.keys() == after.keys()
    assert not any(isinstance(value, DTensor) or value.requires_grad for value in reference.values())
    assert all(torch.equal(reference[name], value) for name, value in before.items())
    assert not torch.equal(after["lm_head.weight"], reference["lm_head.weight"])


@pytest.mark.parametrize(
    ("dtensor_cfg", "error", "text"),
    [
        ({"tensor_parallel_size": 2}, ValueError, "world size 1 is not a multiple of tensor_parallel_size=2"),
        ({"expert_parallel_size": 2}, ValueError, "expert_parallel_size=2 does not divide the 1 data- and context-"),
        ({"dp_replicate_size": 2}, ValueError, "dp_replicate_size=2 does not divide the 1 data-parallel ranks"),
        ({"cpu_offload": True}, NotImplementedError, "^CPUOffload doesn't work on single GPU"),
        ({"lora_cfg": {"enabled": True}}, ValueError, "dtensor_cfg.lora_cfg must name target_modules"),
    ],
)
def test_layouts_that_cannot_be_are_refused(
    folder: Path, dtensor_cfg: dict[str, Any], error: type[Exception], text: str
) -> None:
    assert_refused(policy_config(folder / "llama", **dtensor_cfg), error, text)


def test_16_bits_that_need_scaled_losses_are_for_inference_only(folder: Path) -> None:
    config = policy_config(folder / "llama") | {"precision": "float16"}
    assert_refused(config, ValueError, "precision=float16: losses are not scaled.*Train in bfloat16")
    with set_up(config, init_optimizer=False) as state:
        assert state.optimizer is None


@pytest.mark.parametrize("activation_checkpointing", [False, True])
def test_a_repeated_forward_pass_has_no_kernel_to_itself(folder: Path, activation_checkpointing: bool) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    with set_up(policy_config(folder / "llama", activation_checkpointing=activation_checkpointing)):
        assert torch.backends.cuda.cudnn_sdp_enabled() is not activation_checkpointing


@pytest.mark.parametrize(("local_rank", "visible", "gpu"), [(0, 8, 0), (7, 8, 7), (0, 1, 0), (3, 1, 0)])
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one(local_rank: int, visible: int, gpu: int) -> None:
    assert choose_gpu(local_rank, visible) == gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_trained_unless_the_configuration_says_so(folder: Path) -> None:
    text = r"no CUDA device found; set dtensor_cfg\.device=cpu"
    assert_refused(policy_config(folder / "llama", device="cuda"), RuntimeError, text)


def prepared(folder: Path, **dtensor_cfg: Any) -> tuple[Any, RuntimeConfig, DistributedContext]:
    config = policy_config(folder / "llama", **dtensor_cfg)
    runtime = setup.validate_and_prepare_config(config, None, 0)
    context = setup.setup_distributed(config, runtime)
    torch.distributed.destroy_process_group()  # what is refused is refused before any collective
    return config, runtime, context


@pytest.mark.parametrize(
    ("model_type", "sizes", "is_vlm", "text"),
    [
        ("gemma3", (2, 2), True, "Gemma3ForCausalLM"),
        ("llama", (2, 2), True, "sequence parallel"),
        ("qwen3_5", (1, 2), True, "VLM"),
        ("qwen3_5", (1, 2), False, "dense Qwen3.5"),
        ("llama", (1, 2), False, "reward models"),
    ],
)
def test_ways_to_divide_sequences_are_refused_in_the_documented_order(
    folder: Path, model_type: str, sizes: tuple[int, int], is_vlm: bool, text: str
) -> None:
    config, runtime, context = prepared(folder, sequence_parallel=True)
    runtime = runtime._replace(is_reward_model="reward" in text)
    runtime.model_config.model_type = model_type
    context = context._replace(tp_size=sizes[0], cp_size=sizes[1])
    with pytest.raises((AssertionError, NotImplementedError), match=text):
        setup.setup_model_and_optimizer(config, setup_cases.TOKENIZER, runtime, context, None, is_vlm=is_vlm)


@pytest.mark.skipif(is_installed(), reason="nemo_automodel is installed")
def test_without_nemo_automodel_every_rank_reports_transformers_as_the_default(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with set_up(policy_config(folder / "llama")):
        assert "of transformers (the default here)" in capsys.readouterr().out


def test_tensor_parallelism_names_the_sizes_that_cannot_be_divided() -> None:
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**setup_cases.SHAPE))
    with pytest.raises(ValueError, match="num_attention_heads=4, num_key_value_heads=2"):
        parallelize_tensors(model, THREE_RANKS, None)


@pytest.mark.parametrize(
    ("model_type", "name", "reason"),
    [
        ("gpt2", "GPT2LMHeadModel", "the tp_plan of gpt2"),
        (
            "mixtral",
            "MixtralForCausalLM",
            r"its rules .* moe_tp_experts \(model\..*\.experts\) are not supported",
        ),
        ("apertus", "ApertusForCausalLM", r".* model\.layers\.\*\.mlp\.act_fn"),
        ("qwen3_5_text", "Qwen3_5ForCausalLM", r".* model\.layers\.\*\.linear_attn"),
    ],
)
def test_a_plan_that_a_model_lacks_or_that_is_not_understood_is_named(model_type: str, name: str, reason: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, num_hidden_layers=1))
    with pytest.raises(ValueError, match=rf"{name}: {reason}.*custom_parallel_plan"):
        parallelize_tensors(model, THREE_RANKS, None)


def test_layers_that_cannot_compute_with_a_ranks_tokens_are_named() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma4_text", num_hidden_layers=1))
    reason = (
        r"sequence_parallel cannot divide the tokens of Gemma4ForCausalLM: .*, model\.layers\.\*\.per_layer_input_gate"
    )
    with pytest.raises(ValueError, match=reason):
        parallelize_tensors(model, THREE_RANKS, None, sequence_parallel=True)


@pytest.mark.parametrize("plan", ["torch.optim.Adam", {"lm_head": "colwise"}])
def test_a_plan_of_ones_own_is_made_of_styles(plan: Any) -> None:
    with pytest.raises(TypeError, match="custom_parallel_plan"):
        parallelize_tensors(torch.nn.Linear(1, 1), THREE_RANKS, plan)


@pytest.mark.parametrize(
    ("config", "rates"),
    [
        (None, [1.0, 1.0, 1.0, 1.0]),
        ({"name": "torch.optim.lr_scheduler.ExponentialLR", "kwargs": {"gamma": 0.5}}, [1.0, 0.5, 0.25, 0.125]),
        (setup_cases.SCHEDULER, [0.5, 0.75, 0.7, 0.7]),
    ],
)
def test_the_learning_rate_follows_the_configured_schedules(config: Any, rates: list[float]) -> None:
    optimizer = setup.build_optimizer(torch.nn.Linear(1, 1), {"name": "torch.optim.SGD", "kwargs": {"lr": 1.0}})
    scheduler = setup.build_scheduler(optimizer, config)
    seen = []
    for _ in rates:
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert seen == pytest.approx(rates)


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        ([{"kwargs": {}}], AssertionError, "unknown scheduler config"),
        (setup_cases.SCHEDULER[:2], ValueError, "milestones"),
        ({"name": "torch.optim.lr_scheduler.NoSuch"}, ValueError, "scheduler.name: no attribute"),
        ({"name": "torch.optim.lr_scheduler.ReduceLROnPlateau"}, ValueError, "scheduler.name: .* follows a metric"),
        ([{"milestones": [1, None]}], ValueError, r"scheduler.milestones\[1\] must be an integer, not None"),
        ({"kwargs": None}, KeyError, "must set scheduler.name"),
        ({"name": "torch.optim.lr_scheduler.StepLR", "kwargs": None}, ValueError, "scheduler.kwargs: .*step_size"),
    ],
)
def test_a_schedule_that_cannot_be_built_is_refused(config: Any, error: type[Exception], text: str) -> None:
    optimizer = setup.build_optimizer(torch.nn.Linear(1, 1), setup_cases.SGD)
    with pytest.raises(error, match=text):
        setup.build_scheduler(optimizer, config)
