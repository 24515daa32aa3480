"""A save whose tensors are written beside training.

The tensors are copied to the host first, so training may change the originals. A thread then writes them, one folder
after the other, over a process group of its own: collectives of two threads must not meet in one group. Torch's
`async_save` does the same for one folder; here the folders get their names at the end, when all of them are complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from trainer_adapter.automodel.checkpoint._files import complete, write_folders
from trainer_adapter.automodel.rank import fail_together


class Saver:
    """Writes one checkpoint at a time; a collective object of all ranks."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._group: ProcessGroup | None = None
        self._saving: tuple[Path, Future[None]] | None = None

    def start(self, tensors: Mapping[Path, dict[str, torch.Tensor]], consolidated: Path | None) -> None:
        """Write the tensors of each folder and complete the folders in this order; returns when all are copied.

        consolidated: the folder that gets whole tensors as well.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "checkpoint")
            self._group = torch.distributed.new_group(backend="gloo")
        with fail_together("copying the checkpoint to the host"):
            copies = {folder: _copy(own) for folder, own in tensors.items()}
        self._saving = list(copies)[-1], self._thread.submit(self._write, copies, consolidated)

    def _write(self, tensors: Mapping[Path, dict[str, Any]], consolidated: Path | None) -> None:
        write_folders(tensors, consolidated, self._group)
        complete(list(tensors))

    def finish(self) -> None:
        """Wait for the save in flight on all ranks. RuntimeError naming its folder if it failed."""
        if self._thread is not None:  # on all ranks; a save may be in flight on those alone that were interrupted here
            with fail_together(f"saving {self._saving[0] if self._saving else 'a checkpoint'}"):
                self._wait()

    def close(self) -> None:
        """End the thread after the save in flight, without waiting for other ranks' calls. Raises like finish."""
        try:
            self._wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None

    def _wait(self) -> None:
        if self._saving is None:
            return
        folder, written = self._saving
        error = written.exception()  # an interruption of this wait is none, and leaves the save in flight
        self._saving = None
        if error is not None:
            raise RuntimeError(f"{folder} was not saved: {type(error).__name__}: {error}") from error


def _copy(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    stager = DefaultStager(StagingOptions(*[False] * 4))  # in this thread, to plain memory
    copied: Any = stager.stage(tensors)
    stager.close()
    return dict(copied)
