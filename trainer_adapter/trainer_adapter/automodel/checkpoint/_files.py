"""The files of a checkpoint: plain values as MessagePack, sharded tensors as safetensors, and the formats of others.

Every rank writes the tensors that it holds to a file of its own, with the place of each piece in the whole tensor;
ranks with another layout read the pieces that they need. Torch's own file format is not used: reading its index
unpickles, which can run code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import torch
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from trainer_adapter.automodel.adapters.layers import adapter_weights


def write_plain(path: Path, state: Any) -> None:
    """Write numbers, strings, element types, lists and dictionaries. TypeError for another kind, such as a tensor."""
    path.write_bytes(msgpack.packb(state, default=_name_of))


def _name_of(value: object) -> str:
    if isinstance(value, torch.dtype):
        return str(value)
    raise TypeError(f"cannot write a {type(value).__name__} as MessagePack")


def read_plain(path: Path, like: Any) -> Any:
    """Read the state. MessagePack has one kind of list and one of dictionary; `like`, a state of the same structure,
    says which were tuples, counters and element types.
    """
    return _restore_types(msgpack.unpackb(path.read_bytes(), strict_map_key=False), like)


def _restore_types(value: Any, like: Any) -> Any:
    if isinstance(value, dict) and isinstance(like, dict):
        items = {key: _restore_types(item, like.get(key)) for key, item in value.items()}
        return Counter(items) if isinstance(like, Counter) else items
    if isinstance(value, list) and isinstance(like, list | tuple) and len(value) == len(like):
        items_ = [_restore_types(item, old) for item, old in zip(value, like, strict=True)]
        return tuple(items_) if isinstance(like, tuple) else items_
    if isinstance(like, torch.dtype):
        return getattr(torch, value.removeprefix("torch."))
    return value


def own_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """This rank's part of the state dict without adapters; a tensor with several names (tied embeddings) has its first
    one.
    """
    first_names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())} - adapter_weights(model)
    state: dict[str, Any] = get_model_state_dict(model)
    return {name: value for name, value in state.items() if name in first_names}


def unfinished(folder: Path) -> Path:
    """Where the files of a folder are written, so that a folder under its own name is complete."""
    return folder.with_name(f"{folder.name}.unfinished")


def complete(folders: Sequence[Path]) -> None:
    """Give folders whose files all ranks have written their names, the last one last. Rank 0 does it."""
    for folder in folders if torch.distributed.get_rank() == 0 else ():
        unfinished(folder).replace(folder)


def write_folders(
    tensors: Mapping[Path, dict[str, Any]], consolidated: Path | None, group: ProcessGroup | None = None
) -> None:
    """Write this rank's tensors of each unfinished folder; a collective call of the group (None: of all ranks).

    consolidated: a folder that gets whole tensors, for other programs; the ranks' files go to its subfolder `sharded`.
    """
    for folder, own in tensors.items():
        if own:
            whole = folder == consolidated
            writer = HuggingFaceStorageWriter(
                str(unfinished(folder)), save_distributed=True, enable_consolidation=whole
            )
            save(own, storage_writer=writer, process_group=group)


def read_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Fill the tensors in place. Raises torch's CheckpointException naming a tensor that the files do not have."""
    load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)))


def detect_checkpoint_format(weights_path: str) -> tuple[str, bool]:
    """Return the format, "safetensors" or "torch_save", and whether the weights are those of an adapter.

    Looks at the names of the files in all subfolders and opens none. A folder that has no weights or does not exist
    counts as "safetensors", the format in which checkpoints are written.
    """
    files = [path for path in Path(weights_path).rglob("*") if path.is_file()]
    suffixes = {path.suffix for path in files}
    pickled = ".distcp" in suffixes or (".safetensors" not in suffixes and bool(suffixes & {".bin", ".pt", ".pth"}))
    return "torch_save" if pickled else "safetensors", any("adapter" in path.name for path in files)


def _infer_checkpoint_root(weights_path: str) -> str:
    """The folder of the whole checkpoint, for a path such as <root>/weights/model or <root>/model."""
    parent = Path(weights_path).parent
    return str(parent.parent if parent.name.endswith("weights") else parent)
