"""Random values that ranks exchange, and a comparison of two of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from dataplane_client.codec import WIRE_DTYPES

WORDS = ["", "a", "long " * 40, "ü", "\N{SNOWMAN}"]
SCALARS: list[Any] = [None, True, False, 0, -1, 2**63, -(2**63), 1.5, float("inf"), b"", b"\x00\xff", *WORDS]


def mapping_of(rng: random.Random) -> dict[str, Any]:
    return {f"{word}{number}": value_of(rng, 0) for number in range(rng.randint(0, 6)) for word in [rng.choice(WORDS)]}


def value_of(rng: random.Random, depth: int) -> Any:
    kinds: list[Any] = [scalar_of, tensor_of, tensor_of, jagged_of]
    if depth < 3:
        kinds += [list_of, dict_of, objects_of, packed_of]
    return rng.choice(kinds)(rng, depth)


def scalar_of(rng: random.Random, _depth: int) -> Any:
    return rng.choice(SCALARS)


def tensor_of(rng: random.Random, _depth: int) -> torch.Tensor:
    shape = [rng.choice([0, 1, 2, 3]) for _ in range(rng.randint(0, 3))]
    dtype = rng.choice(WIRE_DTYPES)
    tensor = random_tensor(rng, shape, dtype.torch_dtype, dtype.item_size)
    return tensor.transpose(0, -1) if tensor.dim() > 1 and rng.random() < 0.3 else tensor


def random_tensor(rng: random.Random, shape: list[int], dtype: torch.dtype, item_size: int) -> torch.Tensor:
    """Any bits, NaNs with payloads among them."""
    entries = int(np.prod(shape))
    if dtype is torch.bool:
        return torch.tensor([rng.random() < 0.5 for _ in range(entries)], dtype=dtype).reshape(shape)
    data = bytearray(rng.randbytes(entries * item_size))
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def jagged_of(rng: random.Random, _depth: int) -> torch.Tensor:
    lengths = [rng.randint(0, 4) for _ in range(rng.randint(1, 4))]
    values = random_tensor(rng, [sum(lengths), *rng.choice([[], [2]])], torch.bfloat16, 2)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=min(lengths), max_seqlen=max(lengths))


def list_of(rng: random.Random, depth: int) -> list[Any]:
    return [value_of(rng, depth + 1) for _ in range(rng.randint(0, 3))]


def dict_of(rng: random.Random, depth: int) -> dict[Any, Any]:
    return {rng.choice([*WORDS, 0, 7]): value_of(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def objects_of(rng: random.Random, depth: int) -> Any:
    objects = np.empty(rng.randint(0, 3), object)
    for row in range(len(objects)):
        objects[row] = value_of(rng, depth + 1)
    return objects


def packed_of(rng: random.Random, _depth: int) -> PackedTensor:
    rows = [None if rng.random() < 0.3 else torch.rand(rng.randint(0, 2), 3) for _ in range(rng.randint(1, 3))]
    packed = PackedTensor(rows, dim_to_pack=0)
    return packed.slice([]) if rng.random() < 0.2 else packed


def equal(got: Any, expected: Any) -> bool:
    """Of the same type and bit for bit the same."""
    if type(got) is not type(expected):
        return False
    if isinstance(expected, torch.Tensor):
        return equal_tensors(got, expected)
    if isinstance(expected, PackedTensor):
        return got.dim_to_pack == expected.dim_to_pack and equal(got.tensors, expected.tensors)
    if isinstance(expected, np.ndarray):
        return equal(got.tolist(), expected.tolist())
    if isinstance(expected, list):
        return len(got) == len(expected) and all(map(equal, got, expected))
    if isinstance(expected, dict):
        return list(got) == list(expected) and all(equal(got[key], expected[key]) for key in expected)
    return bool(got == expected)


def equal_tensors(got: torch.Tensor, expected: torch.Tensor) -> bool:
    if got.is_nested != expected.is_nested or got.dtype != expected.dtype:
        return False
    if expected.is_nested:
        rows, wanted = list(got.unbind()), list(expected.unbind())
        return len(rows) == len(wanted) and all(map(equal_tensors, rows, wanted))
    return got.shape == expected.shape and bytes_of(got) == bytes_of(expected)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
