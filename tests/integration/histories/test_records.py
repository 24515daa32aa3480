"""What processes write down comes back as one history, whatever became of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.integration.histories.history import NEVER, History
from tests.integration.histories.reader import read_history
from tests.integration.histories.recorder import Recorder

from dataplane_client import errors


@pytest.fixture
def record(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path, "me")


def history(folder: Path) -> History:
    return read_history(folder, 1.0, ("rows",), frozenset())


def claim(record: Recorder, fence: int) -> None:
    with record.call("claim", task="rows", whole=False, most=6) as answer:
        answer.update(claim_id=f"c-{fence}", fence=fence, rows=["a", "b"], generations=[1, 2])


def reserve(record: Recorder, group: str = "g") -> None:
    with record.call("reserve", group=group, rows=["a", "b"]):
        pass


def test_a_claim_that_never_returned_may_have_taken_rows(record: Recorder, tmp_path: Path) -> None:
    record.begin("claim", task="rows", whole=False, most=6)
    read = history(tmp_path)
    assert read.deliveries == []
    assert [unanswered.most for unanswered in read.unanswered] == [6]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "done"),
        (errors.ClaimFencedError, "fenced"),
        (errors.ClaimNotFoundError, "gone"),
        (errors.OutOfSpaceError, "refused"),
        (errors.DeadlineError, "unknown"),
        (errors.UnavailableError, "unknown"),
    ],
)
def test_a_commit_ends_as_its_error_says(
    record: Recorder, tmp_path: Path, error: type[errors.DataPlaneError] | None, outcome: str
) -> None:
    with contextlib.suppress(errors.DataPlaneError), record.call("commit", fence=7, columns=True):
        if error is not None:
            raise error("no")
    read = history(tmp_path)
    assert [(ending.how, ending.fence, ending.outcome, ending.columns) for ending in read.endings] == [
        ("commit", 7, outcome, True)
    ]
    assert read.complaints == []


def test_an_error_that_nobody_expects_is_a_complaint(record: Recorder, tmp_path: Path) -> None:
    with contextlib.suppress(errors.DataPlaneError), record.call("commit", fence=7):
        raise errors.InternalError("it broke")
    assert history(tmp_path).complaints == ["me: commit: InternalError: it broke"]


def test_a_commit_of_a_killed_process_has_no_end(record: Recorder, tmp_path: Path) -> None:
    record.begin("commit", fence=7, columns=False)
    (ending,) = history(tmp_path).endings
    assert (ending.outcome, ending.ended_at) == ("unknown", NEVER)


@pytest.mark.parametrize(
    ("calls", "error", "outcome"),
    [
        ([], None, "refused"),
        (["fill", "abort"], None, "refused"),
        (["fill", "finish"], None, "done"),
        (["fill", "finish"], KeyboardInterrupt, "unknown"),
        (["fill", "finish"], errors.GroupFencedError, "refused"),
    ],
    ids=["left alone", "aborted", "finished", "killed as it was finished", "rolled back by the server"],
)
def test_a_group_is_there_when_it_was_finished(
    record: Recorder, tmp_path: Path, calls: list[str], error: type[BaseException] | None, outcome: str
) -> None:
    reserve(record)
    for what in calls:
        with contextlib.suppress(errors.DataPlaneError, KeyboardInterrupt), record.call(what, group="g"):
            if error is not None and what == "finish":
                raise error("no")
    (batch,) = history(tmp_path).batches
    assert (batch.group, batch.rows, batch.outcome) == ("g", ("a", "b"), outcome)
    assert (batch.begun_at < NEVER) == ("finish" in calls)
    assert (batch.reserved_at < batch.fenced_at < NEVER) == (error is errors.GroupFencedError)
