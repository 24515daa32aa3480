"""Files that carry weights from the trainer to the generators: one checkpoint for each version, the newest few kept."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from safetensors.torch import load_file
from transformers import PreTrainedModel

from trainer_adapter.policy import DataPlanePolicy

_KEPT = 3
_POLL_S = 0.02
_PARTIAL = ".partial"


def publish(policy: DataPlanePolicy, folder: Path, version: int, *, is_driver: bool) -> None:
    """Write a version atomically: a reader sees all of it or nothing. Removes versions that are no longer needed.

    All processes of the trainer call this.
    """
    partial = folder / f"{version}{_PARTIAL}"
    policy.save_checkpoint(str(partial), checkpointing_cfg={"save_consolidated": True})
    if is_driver:
        partial.rename(folder / str(version))
        shutil.rmtree(folder / str(version - _KEPT), ignore_errors=True)


def load_newest(model: PreTrainedModel, folder: Path, at_least: int, loaded: int, timeout_s: float) -> int:
    """Load the newest version unless it is `loaded`. Returns the version in use.

    Blocks until version `at_least` exists. Raises TimeoutError after timeout_s seconds.
    """
    deadline = time.monotonic() + timeout_s
    while (newest := _newest(folder)) < at_least:
        if time.monotonic() > deadline:
            raise TimeoutError(f"weight version {at_least} was not published within {timeout_s:.0f} s")
        time.sleep(_POLL_S)
    if newest != loaded:
        _load(model, folder / str(newest) / "model")
    return newest


def _newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.iterdir() if path.suffix != _PARTIAL), default=-1)


def _load(model: PreTrainedModel, folder: Path) -> None:
    """Load weights from files. A tensor with several names, such as tied embeddings, is stored under one of them."""
    weights = {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}
    missing, surplus = model.load_state_dict(weights, strict=False)
    model.tie_weights()
    if surplus or set(missing) - set(model.all_tied_weights_keys):
        raise ValueError(f"{folder} does not hold the model's weights: missing {missing}, surplus {surplus}")
