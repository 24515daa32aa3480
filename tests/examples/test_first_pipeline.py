"""`examples/first_pipeline`, as docs/first-pipeline.md runs it: processes of their own, one of which is killed."""

from __future__ import annotations

import io
import re
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from tests.forked import FORKS, forking

from dataplane_client import connect
from dataplane_server.testing import running_server

FOLDER = Path(__file__).parents[2] / "examples" / "first_pipeline"
SECOND_STEP = "committed\nprompt-"

pytestmark = FORKS


class Program:
    """A program of the pipeline that runs in a process of its own."""

    def __init__(self, name: str, flags: tuple[str, ...], output: Path, hangs_at: str) -> None:
        self._output = output
        output.touch()
        arguments = (name, flags, output, hangs_at)
        self.process: BaseProcess = forking().Process(target=run_program, args=arguments, daemon=True)
        self.process.start()

    def printed(self, text: str = "") -> str:
        """What it has printed when the text is there at last."""
        deadline = time.monotonic() + 200
        while text not in (printed := self._output.read_text()):
            assert time.monotonic() < deadline, printed
            time.sleep(0.005)
        return printed

    def groups(self) -> list[str]:
        """The groups that it had committed when it ended."""
        return re.findall(r"prompt-\d+(?=.*\n  committed)", self.printed())

    def end(self) -> int | None:
        self.process.join(200)
        return self.process.exitcode


def run_program(name: str, flags: tuple[str, ...], output: Path, hangs_at: str) -> None:
    sys.path.insert(0, str(FOLDER))
    sys.argv = [name, *flags]
    with Screen(output, hangs_at) as sys.stdout:
        runpy.run_path(str(FOLDER / name), run_name="__main__")


class Screen(io.TextIOWrapper):
    """What a program prints to. hangs_at: a text after which it goes on no more; none if it is empty."""

    def __init__(self, output: Path, hangs_at: str) -> None:
        super().__init__(output.open("wb", buffering=0), write_through=True)
        self._output = output
        self._hangs_at = hangs_at

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._hangs_at and self._hangs_at in self._output.read_text():
            threading.Event().wait()
        return written


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def start_program(name: str, *flags: str, hangs_at: str = "") -> Program:
        programs.append(Program(name, flags, tmp_path / f"{len(programs)}.txt", hangs_at))
        return programs[-1]

    yield start_program
    for program in programs:
        program.process.kill()
        program.process.join()


def test_a_killed_trainer_loses_no_group_and_none_is_committed_twice(start: Start) -> None:
    with running_server() as address:
        to = ("--server", address)
        killed = start("train.py", *to, "--seconds", "0", "--grace", "3", hangs_at=SECOND_STEP)
        others = [start("rate.py", *to), start("produce.py", *to, "--prompts", "6")]
        killed.printed(SECOND_STEP)
        killed.process.kill()
        killed.end()
        later = start("train.py", *to, "--seconds", "0")
        assert [program.end() for program in (*others, later)] == [0, 0, 0]
        with connect(address) as client:
            partition = client.partition("rollouts")
    assert sorted(killed.groups() + later.groups()) == [f"prompt-{number}" for number in range(6)]
    assert (partition.rows, partition.removed_rows["consumed"]) == (0, 24)
    assert partition.task("train").ended_deliveries["expired"] > 0
