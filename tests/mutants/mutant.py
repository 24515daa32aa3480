"""One seeded fault: a text of the library, and what stands there instead.

Faults are kept in files that read like patches. After a line that says what a file has, each line is one of:

    @ FILE              of the faults that follow
    ? TEST ...          where they are looked for
    = NAME => USERS     a fault
    -LINE and +LINE     its right text, and its wrong one; each without the end of its last line
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """users: what they would suffer. right: is in the file exactly once; the run ends with an error if it is not.

    where: arguments of pytest that select the tests which find it, the fastest first; or "simulate", and of how many
    seeds of `tests.simulate` one at least finds it. This column alone changes when tests move.
    """

    name: str
    users: str
    file: str
    right: str
    wrong: str
    where: tuple[str, ...]

    def check(self, text: str) -> None:
        """Raise ValueError unless the mutant can be made from the text of its file."""
        found = text.count(self.right)
        if found != 1:
            raise ValueError(f"mutant {self.name!r}: {self.file} has {found} times its text:\n{self.right}")

    def mutated(self, text: str) -> str:
        """The text of its file with the fault. ValueError as `check`."""
        self.check(text)
        return text.replace(self.right, self.wrong)


def read_mutants(path: Path) -> tuple[Mutant, ...]:
    """The faults of a file."""
    file, where = "", tuple[str, ...]()
    found: list[tuple[str, str, str, list[str], list[str], tuple[str, ...]]] = []
    for line in path.read_text().splitlines()[1:]:
        kind, rest = line[:1], line[1:].strip()
        if kind == "@":
            file = rest
        elif kind == "?":
            where = tuple(rest.split())
        elif kind == "=":
            name, _, users = rest.partition(" => ")
            found.append((name, users, file, [], [], where))
        elif kind == "-":
            found[-1][3].append(line[1:])
        elif kind == "+":
            found[-1][4].append(line[1:])
    return tuple(
        Mutant(name, users, file, "\n".join(right), "\n".join(wrong), where)
        for name, users, file, right, wrong, where in found
    )
