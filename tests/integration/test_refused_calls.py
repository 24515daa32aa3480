"""What the client itself refuses in reads and definitions, and what a refusal tells programs.

`tests/core/test_refusals.py` has the rules of the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnsupportedTypeError,
)


@pytest.fixture
def way() -> str:
    """What is refused, and how that is told, does not depend on the way."""
    return "grpc"


TYPE = (UnsupportedTypeError, TypeError)
VALUE = (InvalidArgumentError, ValueError)
DEFINITION: dict[str, Any] = {"fields": ["x"], "num_samples": 1, "consumer_tasks": ["train"]}
REFUSED: dict[str, tuple[Callable[[DataPlaneClient], object], tuple[type, type], list[str]]] = {
    "a read of no field": (lambda c: c.get_samples(["a"], "p", []), VALUE, ["'p'", "select_fields"]),
    "an unknown balance": (
        lambda c: c.claim_shard("p", "train", [], 2, step=0, dp_rank=0, dp_world=1, balance="fair"),  # type: ignore[arg-type]
        VALUE,
        ["balance", "'fair'"],
    ),
    "a name that is no str": (lambda c: c.register_partition(None, **DEFINITION), TYPE, ["partition id", "NoneType"]),  # type: ignore[arg-type]
    "an enum name that is no str": (
        lambda c: c.register_partition("q", **DEFINITION, enums={"x": [1]}),  # type: ignore[list-item]
        TYPE,
        ["'q'", "enum name", "int"],
    ),
    **{
        f"a negative {number}": (
            lambda c, more={number: -1}: c.register_partition("q", **{**DEFINITION, **more}),  # type: ignore[misc]
            VALUE,
            ["'q'", number, "-1"],
        )
        for number in ("num_samples", "grpo_group_size")
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_client_refuses(assert_refused: Callable[..., None], name: str) -> None:
    assert_refused(*REFUSED[name])


def test_a_refusal_carries_reason_and_details_for_programs(filled: DataPlaneClient) -> None:
    with pytest.raises(NotFoundError) as caught:
        filled.get_samples(["b"], "p", ["logprobs"])
    error = caught.value
    assert error.reason == "FIELD_NOT_PRODUCED"
    assert error.details == {"partition_id": "p", "sample_id": "b", "field": "logprobs"}
    assert error.retry_after_s is None
    assert str(error).startswith(f"get_samples at {filled.target}: ")


def test_clearing_unknown_samples_and_dropping_unknown_partitions_is_fine(filled: DataPlaneClient) -> None:
    assert filled.clear_samples(["a", "z"], "p") == 1
    assert filled.clear_samples([], "p") == 0
    assert filled.drop_partition("nope") == 0
    assert filled.partition("p").rows == 2
