"""Checkpoints of a single rank: written, found and refused. test_setup_between_ranks has several ranks."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.trainer_adapter.automodel import setup_cases
from tests.trainer_adapter.automodel.setup_cases import (
    ADAM,
    SGD,
    assert_refused,
    parts_of,
    paths_in,
    policy_config,
    set_up,
    train_step,
)
from tests.waiting import eventually
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_module
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedTokenizerFast

from trainer_adapter.automodel.checkpoint import CheckpointManager, _saving, detect_checkpoint_format
from trainer_adapter.automodel.checkpoint._files import read_plain, write_plain
from trainer_adapter.automodel.checkpoint._random import read_random_state, write_random_state
from trainer_adapter.automodel.config import ModelAndOptimizerState

pytestmark = pytest.mark.usefixtures("only_rank")

MULTI_STEP = {"name": "torch.optim.lr_scheduler.MultiStepLR", "kwargs": {"milestones": [2], "gamma": 0.1}}
MANAGER = CheckpointManager()


def trained(folder: Path, optimizer: dict[str, Any] = ADAM, **dtensor_cfg: Any) -> Any:
    return {**policy_config(folder / "qwen2", **dtensor_cfg), "optimizer": optimizer, "scheduler": MULTI_STEP}


def save(state: ModelAndOptimizerState, where: Path) -> None:
    MANAGER.save_checkpoint(**parts_of(state), **paths_in(where), checkpointing_cfg={})


@contextmanager
def gone_on(config: Any, where: Path, prepare: Callable[[ModelAndOptimizerState], Any] = bool) -> Iterator[Any]:
    """The optimizer of a run that went on from a checkpoint as the run that wrote it did."""
    with set_up(config) as state:
        prepare(state)
        train_step(state, 0, 1)
        save(state, where)
        expected = [train_step(state, 0, 1)[0] for _ in range(3)]
    with set_up(config, **paths_in(where)) as state:
        prepare(state)
        assert [train_step(state, 0, 1)[0] for _ in range(3)] == expected
        yield state.optimizer


def test_training_goes_on_as_if_it_had_not_stopped(folder: Path, tmp_path: Path) -> None:
    with gone_on(trained(folder), tmp_path) as optimizer:
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
        assert optimizer.param_groups[0]["betas"] == (0.9, 0.95)


class OwnSGD(torch.optim.SGD):
    """Has an element type among its settings, and counts its steps by a number that is no tensor."""

    def __init__(self, parameters: Any, lr: float, momentum_dtype: torch.dtype) -> None:
        super().__init__(parameters, lr, momentum=0.9)
        self.param_groups[0]["momentum_dtype"] = momentum_dtype

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["steps"] = self.state[parameter].get("steps", 0) + 1
        return super().step(closure)


def test_an_optimizer_may_keep_element_types_and_numbers(folder: Path, tmp_path: Path) -> None:
    own = {"name": f"{__name__}.OwnSGD", "kwargs": {"lr": 0.01, "momentum_dtype": "torch.bfloat16"}}
    with gone_on(trained(folder, own), tmp_path) as optimizer:
        assert optimizer.param_groups[0]["momentum_dtype"] is torch.bfloat16
        assert {type(values["steps"]): values["steps"] for values in optimizer.state.values()} == {int: 4}


def leave_out_norm(state: ModelAndOptimizerState) -> RemovableHandle:
    """No step gives the last norm a gradient, until the handle is removed."""
    assert state.optimizer is not None
    norm = state.model.get_parameter("model.norm.weight")
    return state.optimizer.register_step_pre_hook(lambda *_: setattr(norm, "grad", None))


def test_training_goes_on_where_a_weight_never_had_a_gradient(folder: Path, tmp_path: Path) -> None:
    with gone_on(trained(folder), tmp_path, leave_out_norm):
        pass


def test_a_load_gives_weights_the_states_that_were_saved_and_no_others(folder: Path, tmp_path: Path) -> None:
    with set_up(trained(folder)) as state:
        train_step(state, 0, 1)
        save(state, tmp_path / "all")
        expected = [train_step(state, 0, 1)[0] for _ in range(2)]
    with set_up(trained(folder)) as state:
        assert state.optimizer is not None
        handle = leave_out_norm(state)
        train_step(state, 0, 1)
        handle.remove()
        save(state, tmp_path / "some")
        MANAGER.load_checkpoint(**parts_of(state), **paths_in(tmp_path / "all"))
        assert [train_step(state, 0, 1)[0] for _ in range(2)] == expected
        norm = state.model.get_parameter("model.norm.weight")
        assert norm in state.optimizer.state
        MANAGER.load_checkpoint(**parts_of(state), **paths_in(tmp_path / "some"))
        assert norm not in state.optimizer.state


def test_before_the_first_step_there_is_no_state_to_save_or_load(folder: Path, tmp_path: Path) -> None:
    with set_up(trained(folder)) as state:
        assert state.optimizer is not None
        save(state, tmp_path)
        assert not state.optimizer.state
        train_step(state, 0, 1)
        MANAGER.load_checkpoint(state.model, **paths_in(tmp_path), optimizer=state.optimizer)
        assert not state.optimizer.state


def test_a_load_that_is_refused_leaves_an_optimizer_as_it_was(folder: Path, tmp_path: Path) -> None:
    with set_up(trained(folder, SGD)) as state:
        save(state, tmp_path)
    with set_up(trained(folder)) as state:
        assert state.optimizer is not None
        with pytest.raises(ValueError, match="the state of another optimizer"):
            MANAGER.load_checkpoint(state.model, **paths_in(tmp_path), optimizer=state.optimizer)
        assert not state.optimizer.state


def test_without_its_path_the_optimizer_is_neither_saved_nor_loaded(folder: Path, tmp_path: Path) -> None:
    with set_up(trained(folder)) as state:
        MANAGER.save_checkpoint(state.model, str(tmp_path), optimizer=state.optimizer, checkpointing_cfg={})
        MANAGER.load_checkpoint(state.model, str(tmp_path), optimizer=state.optimizer)
        assert state.optimizer is not None
        assert not state.optimizer.state
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("place", ["tokenizer", "model", "model/tokenizer"])
def test_the_tokenizer_is_beside_the_weights_or_among_them(folder: Path, tmp_path: Path, place: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")))  # noqa: S106
    with set_up(policy_config(folder / "llama")) as state:
        to = str(tmp_path / place)
        MANAGER.save_checkpoint(
            state.model, str(tmp_path), tokenizer=tokenizer, tokenizer_path=to, checkpointing_cfg={}
        )
        MANAGER.load_checkpoint(state.model, str(tmp_path))
    assert (tmp_path / place / "tokenizer.json").exists()


def test_the_weights_of_a_hugging_face_model_are_loaded_from_their_own_folder(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "llama" / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, tmp_path / "model.safetensors")
    with set_up(policy_config(folder / "llama"), weights_path=str(tmp_path)) as state:
        loaded = setup_cases.whole_weights(state.model)
    assert all(torch.equal(loaded[name], value + 1) for name, value in weights.items())


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def interrupt_once_in(function: str) -> None:
    """Send SIGUSR1 once the main thread is in a function of this name."""
    main = threading.main_thread().ident or 0
    eventually(lambda: function in [frame.name for frame in traceback.extract_stack(sys._current_frames()[main])])
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupted_wait_is_no_failed_save_and_forgets_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    manager, may_write = CheckpointManager(), threading.Event()

    def write(*_: object) -> None:
        may_write.wait(60)
        if fails:
            raise OSError("disk full")

    monkeypatch.setattr(_saving, "write_folders", write)
    before = signal.signal(signal.SIGUSR1, interrupt)
    with set_up(policy_config(folder / "llama"), init_optimizer=False) as state:
        manager.save_checkpoint(state.model, str(tmp_path), checkpointing_cfg={"is_async": True})
        sender = threading.Thread(target=interrupt_once_in, args=["finish_checkpoint"])
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            manager.finish_checkpoint()
        sender.join()
        may_write.set()
        with pytest.raises(RuntimeError, match="model was not saved: OSError: disk full") if fails else nullcontext():
            manager.close()
        assert (tmp_path / "model").exists() != fails
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("files", "error", "text"),
    [
        ([], FileNotFoundError, "contains no weights"),
        (["model/pytorch_model.bin"], ValueError, "contains pickled weights"),
        (["model/adapter_model.safetensors"], ValueError, "contains the weights of an adapter"),
    ],
)
def test_weights_that_cannot_be_loaded_are_refused(
    folder: Path, tmp_path: Path, files: list[str], error: type[Exception], text: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert_refused(policy_config(folder / "llama"), error, text, weights_path=str(tmp_path))


def test_weights_of_another_model_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.ones(32)}, tmp_path / "model.safetensors")
    config, text = policy_config(folder / "llama"), "Missing key in checkpoint"
    assert_refused(config, CheckpointException, text, weights_path=str(tmp_path))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], ("safetensors", False)),
        (["a/model.safetensors"], ("safetensors", False)),
        (["a/b/__0_0.distcp", "model.safetensors"], ("torch_save", False)),
        (["model.safetensors", "training_args.bin"], ("safetensors", False)),
        (["a/model.pt"], ("torch_save", False)),
        (["adapter_model.safetensors"], ("safetensors", True)),
        (["a/adapter_config.json", "a/model.bin"], ("torch_save", True)),
    ],
)
def test_the_format_is_known_from_names_in_all_subfolders(
    tmp_path: Path, files: list[str], expected: tuple[str, bool]
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert detect_checkpoint_format(str(tmp_path)) == expected
    assert detect_checkpoint_format(str(tmp_path / "nowhere")) == ("safetensors", False)


def test_plain_state_keeps_its_kinds(tmp_path: Path) -> None:
    state = {"betas": (0.9, [1, 2]), "milestones": Counter({2: 1}), "last_epoch": 3, "none": None}
    write_plain(tmp_path / "state", state)
    found = read_plain(tmp_path / "state", like={**state, "last_epoch": 0})
    assert found == state
    assert type(found["milestones"]) is Counter


def test_random_numbers_go_on_if_the_ranks_are_arranged_as_before(folder: Path, tmp_path: Path) -> None:
    """Not if as many ranks divide tensors instead of data."""
    undivided = torch.nn.Linear(1, 1)
    with set_up(policy_config(folder / "llama")) as state:
        divided = distribute_module(torch.nn.Linear(1, 1), init_device_mesh("cpu", (1,), mesh_dim_names=("tp",)))
        written = torch.get_rng_state()
        write_random_state(tmp_path, state.model)
        torch.manual_seed(99)
        other = torch.get_rng_state()
        for model in (undivided, divided):
            read_random_state(tmp_path, model)
            assert torch.equal(torch.get_rng_state(), other)
        read_random_state(tmp_path, state.model)
        assert torch.equal(torch.get_rng_state(), written)
