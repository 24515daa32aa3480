"""Bad reads, claims, definitions and status queries: the error names what is wrong and the rule; nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import (
    ClaimTimeoutError,
    InvalidArgumentError,
    NotFoundError,
    PreconditionError,
    UnsupportedTypeError,
)

KEY = (NotFoundError, KeyError)
TYPE = (UnsupportedTypeError, TypeError)
VALUE = (InvalidArgumentError, ValueError)
STATE = (PreconditionError, RuntimeError)
LATE = (ClaimTimeoutError, TimeoutError)

LONG = "x" * 257


@pytest.fixture
def way() -> str:
    """What is refused, and how that is told, does not depend on the way."""
    return "grpc"


def refused(name: str, kinds: tuple[type, type], fragments: Sequence[str], **arguments: object) -> object:
    """A call, by the arguments that differ from a harmless one, and how it is refused."""
    return pytest.param(arguments, kinds, fragments, id=name)


READS = [
    refused("an unknown partition", KEY, ["'nope'", "register"], partition_id="nope"),
    refused("an unknown sample", KEY, ["'p'", "'z'"], sample_ids=["a", "z"]),
    refused("an unproduced field", KEY, ["'p'", "'b'", "'logprobs'"], sample_ids=["b"], select_fields=["logprobs"]),
    refused("no field", VALUE, ["'p'", "select_fields"], select_fields=[]),
    refused("a sample that stands twice", VALUE, ["'a'", "duplicate"], sample_ids=["a", "b", "a"]),
    refused("an over-long id", VALUE, ["1 to 256", "257"], sample_ids=[LONG]),
]


@pytest.mark.parametrize(("arguments", "kinds", "fragments"), READS)
def test_a_read_is_refused_for(
    assert_refused: Callable[..., None], arguments: dict[str, object], kinds: tuple[type, type], fragments: list[str]
) -> None:
    read: dict[str, object] = {"sample_ids": ["a"], "partition_id": "p", "select_fields": ["reward"], **arguments}
    assert_refused(lambda client: client.get_samples(**read), kinds, fragments)


@pytest.mark.parametrize(
    ("arguments", "kinds", "fragments"),
    [
        refused("an unknown partition", KEY, ["'nope'"], partition_id="nope"),
        refused("an undeclared field", VALUE, ["'p'", "'nope'"], required_fields=["nope"]),
        refused("a field that stands twice", VALUE, ["'text'", "duplicate"], required_fields=["text", "text"]),
        refused("rows that lack a field", LATE, ["'p'", "'train'", "'logprobs'"], required_fields=["logprobs"]),
    ],
)
def test_a_claim_is_refused_for(
    assert_refused: Callable[..., None], arguments: dict[str, object], kinds: tuple[type, type], fragments: list[str]
) -> None:
    claim: dict[str, object] = {
        "partition_id": "p",
        "task_name": "train",
        "required_fields": ["tokens"],
        "batch_size": 2,
        "timeout_s": 0.0,
        **arguments,
    }
    assert_refused(lambda client: client.claim(**claim), kinds, fragments)


@pytest.mark.parametrize(
    ("arguments", "kinds", "fragments"),
    [
        refused("no name", VALUE, ["partition id", "1 to 256 bytes"], partition_id=""),
        refused("an over-long name", VALUE, ["partition id", "257"], partition_id=LONG),
        refused("a name that is no str", TYPE, ["partition id", "NoneType"], partition_id=None),
        refused("65 fields", VALUE, ["'q'", "1 to 64 fields", "65"], fields=[f"f{i}" for i in range(65)]),
        refused("a field that stands twice", VALUE, ["'x'", "duplicate"], fields=["x", "y", "x"]),
        refused("an undeclared per-token field", VALUE, ["'q'", "'y'"], per_token_fields=["y"]),
        refused("a negative number of rows", VALUE, ["'q'", "num_samples", "-1"], num_samples=-1),
        refused("a negative group size", VALUE, ["'q'", "grpo_group_size", "-1"], grpo_group_size=-1),
        refused("enum names that are no str", TYPE, ["'q'", "enum name", "int"], enums={"x": [1]}),
        refused(
            "dropping a field that rows hold",
            STATE,
            ["'p'", "'reward'", "3 rows"],
            partition_id="p",
            replace=True,
            fields=["tokens", "logprobs", "image", "text"],
        ),
        refused(
            "making a field that rows hold per-token",
            STATE,
            ["'p'", "'image'", "per-token"],
            partition_id="p",
            replace=True,
            fields=["tokens", "logprobs", "reward", "image", "text"],
            per_token_fields=["tokens", "image"],
        ),
    ],
)
def test_a_definition_is_refused_for(
    assert_refused: Callable[..., None], arguments: dict[str, object], kinds: tuple[type, type], fragments: list[str]
) -> None:
    definition: dict[str, object] = {
        "partition_id": "q",
        "fields": ["x"],
        "num_samples": 1,
        "consumer_tasks": ["train"],
        **arguments,
    }
    assert_refused(lambda client: client.register_partition(**definition), kinds, fragments)


OTHERS: dict[str, tuple[Callable[[DataPlaneClient], object], tuple[type, type], list[str]]] = {
    "clear of an id that stands twice": (lambda c: c.clear_samples(["a", "a"], "p"), VALUE, ["'a'", "duplicate"]),
    "description of an unknown partition": (lambda c: c.partition("nope"), KEY, ["'nope'"]),
    "drop of no str": (lambda c: c.drop_partition(None), TYPE, ["partition id", "NoneType"]),  # type: ignore[arg-type]
    "status of an unknown partition": (lambda c: c.check_consumption_status("nope", ["train"]), KEY, ["'nope'"]),
    "status of no task": (lambda c: c.check_consumption_status("p", []), VALUE, ["'p'", "no task"]),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_refused_is_the(assert_refused: Callable[..., None], name: str) -> None:
    assert_refused(*OTHERS[name])


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
