"""The processes of `examples/grpo`, started within a second, and killed at random moments."""

from __future__ import annotations

import os
import random
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.forked import forking
from tests.ranks import environment, free_port

from processes import HERE, Processes

VICTIMS = ("server", "generator0", "generator1", "trainer", "all")

_LOOK_S = 0.05


class AllKilledError(BaseException):
    """Every process was killed, and nothing of the program that had started them may go on."""


class Forked:
    """What a subprocess.Popen is to Processes: a script, in a forked process."""

    def __init__(self, script: str, arguments: Sequence[str], log: Path) -> None:
        forked = (script, list(arguments), str(log), environment(0, 1, free_port()))
        self._process: BaseProcess = forking().Process(target=_run_script, args=forked, daemon=True)
        self._process.start()
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> None:
        self._process.join(timeout_s)


def _run_script(script: str, arguments: list[str], log: str, variables: dict[str, str]) -> None:
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.update(variables, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TOKENIZERS_PARALLELISM="false")
    sys.argv, sys.path[:0] = [script, *arguments], [str(HERE)]
    runpy.run_path(script, run_name="__main__")


class Killer:
    """Kills these, one after the other, at random moments of a run. processes: what `run.main` takes.

    left: the victims to come. For each, a step of which the weights are published before, and seconds after that. A
    third, except towards the end, comes without regard to steps, so that it may strike a start or a restore.
    """

    def __init__(self, victims: Sequence[str], steps: int) -> None:
        dice = random.Random(steps)
        after = sorted(dice.randrange(steps - 1) for _ in victims)
        self.left = [
            (name, -1, dice.uniform(0.1, 3.0))
            if dice.random() < 1 / 3 and step < steps - 20
            else (name, step, dice.uniform(0.0, 0.3))
            for name, step in zip(victims, after, strict=True)
        ]

    def processes(self, logs: Path, variables: dict[str, str]) -> Processes:
        return MortalProcesses(logs, variables, self)


class MortalProcesses(Processes):
    """Processes of a run that a killer strikes."""

    def __init__(self, logs: Path, variables: dict[str, str], killer: Killer) -> None:
        super().__init__(logs, variables)
        self._killer = killer
        self._all_killed = False
        self._over = threading.Event()
        self._reaper = threading.Thread(target=self._reap)
        signal.signal(signal.SIGUSR1, self._give_up)

    def __enter__(self) -> MortalProcesses:
        super().__enter__()
        self._reaper.start()
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self._over.set()
        self._reaper.join()
        super().__exit__(*error)

    def check(self) -> None:
        if self._all_killed:
            raise AllKilledError
        super().check()

    def _spawn(self, name: str, command: Sequence[object]) -> Any:
        words = [str(word) for word in command]
        if name == "server":
            return super()._spawn(name, command)
        place = next(number for number, word in enumerate(words) if word.endswith(".py"))
        return Forked(words[place], words[place + 1 :], self.log(name))

    def _reap(self) -> None:
        while self._killer.left and not self._all_killed:
            name, step, after_s = self._killer.left[0]
            if not self._await(partial(self._has_published, step)) or self._over.wait(after_s):
                return
            if not self._await(partial(self._lives, name)):
                return
            self._killer.left.pop(0)
            if name == "all":
                self._kill_all()
            else:
                self._running[name].kill()

    def _has_published(self, step: int) -> bool:
        return step < 0 or any(int(path.name) >= step for path in self._logs.glob("weights/*[0-9]"))

    def _lives(self, name: str) -> bool:
        return name == "all" or (name in self._running and self._running[name].poll() is None)

    def _await(self, ready: Callable[[], bool]) -> bool:
        """Returns whether it became so before the run was over."""
        while not ready():
            if self._over.wait(_LOOK_S):
                return False
        return True

    def _kill_all(self) -> None:
        self._ending.set()  # nothing is started again
        self._watcher.join()
        self._all_killed = True
        for process in self._running.values():
            process.kill()
        os.kill(os.getpid(), signal.SIGUSR1)

    def _give_up(self, *_: object) -> None:
        raise AllKilledError
