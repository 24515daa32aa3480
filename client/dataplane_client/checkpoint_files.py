"""The data plane's part of a trainer's checkpoint: a snapshot of the server, and a file in the checkpoint's folder.

`data_plane.json` names the snapshot and keeps the trainer's metadata. It comes last and at once, so a folder that has
it is complete. A snapshot that no file names is of a save that did not end, or of a checkpoint that was removed.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import UnsupportedTypeError

FILE = "data_plane.json"

_MOST_LETTERS = 80
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")


def save_checkpoint(
    client: DataPlaneClient, folder: str | os.PathLike[str], metadata: Mapping[str, object], name: str = ""
) -> None:
    """Take a snapshot and name it in the folder, which is made if it is missing. Blocks until both are on disk, at most
    the client's timeout_s. metadata: what JSON can hold and gives back, so with strings for keys and without tuples;
    UnsupportedTypeError (a TypeError) otherwise. name: with which the snapshot's name begins; by default the folder's.
    """
    begin_checkpoint(client, folder, metadata, name)()


def begin_checkpoint(
    client: DataPlaneClient, folder: str | os.PathLike[str], metadata: Mapping[str, object], name: str = ""
) -> Callable[[], None]:
    """Like save_checkpoint, for a folder whose other files are still being written: call the result, which names the
    snapshot in the folder, when they are complete.
    """
    path = Path(folder)
    name = f"{_UNFIT.sub('-', name or path.name)[:_MOST_LETTERS]}-{uuid.uuid4().hex[:8]}".lstrip("._-")
    try:
        text = json.dumps({"snapshot": name, "metadata": dict(metadata)})
    except TypeError as error:
        raise UnsupportedTypeError(f"save_checkpoint: metadata must be what JSON can hold: {error}") from None
    read = json.loads(text)["metadata"]
    if changed := [key for key, value in metadata.items() if key not in read or not _is_kept(value, read[key])]:
        raise UnsupportedTypeError(
            f"save_checkpoint: metadata must be what JSON gives back, with strings for keys and lists for tuples, "
            f"unlike {', '.join(map(repr, changed))}"
        )
    path.mkdir(parents=True, exist_ok=True)
    client.create_snapshot(name)

    def name_snapshot() -> None:
        unfinished = path / f".{FILE}"
        unfinished.write_text(text)
        _sync(unfinished)
        unfinished.replace(path / FILE)
        _sync(path)

    return name_snapshot


def load_checkpoint(client: DataPlaneClient, folder: str | os.PathLike[str]) -> dict[str, object]:
    """Make the server go on from the snapshot that the folder names; returns the metadata. FileNotFoundError if it
    names none; PreconditionError if the server has not got that snapshot.
    """
    path = Path(folder)
    if not (path / FILE).exists():
        raise FileNotFoundError(f"{path} has no {FILE}: nothing was saved here, or the save did not end")
    saved = json.loads((path / FILE).read_text())
    client.restore_snapshot(saved["snapshot"])
    metadata: dict[str, object] = saved["metadata"]
    return metadata


def _is_kept(value: object, read: object) -> bool:
    if isinstance(value, dict) and isinstance(read, dict):
        return value.keys() == read.keys() and all(_is_kept(value[key], read[key]) for key in read)
    if isinstance(value, list) and isinstance(read, list):
        return all(map(_is_kept, value, read))
    return value == read or value != value  # NaN


def _sync(path: Path) -> None:
    """Wait until a file's contents, or the names in a folder, are on stable storage."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
