"""The data plane's part of a checkpoint: a snapshot of the server, taken when all ranks have written theirs.

`data_plane.json` in the folder of the weights names it. The file comes last, so a checkpoint that has it is complete:
the snapshot is on the server's disk, and the files of all ranks were written. A checkpoint without it was saved without
a data plane, or its save did not end. A snapshot that no checkpoint names is left from a save that did not end, or from
a checkpoint that was removed; its folder on the server can be removed, too.
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

from dataplane_client.client import DataPlaneClient
from trainer_adapter.automodel.checkpoint import _infer_checkpoint_root

PART = "data_plane.json"

_MOST_LETTERS = 100


def take_snapshot(client: DataPlaneClient, weights_path: str) -> None:
    """Take a snapshot, and name it in the checkpoint."""
    name = f"{_name_of(weights_path)}-{uuid.uuid4().hex[:8]}"
    client.create_snapshot(name)
    unfinished = Path(weights_path) / f".{PART}"
    unfinished.write_text(json.dumps({"snapshot": name}))
    unfinished.rename(Path(weights_path) / PART)


def restore_snapshot(client: DataPlaneClient, weights_path: str) -> None:
    """Restore the snapshot that the checkpoint names. FileNotFoundError if it names none."""
    try:
        part = json.loads((Path(weights_path) / PART).read_text())
    except FileNotFoundError:
        missing = f"{weights_path} has no {PART}: it was saved without data_plane, or the save did not end"
        raise FileNotFoundError(f"{missing}; load another checkpoint, or this one without data_plane") from None
    client.restore_snapshot(part["snapshot"])


def _name_of(weights_path: str) -> str:
    """The name of the checkpoint's folder, which often has the step, as the beginning of a snapshot's name."""
    root = Path(_infer_checkpoint_root(str(Path(weights_path) / "model"))).name
    return re.sub(r"[^A-Za-z0-9._-]", "-", root).lstrip("._-")[:_MOST_LETTERS] or "checkpoint"
