"""`examples/first_pipeline`, as docs/first-pipeline.md runs it: processes of their own, one of which is killed."""

from __future__ import annotations

import re
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from tests.forked import FORKS, forking

from dataplane_client import connect
from dataplane_server.testing import running_server

FOLDER = Path(__file__).parents[2] / "examples" / "first_pipeline"

pytestmark = FORKS


class Program:
    """A program of the pipeline that runs in a process of its own."""

    def __init__(self, name: str, flags: tuple[str, ...], output: Path) -> None:
        self._output = output
        output.touch()
        self.process: BaseProcess = forking().Process(target=run_program, args=(name, flags, output), daemon=True)
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


def run_program(name: str, flags: tuple[str, ...], output: Path) -> None:
    sys.path.insert(0, str(FOLDER))
    sys.argv = [name, *flags]
    with output.open("w", buffering=1) as sys.stdout:
        runpy.run_path(str(FOLDER / name), run_name="__main__")


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def start_program(name: str, *flags: str) -> Program:
        programs.append(Program(name, flags, tmp_path / f"{len(programs)}.txt"))
        return programs[-1]

    yield start_program
    for program in programs:
        program.process.kill()
        program.process.join()


def test_a_killed_trainer_loses_no_group_and_none_is_committed_twice(start: Start) -> None:
    with running_server() as address:
        to = ("--server", address)
        killed = start("train.py", *to, "--seconds", "0.2", "--grace", "0.5")
        others = [start("rate.py", *to), start("produce.py", *to, "--prompts", "6")]
        killed.printed("committed\nprompt-")
        killed.process.kill()
        killed.end()
        later = start("train.py", *to, "--seconds", "0")
        assert [program.end() for program in (*others, later)] == [0, 0, 0]
        with connect(address) as client:
            partition = client.partition("rollouts")
    assert sorted(killed.groups() + later.groups()) == [f"prompt-{number}" for number in range(6)]
    assert (partition.rows, partition.removed_rows["consumed"]) == (0, 24)
    assert partition.task("train").ended_deliveries["expired"] > 0
