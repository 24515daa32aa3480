"""The checkpoints of a run: `checkpoints/<step>`, each with a snapshot of the server."""

from __future__ import annotations

from pathlib import Path

RESUMED = "resumed from checkpoint"
"""What a trainer says when the server has gone back to the snapshot of a checkpoint."""


def newest(run_dir: Path) -> int | None:
    """The step of the newest complete checkpoint; None if there is none."""
    complete = (run_dir / "checkpoints").glob("*/data_plane.json")
    return max((int(path.parent.name) for path in complete), default=None)
