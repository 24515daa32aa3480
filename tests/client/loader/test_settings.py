"""What a loader refuses to be told, before it opens anything."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dataplane_client.loader import ClaimLoader


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
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
        ({"fields": "tokens"}, r"ClaimLoader: field names must be a sequence of str, got .*; write \['tokens'\]"),
        ({"required_fields": "tokens"}, "ClaimLoader: field names must be a sequence of str"),
        ({"client_options": {"transport": "pigeon"}}, "transport must be one of"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any], rule: str) -> None:
    settings = {"fields": ["tokens"], "batch_size": 4, **wrong}
    with pytest.raises((ValueError, TypeError), match=rule):
        ClaimLoader("127.0.0.1:1", "p", "train", **settings)


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RuntimeError, match="abacus"):
        ClaimLoader("127.0.0.1:1", "p", "train", ["tokens"], 4, device="abacus")


def test_rows_are_required_to_have_the_fields_that_are_read_unless_told_otherwise() -> None:
    assert ClaimLoader("a", "p", "t", ["x", "y"], 4)._settings.required_fields == ["x", "y"]
    assert ClaimLoader("a", "p", "t", ["x", "y"], 4, required_fields=[])._settings.required_fields == []


def test_settings_survive_the_way_to_a_worker() -> None:
    loader = ClaimLoader("a", "p", "t", ["x"], 4, pad_value_dict={"x": -1}, client_options={"timeout_s": 3.0})
    assert pickle.loads(pickle.dumps(loader))._settings == loader._settings  # noqa: S301  # made just now
