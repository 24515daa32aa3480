"""Tensors that are divided over ranks, as safetensors files through torch's distributed checkpoints.

Every rank writes what it holds into a file of its own, with the place of each piece in the whole tensor; ranks that are
divided otherwise read the pieces that they need. Torch's own file format is not used: reading its index unpickles,
which runs whatever code somebody put there.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


def write_tensors(folder: Path, tensors: dict[str, torch.Tensor], consolidated: bool) -> None:
    """consolidated: the ranks' files go to <folder>/sharded, and files of whole tensors, as others read them, to the
    folder itself.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True, enable_consolidation=consolidated)
    save(tensors, storage_writer=writer)


def read_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Fill the tensors in place. Raises torch's CheckpointException naming a tensor that the files do not have."""
    load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)))
