"""A cheap fingerprint of a call, which lets ranks detect that they are about to make different calls.

It covers metas, plain values and small tensors completely; of large tensors it covers dtype, shape and some thousand
evenly spaced elements. Ranks that claimed different rows, or whose scripts diverged, differ in these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter._exchange import meta_values

_SAMPLED = 4096
_PLAIN = (str, int, float, bool, bytes, type(None))


def digest_of_call(method: str, arguments: Mapping[str, Any]) -> bytes:
    """Equal for equal calls. For objects of other types, such as losses, only the type counts."""
    found = hashlib.blake2b(digest_size=16)
    for part in _parts({"method": method, **arguments}):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, KVBatchMeta):
        value = meta_values(value)
    if isinstance(value, Tensor):
        yield from _tensor_parts(value)
    elif isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif isinstance(value, Mapping):
        yield f"mapping of {len(value)}".encode()
        for name in sorted(value, key=str):
            yield str(name).encode()
            yield from _parts(value[name])
    elif isinstance(value, (list, tuple)):
        yield f"sequence of {len(value)}".encode()
        for entry in value:
            yield from _parts(entry)
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()


def _tensor_parts(tensor: Any) -> Iterator[bytes]:
    if tensor.is_nested:
        yield from _tensor_parts(tensor.offsets())
        tensor = tensor.values()
    elements = tensor.detach().reshape(-1)
    yield f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    step = max(1, elements.numel() // _SAMPLED)
    yield elements[::step].contiguous().view(torch.uint8).cpu().numpy().tobytes()
