"""What a loader refuses to be told, before it opens anything."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dataplane_client.errors import UnsupportedTypeError
from dataplane_client.loader import ClaimLoader

SENSELESS: list[tuple[dict[str, Any], str]] = [
    ({"fields": []}, "name the fields"),
    ({"batch_size": 0}, "batch_size must be at least 1"),
    ({"prefetch": 0}, "prefetch must be at least 1"),
    ({"max_batches": 0}, "max_batches must be at least 1"),
    ({"max_tokens": 0}, "max_tokens must be at least 1"),
    ({"min_size": 5}, r"min_size must be at most batch_size \(4\)"),
    ({"num_workers": 2}, "num_workers must be 0, got 2"),
    ({"idle_timeout_s": 0}, "idle_timeout_s must be positive"),
    ({"idle_timeout_s": float("inf")}, "idle_timeout_s must be positive and finite"),
    ({"layout": "square"}, "layout must be one of"),
    ({"fields": "tokens"}, r"^ClaimLoader: field names must be a sequence of str, got .*; write \['tokens'\]"),
    ({"required_fields": "tokens"}, "^ClaimLoader: field names must be a sequence of str"),
    ({"client_options": {"transport": "pigeon"}}, "transport must be one of"),
    ({"device": "abacus"}, "^ClaimLoader: 'abacus' is not a device such as 'cpu' or 'cuda:0'"),
]
OF_ANOTHER_TYPE: list[tuple[dict[str, Any], str]] = [
    ({"address": object()}, r"^ClaimLoader: the address must be a str, such as client\.target; got object"),
    ({"batch_size": "4"}, "^ClaimLoader: batch_size must be an int, got '4'"),
    ({"min_size": 1.5}, "^ClaimLoader: min_size must be an int, got 1.5"),
    ({"idle_timeout_s": "5"}, "^ClaimLoader: idle_timeout_s must be a number, got '5'"),
    ({"fields": [1]}, "^ClaimLoader: a field name must be a str, got int"),
    ({"client_options": {"timeout": 3}}, "^ClaimLoader: client_options has no option 'timeout': did you mean 'tim"),
]


@pytest.mark.parametrize(
    ("error", "wrong", "rule"),
    [((ValueError, TypeError), *row) for row in SENSELESS] + [(UnsupportedTypeError, *row) for row in OF_ANOTHER_TYPE],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(error: Any, wrong: dict[str, Any], rule: str) -> None:
    settings = {"address": "a:1", "partition_id": "p", "task_name": "t", "fields": ["x"], "batch_size": 4, **wrong}
    with pytest.raises(error, match=rule):
        ClaimLoader(**settings)


def test_rows_are_required_to_have_the_fields_that_are_read_unless_told_otherwise() -> None:
    assert ClaimLoader("a:1", "p", "t", ["x", "y"], 4)._settings.required_fields == ["x", "y"]
    assert ClaimLoader("a:1", "p", "t", ["x", "y"], 4, required_fields=[])._settings.required_fields == []


def test_settings_survive_the_way_to_a_worker() -> None:
    loader = ClaimLoader("a:1", "p", "t", ["x"], 4, pad_value_dict={"x": -1}, client_options={"timeout_s": 3.0})
    assert pickle.loads(pickle.dumps(loader))._settings == loader._settings  # noqa: S301  # made just now
