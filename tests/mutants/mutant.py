"""One seeded fault: a text of the library, and what stands there instead."""

from __future__ import annotations

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
