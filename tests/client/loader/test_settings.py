"""What a loader refuses to be told, before it opens anything."""

from __future__ import annotations

from typing import Any

import pytest

from dataplane_client.errors import UnsupportedTypeError
from dataplane_client.loader import ClaimLoader

SENSELESS: list[tuple[dict[str, Any], str]] = [
    ({"fields": []}, "fields"),
    ({"batch_size": 0}, "batch_size"),
    ({"prefetch": 0}, "prefetch"),
    ({"max_batches": 0}, "max_batches"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"min_size": 5}, r"min_size .*batch_size \(4\)"),
    ({"num_workers": 2}, "num_workers .* 2"),
    ({"idle_timeout_s": 0}, "idle_timeout_s"),
    ({"idle_timeout_s": float("inf")}, "idle_timeout_s"),
    ({"layout": "square"}, "layout"),
    ({"fields": "tokens"}, "^ClaimLoader: field names .*'tokens'"),
    ({"required_fields": "tokens"}, "^ClaimLoader: field names"),
    ({"client_options": {"transport": "pigeon"}}, "transport"),
    ({"device": "abacus"}, "^ClaimLoader: 'abacus'"),
]
OF_ANOTHER_TYPE: list[tuple[dict[str, Any], str]] = [
    ({"address": object()}, "^ClaimLoader: .*address .*object"),
    ({"batch_size": "4"}, "^ClaimLoader: batch_size .*'4'"),
    ({"min_size": 1.5}, r"^ClaimLoader: min_size .* 1\.5"),
    ({"idle_timeout_s": "5"}, "^ClaimLoader: idle_timeout_s .*'5'"),
    ({"fields": [1]}, "^ClaimLoader: .*field name .*int"),
    ({"client_options": {"timeout": 3}}, "^ClaimLoader: client_options .*'timeout'"),
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
