"""CheckpointManager, and the folders of a checkpoint.

    <weights_path>/model        the weights (with adapters, only theirs) and the model's configuration
    <optimizer_path>/optim      the state of the optimizer, of the learning-rate schedule and of the random numbers
    <tokenizer_path>            the tokenizer

A folder has its name when all ranks have written its files, the model's last; until then the name ends with
".unfinished". Every file is safetensors, MessagePack or JSON, so loading a checkpoint never runs code. Checkpoints in
torch's pickled formats are recognised and refused. The ranks share one file system.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainer_adapter.automodel.adapters.files import read_adapters, write_adapters
from trainer_adapter.automodel.adapters.layers import adapted_layers
from trainer_adapter.automodel.checkpoint._files import (
    _infer_checkpoint_root,
    complete,
    detect_checkpoint_format,
    own_weights,
    read_plain,
    read_tensors,
    unfinished,
    write_folders,
    write_plain,
)
from trainer_adapter.automodel.checkpoint._optimizer import read_optimizer, write_numbers
from trainer_adapter.automodel.checkpoint._random import read_random_state, write_random_state
from trainer_adapter.automodel.checkpoint._saving import Saver
from trainer_adapter.automodel.parallel.fsdp import release_whole_weights
from trainer_adapter.automodel.rank import fail_together, report

_SCHEDULER = "scheduler.msgpack"


class CheckpointManager:
    """Saves and loads for all ranks together: each rank calls each method, with its own part of the same model."""

    def __init__(self) -> None:
        self._saver = Saver()

    def save_checkpoint(
        self,
        model: Any,
        weights_path: str,
        optimizer: Optimizer | None = None,
        optimizer_path: str | None = None,
        scheduler: LRScheduler | None = None,
        tokenizer: Any | None = None,
        tokenizer_path: str | None = None,
        checkpointing_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint; returns when every rank has written its part, or, with `is_async`, has copied it.

        With adapters the base weights are not written, because training does not change them. Optimizer, scheduler and
        random state are saved if `optimizer` and `optimizer_path` are given; the tokenizer, by rank 0, if `tokenizer`
        and `tokenizer_path` are given.

        checkpointing_cfg: `model_save_format` ("safetensors" or None), `save_consolidated` (also write whole
        weights, for from_pretrained, beside the ranks' files; adapters are always whole) and `is_async`: a thread
        writes the tensors from copies on the host. One save is in flight: the next one waits for it, as load_checkpoint
        and finish_checkpoint do, and raises RuntimeError naming its folder if it failed.

        Raises ValueError without checkpointing_cfg or for another format, AssertionError before setup_distributed,
        FileExistsError if the folder of the weights or of the optimizer is not empty (two checkpoints would mix), and
        RuntimeError if another rank failed.
        """
        if checkpointing_cfg is None:
            raise ValueError("checkpointing_cfg must be provided")
        if (save_format := checkpointing_cfg.get("model_save_format")) not in (None, "safetensors"):
            raise ValueError(f"checkpointing_cfg.model_save_format must be safetensors, not {save_format!r}")
        _require_process_group()
        self.finish_checkpoint()
        release_whole_weights(model)
        folder = Path(weights_path) / "model"
        _make_folder(folder)
        tensors: dict[Path, dict[str, torch.Tensor]] = {}
        if optimizer is not None and optimizer_path is not None:
            optim = Path(optimizer_path) / "optim"
            tensors[optim] = _write_optimizer(optim, model, optimizer, scheduler)
        if adapted_layers(model):
            tensors[folder] = {}
            write_adapters(unfinished(folder), model)
        else:
            tensors[folder] = own_weights(model)
        with fail_together("writing the model's configuration and the tokenizer"):
            if torch.distributed.get_rank() == 0:
                model.config.save_pretrained(unfinished(folder))
                if tokenizer is not None and tokenizer_path is not None:
                    place = Path(tokenizer_path)
                    if place.is_relative_to(folder):  # whose name means that it is complete
                        place = unfinished(folder) / place.relative_to(folder)
                    tokenizer.save_pretrained(place)
        whole = folder if checkpointing_cfg.get("save_consolidated", False) else None
        if checkpointing_cfg.get("is_async", False):
            self._saver.start(tensors, whole)
            return
        write_folders(tensors, whole)
        with fail_together("completing the checkpoint"):
            complete(list(tensors))
        report(f"[Rank {torch.distributed.get_rank()}] checkpoint saved: {_infer_checkpoint_root(str(folder))}")

    def finish_checkpoint(self) -> None:
        """Wait until the save in flight is on disk; RuntimeError naming its folder if it failed."""
        self._saver.finish()

    def close(self) -> None:
        """Wait for the save in flight as finish_checkpoint does, but not for other ranks' calls, and end its thread."""
        self._saver.close()

    def load_checkpoint(
        self,
        model: Any,
        weights_path: str,
        optimizer: Optimizer | None = None,
        optimizer_path: str | None = None,
        scheduler: LRScheduler | None = None,
    ) -> None:
        """Load a checkpoint in place. The ranks that wrote it may have been arranged differently.

        weights_path: as for save_checkpoint, or the folder of the weights itself, also of a Hugging Face model. Loading
        adapters, or a base model, leaves the model's other weights unchanged. Without optimizer_path, optimizer,
        scheduler and random state are unchanged; so is the random state if the ranks were arranged differently.

        Raises AssertionError before setup_distributed, FileNotFoundError if there are no weights, ValueError for
        pickled weights, adapters that the model does not have or the state of another optimizer, and RuntimeError if
        another rank failed.
        """
        _require_process_group()
        self.finish_checkpoint()
        release_whole_weights(model)
        _read_weights(weights_path, model)
        if optimizer is None or optimizer_path is None:
            return
        optim = _find_subfolder(optimizer_path, "optim")
        read_optimizer(optim, model, optimizer)
        with fail_together("reading the learning-rate schedule and the random state"):
            if scheduler is not None:
                scheduler.load_state_dict(read_plain(optim / _SCHEDULER, like=scheduler.state_dict()))
            read_random_state(optim, model)


