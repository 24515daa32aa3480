"""Files that carry weights from the trainer to the generators: one checkpoint for each version, the newest few kept."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import load_file
from transformers import PreTrainedModel

from trainer_adapter.policy import DataPlanePolicy

_PARTIAL = ".partial"


def publish(policy: DataPlanePolicy, folder: Path, version: int, oldest: int, *, is_driver: bool) -> None:
    """Write a version atomically: a reader sees all of it or nothing. Removes versions before `oldest`.

    All processes of the trainer call this.
    """
    partial = folder / f"{version}{_PARTIAL}"
    policy.save_checkpoint(str(partial), checkpointing_cfg={"save_consolidated": True})
    if is_driver:
        partial.rename(folder / str(version))
        for path in folder.iterdir():
            if int(path.name) < oldest:
                shutil.rmtree(path)


def remove_newer(folder: Path, version: int) -> None:
    """Remove the versions after this one, and what was left of an attempt to write one."""
    for path in folder.iterdir():
        if path.suffix == _PARTIAL or int(path.name) > version:
            shutil.rmtree(path)


def load(model: PreTrainedModel, folder: Path, version: int, loaded: tuple[int, int]) -> tuple[int, int]:
    """Load a version unless it is `loaded`. Returns its number and when it was written, since numbers come again when a
    run goes back to a checkpoint. FileNotFoundError if the version was removed.
    """
    found = version, (folder / str(version)).stat().st_mtime_ns
    if found != loaded:
        _load(model, folder / str(version) / "model")
    return found


def _load(model: PreTrainedModel, folder: Path) -> None:
    """Load weights from files. A tensor with several names, such as tied embeddings, is stored under one of them."""
    weights = {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}
    missing, surplus = model.load_state_dict(weights, strict=False)
    model.tie_weights()
    if surplus or set(missing) - set(model.all_tied_weights_keys):
        raise ValueError(f"{folder} does not hold the model's weights: missing {missing}, surplus {surplus}")
