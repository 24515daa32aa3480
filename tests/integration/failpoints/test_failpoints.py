"""Whatever step towards the disk fails, and however: what was acknowledged is there in the next life, once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import torch
from tests.integration.failpoints.clients import Told, Worker, work_on
from tests.integration.failpoints.failpoint import Failpoint, Fault
from tests.integration.failpoints.lives import Lives
from tests.integration.failpoints.steps import STEPS, Step

from dataplane_client import DeadlineError, UnavailableError, connect

_KILLS = {"kill before", "kill after", "torn"}


def cases() -> Iterator[object]:
    """All steps with all that can befall them. In every run some steps fail in one or two ways, in long
    runs the others, and in soaks all in all ways.
    """
    for number, step in enumerate(STEPS):
        chosen = {"torn", "short"} & {*step.faults} or {step.faults[number % len(step.faults)]}
        for fault, durability in itertools.product(step.faults, step.durability):
            often = fault in chosen and durability == step.durability[number % len(step.durability)]
            marks = () if often and number % 24 == 0 else pytest.mark.long if often else pytest.mark.soak
            yield pytest.param(step, fault, durability, marks=marks, id=f"{step.name}: {fault}, {durability}")


@contextmanager
def workers(told: Told, lives: Lives) -> Iterator[list[Worker]]:
    """A client by each way, and an impatient one. What they were told is checked at the end."""
    with ExitStack() as running:
        started = [
            running.enter_context(Worker(told, lives.address, "shm", 15.0)),
            running.enter_context(Worker(told, lives.address, "grpc", 15.0)),
            running.enter_context(Worker(told, lives.address, "shm", 0.2)),
        ]
        for worker in started:  # not before all are there: the server may end soon
            worker.begin()
        yield started
        for worker in started:
            worker.finish()
    told.check(lives.address)


@pytest.mark.parametrize(("step", "fault", "durability"), list(cases()))
def test_a_failed_step_loses_and_doubles_nothing(
    start: Callable[[str], Lives], step: Step, fault: Fault, durability: str
) -> None:
    lives, told, failpoint = start(durability), Told(), Failpoint(step.role, step.at, fault, step.use)
    if step.moment == "first start":
        check_end(lives, fault, lives.begin(failpoint=failpoint), (1, "start_failed"))
        if fault == "short":
            lives.kill()
    assert lives.begin(failpoint=failpoint if step.moment == "service" else None) is None, lives.log
    with workers(told, lives) as started:
        if step.role == "checkpointer":
            told_by = "failpoint" if fault in _KILLS | {"short"} else "checkpointer_failed"
            work_on(started, 3, lambda: lives.events(told_by))
            lives.kill()
        elif step.moment == "service":
            work_on(started, 0, lambda: lives.events("failpoint"))
            check_end(lives, fault, None if fault == "short" else lives.ended(), (74, "log_failed"))
        else:
            work_on(started, 10)
            lives.kill()
            if step.moment == "next start":
                check_end(lives, fault, lives.begin(failpoint=failpoint), (1, "start_failed"))
        if fault == "short" and step.role == "server" and step.moment != "first start":
            work_on(started, 3)
            lives.kill()
        assert lives.begin() is None, lives.log
        work_on(started, 3)


def check_end(lives: Lives, fault: Fault, code: int | None, told: tuple[int, str]) -> None:
    """A server that cannot write ends, and says why; one that has written less than it wanted writes on."""
    assert len(lives.events("failpoint")) == 1
    if fault == "short" or fault in _KILLS:
        assert code == (None if fault == "short" else -9)
        return
    assert code == told[0], lives.log
    why = lives.events(told[1])[0]["why"]
    assert ("No space left" if fault == "ENOSPC" else "Input/output error") in why
    assert fault != "ENOSPC" or "/data/" in why  # the file that has no room


@pytest.mark.parametrize("puts", [1000, pytest.param(1, marks=pytest.mark.long)])
def test_a_server_whose_directory_was_moved_ends_and_writes_nothing_to_another_one(
    start: Callable[[str], Lives], tmp_path: Path, puts: int
) -> None:
    lives, data, moved = start("process"), tmp_path / "data", tmp_path / "moved"
    assert lives.begin() is None, lives.log
    acknowledged: list[str] = []
    with connect(lives.address, timeout_s=5.0) as client:
        client.register_partition("p", ["x"], 0, ["t"], timeout_s=120.0)
        data.rename(moved)
        data.mkdir()
        with suppress(UnavailableError, DeadlineError):
            for number in range(puts):
                client.put_samples([f"s{number}"], "p", {"x": torch.zeros(1, 1)}, tags=[{"t": "t" * 1000}])
                acknowledged.append(f"s{number}")
        assert lives.ended() == 74
    assert len(acknowledged) < 1000
    assert "was moved or replaced" in lives.events("log_failed")[0]["why"]
    data.rmdir()  # nothing is in it
    moved.rename(data)
    assert lives.begin() is None, lives.log
    with connect(lives.address) as client:
        assert set(acknowledged) <= set(client.list_samples("p", page_size=1000).meta.sample_ids)