def _require_process_group() -> None:
    if not torch.distributed.is_initialized():
        raise AssertionError("Checkpointer must be initialized: setup_distributed comes first")


def _make_folder(folder: Path) -> None:
    """Rank 0 makes the folder under the name that it has until it is complete."""
    with fail_together(f"making {folder}"):
        if torch.distributed.get_rank() == 0:
            for found in (folder, unfinished(folder)):
                if found.exists() and any(found.iterdir()):
                    raise FileExistsError(f"{found} is not empty; a checkpoint needs a new folder")
            unfinished(folder).mkdir(parents=True, exist_ok=True)


def _write_optimizer(
    folder: Path, model: torch.nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None
) -> dict[str, torch.Tensor]:
    """Write all but the tensors of the optimizer's state, and return these."""
    _make_folder(folder)
    tensors = write_numbers(unfinished(folder), model, optimizer)
    with fail_together("writing the learning-rate schedule"):
        if scheduler is not None and torch.distributed.get_rank() == 0:
            write_plain(unfinished(folder) / _SCHEDULER, scheduler.state_dict())
    write_random_state(unfinished(folder), model)
    return tensors


def _find_subfolder(path: str, name: str) -> Path:
    inside = Path(path) / name
    return inside if inside.is_dir() else Path(path)


def _read_weights(path: str, model: torch.nn.Module) -> None:
    folder = _find_subfolder(path, "model")
    with fail_together(f"looking for weights in {folder}"):
        is_adapter = _check_weights(folder, model)
    if is_adapter:
        read_adapters(folder, model)
    else:
        read_tensors(folder, own_weights(model))


def _check_weights(folder: Path, model: torch.nn.Module) -> bool:
    """Whether they are those of an adapter."""
    save_format, is_adapter = detect_checkpoint_format(str(folder))
    if save_format != "safetensors":
        raise ValueError(
            f"{folder} contains pickled weights, which can run code when loaded; convert them to safetensors"
        )
    if is_adapter and not adapted_layers(model):
        raise ValueError(
            f"{folder} contains the weights of an adapter, and the model has none: enable dtensor_cfg.lora_cfg"
        )
    if not any(folder.glob("*.safetensors")):
        raise FileNotFoundError(f"{folder} contains no weights (*.safetensors)")
    return is_adapter
