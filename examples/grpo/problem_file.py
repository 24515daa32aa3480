"""Read problems with checkable answers from a JSON Lines file, and build prompts from questions."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from reward import reference_answer
from special_tokens import bos_id


@dataclass(frozen=True)
class Problem:
    question: str
    answer: Decimal


def load_problems(path: Path) -> list[Problem]:
    """Read one problem from each line: `{"question": str, "answer": number or text}`. Skip empty lines.

    Raises ValueError, which names the line and the field, also if the file has no problem.
    """
    lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would also cut at U+2028 inside a question
    problems = [_parse_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not problems:
        raise ValueError(f"{path}: no problems in it")
    return problems


def _parse_line(path: Path, number: int, line: str) -> Problem:
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or not isinstance(row.get("question"), str) or "answer" not in row:
            raise ValueError("expected an object with a text 'question' and an 'answer'")
        return Problem(row["question"], reference_answer(row["answer"]))
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error


INSTRUCTION = "Work it out step by step, then write #### and the answer as a number.\n"
"""Tells a model that was not warmed up on worked solutions which format earns a reward."""


def prompt_text(question: str, instruction: str = "") -> str:
    return f"{question}\n{instruction}"


def prompt_ids(tokenizer: PreTrainedTokenizerBase, question: str, instruction: str = "") -> list[int]:
    """The tokens of a prompt. They start with the begin-of-sequence token if the tokenizer has one."""
    ids: list[int] = tokenizer.encode(prompt_text(question, instruction), add_special_tokens=False)
    bos = bos_id(tokenizer)
    return ids if bos is None else [bos, *ids]


def prompt_batches(problems: Sequence[Problem], batch_size: int, seed: int) -> Iterator[list[Problem]]:
    """Yield batches forever. Each pass over the file has every problem once, in a new random order."""
    rng = random.Random(seed)
    waiting: list[Problem] = []
    while True:
        while len(waiting) < batch_size:
            waiting.extend(rng.sample(problems, len(problems)))
        yield waiting[:batch_size]
        waiting = waiting[batch_size:]
