"""What a loader refuses to be told, before it opens anything."""

from __future__ import annotations

from typing import Any

import pytest

from dataplane_client.errors import UnsupportedTypeError
from dataplane_client.loader import ClaimLoader

SENSELESS: list[tuple[dict[str, Any], str]] = [
    ({"fields": []}, "fields"),
    ({"prefetch": 0}, "prefetch"),
    ({"max_batches": 0}, "max_batches"),
    ({"min_size": 5}, "min_size must be 1 to 4, got 5"),
    ({"num_workers": 2}, "num_workers .* 2"),
    ({"idle_timeout_s": 0}, "idle_timeout_s"),
    ({"idle_timeout_s": 1e12}, "idle_timeout_s"),
    ({"layout": "square"}, "layout"),
    ({"fields": "tokens"}, "^ClaimLoader: field names .*'tokens'"),
    ({"required_fields": "tokens"}, "^ClaimLoader: field names"),
    ({"client_options": {"transport": "pigeon"}}, "transport"),
    ({"device": "abacus"}, "^ClaimLoader: 'abacus'"),
    ({"unit": "rows"}, "unit 'rows' needs whole_groups"),
    ({"where": "std > high"}, "column 7"),
    ({"pad_value_dict": {"token": 0}}, "^ClaimLoader: pad_value_dict names 'token'"),
]
OF_ANOTHER_TYPE: list[tuple[dict[str, Any], str]] = [
    ({"address": object()}, "^ClaimLoader: .*address .*object"),
    ({"pad_to_seqlen": None}, "^ClaimLoader: pad_to_seqlen must be an int, got NoneType"),
    ({"batch_size": "4"}, "batch_size must be an int, got str"),
    ({"idle_timeout_s": "5"}, "^ClaimLoader: idle_timeout_s .*'5'"),
    ({"fields": [1]}, "^ClaimLoader: .*field name .*int"),
    ({"client_options": {"timeout": 3}}, "^ClaimLoader: client_options .*'timeout'"),
    ({"whole_groups": 8}, "whole_groups .* 8"),
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
