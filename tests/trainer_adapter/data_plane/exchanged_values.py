"""Random values that ranks exchange, and a comparison of two of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from tests.tensors import jagged, objects, raw, some

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
    tensor = some(rng.choice(WIRE_DTYPES).torch_dtype, *shape, seed=rng.getrandbits(30))
    return tensor.transpose(0, -1) if tensor.dim() > 1 and rng.random() < 0.3 else tensor


def jagged_of(rng: random.Random, _depth: int) -> torch.Tensor:
    lengths = [rng.randint(0, 4) for _ in range(rng.randint(1, 4))]
    values = some(torch.bfloat16, sum(lengths), *rng.choice([[], [2]]), seed=rng.getrandbits(30))
    return jagged(values, lengths)


def list_of(rng: random.Random, depth: int) -> list[Any]:
    return [value_of(rng, depth + 1) for _ in range(rng.randint(0, 3))]


def dict_of(rng: random.Random, depth: int) -> dict[Any, Any]:
    return {rng.choice([*WORDS, 0, 7]): value_of(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def objects_of(rng: random.Random, depth: int) -> Any:
    return objects(*list_of(rng, depth))


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
    return got.shape == expected.shape and raw(got) == raw(expected)
