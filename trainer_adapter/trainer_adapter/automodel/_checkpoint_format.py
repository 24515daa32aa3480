"""What kind of checkpoint lies in a folder, told by the names of its files alone: nothing is opened."""

from __future__ import annotations

from pathlib import Path


def detect_checkpoint_format(weights_path: str) -> tuple[str, bool]:
    """The format, "safetensors" or "torch_save", and whether the weights are those of an adapter.

    Looks at the files of all subfolders. A folder that holds no weights, or does not exist, counts as "safetensors",
    the format in which checkpoints are written.
    """
    files = [path for path in Path(weights_path).rglob("*") if path.is_file()]
    suffixes = {path.suffix for path in files}
    pickled = ".distcp" in suffixes or (".safetensors" not in suffixes and bool(suffixes & {".bin", ".pt", ".pth"}))
    return "torch_save" if pickled else "safetensors", any("adapter" in path.name for path in files)


def _infer_checkpoint_root(weights_path: str) -> str:
    """The folder of the whole checkpoint, for a path like <root>/weights/model or <root>/model."""
    parent = Path(weights_path).parent
    return str(parent.parent if parent.name.endswith("weights") else parent)
