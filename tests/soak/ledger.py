"""What clients write down of rows, and what is wrong when all of it is read together.

Each line is one write to a file opened for appending, so a client that is killed leaves whole lines, or half a line at
the end, which does not count.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


class Ledger:
    """What one process says."""

    def __init__(self, folder: Path, process: str) -> None:
        self._file = os.open(folder / f"{process}.ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, what: str, *words: str) -> None:
        """what: put (rows whose put was answered), try (a task, and rows whose commit begins), done (the same, when it
        was answered), error (a text).
        """
        os.write(self._file, (" ".join([what, *words]).replace("\n", " ") + "\n").encode())


@dataclass
class Books:
    """All ledgers. put: rows. done, tried: rows of a task, and how often."""

    put: set[str] = field(default_factory=set)
    done: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    tried: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    errors: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Books:
        books = cls()
        for path in sorted(folder.glob("*.ledger")):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    books._enter(path.stem, line.split())
        return books

    def _enter(self, process: str, words: list[str]) -> None:
        match words:
            case ["put", *rows]:
                self.put.update(rows)
            case ["try", task, *rows]:
                self.tried[task].update(rows)
            case ["done", task, *rows]:
                self.done[task].update(rows)
            case _:
                self.errors.append(f"{process}: {' '.join(words)}")

    def wrong(self, tasks: Sequence[str]) -> list[str]:
        """Errors, rows that were put and that a task never had, and rows that it has consumed twice. All rows must have
        been consumed by now.
        """
        found = list(self.errors)
        for task in tasks:
            found += [f"{row} is lost to {task}" for row in sorted(self.put - self.tried[task])]
            found += [f"{task} consumed {row} {n} times" for row, n in self.done[task].items() if n > 1]
        return found
