"""The Unix socket of a trainer's rank and the engine on the same device; both derive its name."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import torch


def stream_endpoint(device: torch.device, rank: int, folder: str | os.PathLike[str] | None = None) -> str:
    """ipc://<folder>/GPU-<uuid>.sock on a GPU, ipc://<folder>/rank<rank>.sock on the CPU, for ZeroMQ.

    folder: make it for its owner alone, which is not checked. None: a folder of this user in the system's folder for
    temporary files, made if missing; PermissionError if it belongs to another user or is open to others. Jobs on the
    CPUs of one host need different folders. The path of a socket can have 107 bytes.
    """
    own = own_folder(Path(tempfile.gettempdir())) if folder is None else Path(folder)
    name = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else f"rank{rank}"
    return f"ipc://{own}/{name}.sock"


def own_folder(parent: Path) -> Path:
    """Return this user's folder in `parent`; makes it if missing."""
    folder = parent / f"rl-dataplane-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} must be a folder of this user with permissions 0700")
    return folder
