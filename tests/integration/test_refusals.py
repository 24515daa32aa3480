"""Bad puts are refused at the boundary: the error names partition, sample, field and rule, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tests.integration.conftest import unchanged
from tests.tensors import objects
from torch.nested import nested_tensor_from_jagged

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InvalidArgumentError, NotFoundError, UnsupportedTypeError

TYPE = (UnsupportedTypeError, TypeError)
VALUE = (InvalidArgumentError, ValueError)


@pytest.fixture
def way() -> str:
    """What is refused, and how that is told, does not depend on the way."""
    return "grpc"


def jagged(lengths: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    return nested_tensor_from_jagged(torch.zeros(int(offsets[-1]), dtype=dtype), offsets=offsets)


def refused(name: str, kinds: tuple[type, type], fragments: Sequence[str], **put: object) -> object:
    """A put, by the arguments of put_samples that differ from a harmless one, and how it is refused."""
    return pytest.param(put, kinds, fragments, id=name)


int64 = partial(jagged, dtype=torch.int64)

COLUMNS = [
    refused("rows fewer than ids", VALUE, ["'p'", "2 rows", "3 samples"], fields={"reward": torch.zeros(2)}),
    refused("a batch size other than the ids", VALUE, ["'p'", "4 rows", "3 samples"],
        fields=TensorDict({"reward": torch.zeros(4)}, batch_size=[4])),
    refused("another element type", VALUE, ["'p'", "'reward'", "float64", "float32"],
        fields={"reward": torch.zeros(3, dtype=torch.float64)}),
    refused("ragged rows where rows are scalars", VALUE, ["'p'", "'reward'", "jagged", "dense"],
        fields={"reward": jagged([1, 2, 1])}),
    refused("tensors where objects were", VALUE,
        ["'p'", "'text'", "holds object", "put tensordict.NonTensorStack(*rows)"], fields={"text": torch.zeros(3)}),
    refused("arrays as objects where tensors were", VALUE, ["'p'", "'image'", "has object", "put a list of them"],
        fields={"image": objects(*np.zeros((3, 4, 5)))}),
    refused("fields in a list", TYPE, ["'p'", "TensorDict", "list"], fields=[torch.zeros(3)]),
    refused("a field name that is no str", TYPE, ["'p'", "field name", "int"], fields={7: torch.zeros(3)}),
    refused("nested mappings", TYPE, ["'p'", "'text'", "dict"], fields={"text": {"x": torch.zeros(3)}}),
]  # fmt: skip

LENGTHS = [
    refused("a per-token field against the row's length", VALUE,
        ["'p'", "'b'", "'logprobs' has 4", "'tokens' as stored has 3", "per-token"],
        fields={"logprobs": jagged([2, 4, 1])}),
    refused("too few lengths", VALUE, ["'p'", "2 sequence_lengths", "3 samples"], sequence_lengths=[1, 2]),
]  # fmt: skip

LEAVES = [
    refused("a set as an object", TYPE, ["'p'", "'text'", "row 1", "set"], fields={"text": objects("a", {1}, "b")}),
    refused("a tensor without rows", VALUE, ["'p'", "'reward'", "0-d"],
        fields={"text": objects(1, 2, 3), "reward": torch.tensor(1.0)}),
    refused("one number", VALUE, ["'p'", "'reward'", "float", "one for each row"], fields={"reward": 1.0}),
    refused("one str", TYPE, ["'p'", "'text'", "str", "one value for each row"], fields={"text": "abc"}),
    refused("a generator", TYPE, ["'p'", "'reward'", "generator"], fields={"reward": (x for x in (1.0, 2.0, 3.0))}),
    refused("an array without rows", VALUE, ["'p'", "'reward'", "0-d"], fields={"reward": np.array(1.0)}),
]  # fmt: skip

FLAT = ["only", "Flatten the rows and put their shapes as a column beside them"]
LISTS = [
    refused(name, VALUE, ["'p'", f"'{field}'", *fragments], fields={field: column})
    for name, field, column, fragments in (
        ("a list of other rows", "reward", [1.0, 2.0], ["2 rows", "3 samples"]),
        ("numbers and text", "reward", [1.0, "a", 2.0], ["row 1 (sample 'b')", "str", "number", "NonTensorStack"]),
        ("numbers and None", "reward", [1.0, 2.0, None], ["row 2 (sample 'c')", "None, but", "number", "such as nan"]),
        ("bools and ints", "reward", [True, 1, 2], ["row 1 (sample 'b')", "bool, int"]),
        ("NumPy's and Python's floats", "reward", [0.5, np.float64(1), 1.5], ["row 1 (sample 'b')", "float, float64"]),
        ("lists and None", "logprobs", [None, [1.0], []], ["row 0 (sample 'a')", "give an empty list"]),
        ("numbers and lists", "reward", [[1], 1, [2]], ["row 1 (sample 'b')", "a list of numbers", "one kind"]),
        ("numbers and an empty list", "reward", [1, 2, []], ["row 2 (sample 'c')", "an empty list", "a number"]),
        ("lists of other depths", "logprobs", [[1.0], [[1.0]], [1.0]], ["row 1 (sample 'b')", "dimensions is 2", "1"]),
        ("other depths in a row", "logprobs", [[1.0], [1.0, [2.0]], [1.0]], ["row 1 (sample 'b')", "depth"]),
        ("lists ragged twice", "logprobs", [[[1], [2, 3]], [[1]], [[1]]], ["row 0 (sample 'a')", *FLAT]),
        ("empty lists in a new field", "logprobs", [[], [], []], ["empty lists", "torch.empty((0, 4))", "*rows"]),
        ("empty lists in a field of numbers", "reward", [[], [], []], ["jagged float32 (*)", "holds dense float32 ()"]),
        ("empty lists in an undeclared field", "rewards", [[], [], []], ["reward,"]),
        ("an integer beyond int64", "reward", [1 << 64, 1, 2], ["row 0 (sample 'a')", "int64", "uint64", "*rows"]),
        ("one beyond it in a list", "tokens", [[1], [2, 1 << 63], [3]], ["row 1 (sample 'b')", "int64", "uint64"]),
        ("one below it in a list of lists", "x", [[[1]], [[2]], [[-1 - (1 << 63)]]], ["row 2 (sample 'c')", "int64"]),
        ("tensors of other types", "logprobs", [torch.ones(1), torch.ones(1).long(), torch.ones(1)], ["int64"]),
        ("tensors of other ranks", "logprobs", [torch.ones(1), torch.ones(1, 1), torch.ones(1)], ["row 1", "is 2"]),
        ("tensors ragged twice", "image", [torch.ones(1, 2), torch.ones(2, 3), torch.ones(1, 2)], ["(2, 3)", *FLAT]),
        (
            "arrays ragged twice",
            "image",
            objects(np.ones((1, 2)), np.ones((2, 3)), np.ones((1, 2))),
            ["row 1 (sample 'b')", *FLAT],
        ),
    )
]

NAMES = [
    refused("a partition id that is no str", TYPE, ["partition id", "int"], partition_id=7),
    refused("an id without UTF-8 form", VALUE, ["'p'", "sample id", "UTF-8"], sample_ids=["a", "\ud800", "c"]),
]

TAGS = [
    refused("a tag that is a list", TYPE, ["'p'", "'n'", "row 1", "list"], tags=[{}, {"n": [1]}, {}]),
    refused("a key that is no str", TYPE, ["'p'", "1", "row 2"], tags=[{}, {}, {1: 2}]),
    refused("a value beyond 64 bits", VALUE, ["'c'", "'n'", "64 bits"], tags=[{}, {}, {"n": 1 << 63}]),
]


def assert_refused(call: Callable[[], object], kinds: tuple[type, type], fragments: Sequence[str]) -> None:
    """Check that a call fails as the first exception class, which derives from the second, with these words."""
    with pytest.raises(kinds[1]) as caught:
        call()
    assert type(caught.value) is kinds[0]
    assert [fragment for fragment in fragments if fragment not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize(("put", "kinds", "fragments"), [*COLUMNS, *LENGTHS, *LEAVES, *LISTS, *NAMES, *TAGS])
def test_a_put_is_refused_for(
    filled: DataPlaneClient, put: Mapping[str, Any], kinds: Any, fragments: Sequence[str]
) -> None:
    arguments = {"sample_ids": ["a", "b", "c"], "partition_id": "p", **put}
    with unchanged(filled):
        assert_refused(lambda: filled.put_samples(**arguments), kinds, fragments)


@pytest.mark.parametrize(("put", "kinds", "fragments"), [COLUMNS[2], LENGTHS[0], COLUMNS[3]])
def test_a_commit_with_columns_is_refused_like_a_put_and_the_claim_stays_open_for(
    filled: DataPlaneClient, put: Mapping[str, Any], kinds: Any, fragments: Sequence[str]
) -> None:
    claim = filled.claim("p", "train", [], 3)
    before = filled.partitions()
    assert_refused(lambda: claim.commit(put["fields"]), kinds, fragments)
    assert filled.partitions() == before
    assert claim.release() == 3


def test_a_refusal_carries_reason_and_details_for_programs(filled: DataPlaneClient) -> None:
    with pytest.raises(NotFoundError) as caught:
        filled.get_samples(["b"], "p", ["logprobs"])
    error = caught.value
    assert (error.reason, error.retry_after_s) == ("FIELD_NOT_PRODUCED", None)
    assert error.details == {"partition_id": "p", "sample_id": "b", "field": "logprobs"}
    assert str(error).startswith(f"get_samples at {filled.target}: ")


def test_clearing_unknown_samples_and_dropping_unknown_partitions_is_fine(filled: DataPlaneClient) -> None:
    assert filled.clear_samples(["a", "z"], "p") == 1
    assert filled.clear_samples([], "p") == 0
    assert filled.drop_partition("nope") == 0
    assert filled.partition("p").rows == 2
