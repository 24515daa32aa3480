"""Reading a pretrained model's files by all ranks, each its own part.

That is possible if the files have the model's weights under the model's own names. Otherwise transformers has to
convert them (experts that are fused, a base model without a head), and it converts whole models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from trainer_adapter._exchange import largest_over
from trainer_adapter.automodel.checkpoint._files import own_weights
from trainer_adapter.automodel.rank import compute_device, fail_together


def folder_of_parts(model_name: str, model: Any) -> Path | None:
    """The folder of safetensors files that every rank can read its part of; None on all ranks if one of them cannot.

    model: before it is sharded. A collective call of all ranks. If one has damaged files, all raise.
    """
    with fail_together(f"reading the files of {model_name}"):
        folder = _local_folder(model_name)
        fits = folder is not None and _fits(folder, model)
    return folder if not largest_over(int(not fits), None, compute_device()) else None


def _local_folder(model_name: str) -> Path | None:
    from huggingface_hub import snapshot_download  # comes with transformers, which may not be installed
    from huggingface_hub.errors import LocalEntryNotFoundError

    if Path(model_name).is_dir():
        return Path(model_name)
    try:
        return Path(snapshot_download(model_name, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):  # not here yet, or no name that a hub has
        return None


def _fits(folder: Path, model: Any) -> bool:
    from transformers.conversion_mapping import get_model_conversion_mapping  # may not be installed

    is_quantized = getattr(model.config, "quantization_config", None) is not None
    if is_quantized or get_model_conversion_mapping(model, add_legacy=False) or not any(folder.glob("*.safetensors")):
        return False
    held = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return all(getattr(held.get(name), "size", None) == value.shape for name, value in own_weights(model).items())
