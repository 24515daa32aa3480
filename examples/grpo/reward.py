"""A verifiable reward: 1 if the final answer of a response equals the reference answer, otherwise 0.

The final answer is the number right after the last `####`, or, without one, after the last `Answer:`. A response
without such a mark has no answer. References are numbers or texts. A text with a mark is read like a response (worked
solutions of public mathematics sets end in `#### 42`); any other text must be a number as a whole. Numbers are compared
by value: `1,234`, `+1234`, `$1234.00` and `1234.` are the same.
"""

from __future__ import annotations

import re
from decimal import Decimal

_MARKS = (re.compile(r"####"), re.compile(r"\banswer\s*:", re.IGNORECASE))
_NUMBER = re.compile(
    r"\s*([-+\u2212]?)\s*\$?\s*(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?![\d/]|[.,]\d)"  # the whole number or none: 1/2, 1,23 and 1.2.3 are not 1
)


def parse_number(text: str) -> Decimal | None:
    """The number at the start of `text`, after spaces; None if there is none."""
    found = _NUMBER.match(text)
    if found is None:
        return None
    sign, digits = found.groups()
    value = Decimal(digits.replace(",", ""))
    return -value if sign in {"-", "\u2212"} else value


def final_answer(response: str) -> Decimal | None:
    for mark in _MARKS:
        *_, last = [None, *mark.finditer(response)]
        if last is not None:
            return parse_number(response[last.end() :])
    return None


def reference_answer(answer: str | float) -> Decimal:
    """The number that a correct response ends with. Raises ValueError if `answer` has none."""
    text = str(answer)
    marked = final_answer(text)
    if marked is not None:
        return marked
    found = _NUMBER.match(text)
    if found is None or text[found.end() :].strip(" .") != "":
        raise ValueError(f"answer: {text[:80]!r} is neither a number nor a text with a number after '####'")
    value = parse_number(text)
    assert value is not None
    return value


def reward(response: str, reference: Decimal) -> float:
    return 1.0 if final_answer(response) == reference else 0.0
