"""Weights on their way from the trainer to the generators: one safetensors file a version, the newest few kept."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from safetensors.torch import load_model, save_model

_KEPT = 3
_POLL_S = 0.02


def publish(model: torch.nn.Module, folder: Path, version: int) -> None:
    """Write a version so that a reader sees all of it or nothing; versions that nobody loads any more are removed."""
    partial = folder / f"{version}.partial"
    save_model(model, str(partial))
    partial.rename(_path(folder, version))
    _path(folder, version - _KEPT).unlink(missing_ok=True)


def load_newest(model: torch.nn.Module, folder: Path, at_least: int, loaded: int, timeout_s: float) -> int:
    """Load the newest version unless `loaded` is it; blocks until `at_least` is there. Returns the version in place.

    Raises TimeoutError after timeout_s seconds.
    """
    deadline = time.monotonic() + timeout_s
    while (newest := max((int(path.stem) for path in folder.glob("*.safetensors")), default=-1)) < at_least:
        if time.monotonic() > deadline:
            raise TimeoutError(f"weight version {at_least} did not come within {timeout_s:.0f} s")
        time.sleep(_POLL_S)
    if newest != loaded:
        load_model(model, str(_path(folder, newest)))
    return newest


def _path(folder: Path, version: int) -> Path:
    return folder / f"{version}.safetensors"
