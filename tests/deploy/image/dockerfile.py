"""A Dockerfile as its stages, each a list of instructions: as much of the language as ours use."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
DOCKERFILES = {
    name: REPOSITORY / "deploy" / file
    for name, file in {"server": "Dockerfile", "trainer": "trainer.Dockerfile"}.items()
}


@dataclass(frozen=True)
class Stage:
    """instructions: name and what follows it, continuation lines joined; an ARG before the first stage is in none."""

    base: str
    name: str
    instructions: tuple[tuple[str, str], ...]

    def all(self, instruction: str) -> list[str]:
        return [value for name, value in self.instructions if name == instruction]

    def one(self, instruction: str) -> str:
        """The last one, as the builder takes it. Raises IndexError when there is none."""
        return self.all(instruction)[-1]

    def words(self, instruction: str) -> list[str]:
        """The last one in exec form. Raises ValueError when it is in shell form, which needs a shell in the image."""
        return [str(word) for word in json.loads(self.one(instruction))]

    def pairs(self, instruction: str) -> dict[str, str]:
        """What ENV or LABEL set."""
        words = (word for value in self.all(instruction) for word in shlex.split(value))
        return dict(word.split("=", 1) for word in words)


def stages(dockerfile: Path) -> list[Stage]:
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    logical = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    instructions = [tuple(line.split(maxsplit=1)) for line in logical.splitlines() if line.strip()]
    found: list[Stage] = []
    for name, value in instructions:
        if name == "FROM":
            base, _, stage = value.partition(" AS ")
            found.append(Stage(base, stage, ()))
        elif found:
            last = found.pop()
            found.append(Stage(last.base, last.name, (*last.instructions, (name, value))))
    return found
