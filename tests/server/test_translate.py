"""Requests that no client of ours sends and no call of the core can say: refused by what is wrong."""

from __future__ import annotations

import pytest

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service import translate
from rl_dataplane.v1 import data_plane_pb2 as pb


def test_generations_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(Refusal, match="generations: 15 bytes") as caught:
        translate.rows.read(pb.ReadColumnsRequest(generations=bytes(15)))
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_a_reset_of_samples_and_all_is_refused() -> None:
    with pytest.raises(Refusal, match="sample") as caught:
        translate.claims.reset(pb.ResetTaskRequest(whole_task=True, sample_ids=["a"]))
    assert caught.value.reason is Reason.INVALID_REQUEST
