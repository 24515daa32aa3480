"""Checkpoints of divided models: written by all ranks at once, loaded by any number of them.

    <weights_path>/model        weights, of a model with adapters only theirs, and the model's configuration
    <optimizer_path>/optim      the optimizer's state, and the learning-rate schedule's
    <tokenizer_path>            the tokenizer

All of it is safetensors, MessagePack and JSON: a checkpoint that somebody else wrote is data and nothing in it is run.
For that reason checkpoints in torch's pickled formats are recognised and refused. The ranks share one file system.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainer_adapter.automodel.adapters.files import read_adapters, write_adapters
from trainer_adapter.automodel.adapters.layers import adapted_layers, adapter_weights
from trainer_adapter.automodel.checkpoint._files import (
    _infer_checkpoint_root,
    detect_checkpoint_format,
    read_plain,
    read_tensors,
    write_plain,
    write_tensors,
)
from trainer_adapter.automodel.checkpoint._optimizer import read_optimizer, write_optimizer
from trainer_adapter.automodel.rank import failing_together, report

_SCHEDULER = "scheduler.msgpack"


class CheckpointManager:
    """Saves and loads for all ranks together: each calls each method, with its own part of the same model."""

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
        """Write a checkpoint; back when every rank has written its part.

        Of a model with adapters the base weights are not written: training left them as they were.
        Optimizer and scheduler are saved where there are an optimizer and its path, the tokenizer likewise, by rank 0.
        checkpointing_cfg: `model_save_format` ("safetensors" or None) and `save_consolidated` (whether to write whole
        weights beside the ranks' files, for from_pretrained; adapters are always written whole).

        Raises ValueError without checkpointing_cfg or for another format, AssertionError before setup_distributed,
        FileExistsError where the weights' or the optimizer's folder holds something: pieces of two checkpoints could
        not be told apart. RuntimeError where another rank failed.
        """
        if checkpointing_cfg is None:
            raise ValueError("checkpointing_cfg must be provided")
        _check_format(checkpointing_cfg.get("model_save_format"))
        _require_process_group()
        folder = _new_folder(Path(weights_path) / "model")
        if adapted_layers(model):
            write_adapters(folder, model)
        else:
            write_tensors(folder, _weights(model), bool(checkpointing_cfg.get("save_consolidated", False)))
        if optimizer is not None and optimizer_path is not None:
            optim = _new_folder(Path(optimizer_path) / "optim")
            write_optimizer(optim, model, optimizer)
            _on_first_rank_write_schedule(optim, scheduler)
        with failing_together("writing the model's configuration and the tokenizer"):
            if torch.distributed.get_rank() == 0:
                model.config.save_pretrained(folder)
                if tokenizer is not None and tokenizer_path is not None:
                    tokenizer.save_pretrained(tokenizer_path)
        report(f"[Rank {torch.distributed.get_rank()}] checkpoint saved: {_infer_checkpoint_root(str(folder))}")

    def load_checkpoint(
        self,
        model: Any,
        weights_path: str,
        optimizer: Optimizer | None = None,
        optimizer_path: str | None = None,
        scheduler: LRScheduler | None = None,
    ) -> None:
        """Load a checkpoint in place, however the ranks that wrote it were arranged.

        weights_path: what save_checkpoint was given, or the folder of the weights themselves, those of a Hugging Face
        model included. Weights of adapters, or of a base model, leave the model's others as they are. The optimizer and
        the scheduler are left alone where there is no optimizer_path.

        Raises AssertionError before setup_distributed, FileNotFoundError where there are no weights, ValueError for
        pickled weights, adapters that the model does not have and the state of another optimizer. RuntimeError where
        another rank failed.
        """
        _require_process_group()
        _read_weights(weights_path, model)
        if optimizer is None or optimizer_path is None:
            return
        optim = _subfolder(optimizer_path, "optim")
        read_optimizer(optim, model, optimizer)
        if scheduler is not None:
            scheduler.load_state_dict(read_plain(optim / _SCHEDULER, like=scheduler.state_dict()))


def _require_process_group() -> None:
    if not torch.distributed.is_initialized():
        raise AssertionError("Checkpointer must be initialized: setup_distributed comes first")


def _check_format(save_format: str | None) -> None:
    if save_format not in (None, "safetensors"):
        raise ValueError(f"checkpointing_cfg.model_save_format must be safetensors, not {save_format!r}")


def _weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """This rank's part of the state dict without adapters, a tensor with several names (tied embeddings) under its
    first one only.
    """
    first_names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())} - adapter_weights(model)
    state: dict[str, Any] = get_model_state_dict(model)
    return {name: value for name, value in state.items() if name in first_names}


def _new_folder(folder: Path) -> Path:
    """The folder, made by rank 0 where it was not there."""
    with failing_together(f"making {folder}"):
        if torch.distributed.get_rank() == 0:
            if folder.exists() and any(folder.iterdir()):
                raise FileExistsError(f"{folder} is not empty; a checkpoint needs a new folder")
            folder.mkdir(parents=True, exist_ok=True)
    return folder


def _on_first_rank_write_schedule(folder: Path, scheduler: LRScheduler | None) -> None:
    with failing_together("writing the learning-rate schedule"):
        if scheduler is not None and torch.distributed.get_rank() == 0:
            write_plain(folder / _SCHEDULER, scheduler.state_dict())


def _subfolder(path: str, name: str) -> Path:
    inside = Path(path) / name
    return inside if inside.is_dir() else Path(path)


def _read_weights(path: str, model: torch.nn.Module) -> None:
    folder = _subfolder(path, "model")
    save_format, is_adapter = detect_checkpoint_format(str(folder))
    if save_format != "safetensors":
        raise ValueError(f"{folder} holds pickled weights, which could run code when loaded; convert to safetensors")
    if is_adapter and not adapted_layers(model):
        raise ValueError(f"{folder} holds the weights of an adapter; the model has none: enable dtensor_cfg.lora_cfg")
    if not any(folder.glob("*.safetensors")):
        raise FileNotFoundError(f"there are no weights in {folder}")
    if is_adapter:
        read_adapters(folder, model)
    else:
        read_tensors(folder, _weights(model))
