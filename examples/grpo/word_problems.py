"""Short arithmetic word problems, each with the steps that solve it.

A problem belongs to one of nine kinds. A kind defines how the numbers are drawn, which sentences describe the problem,
and which steps lead to the answer. A step is written `a+b=c`; the last line is the answer after `#### `. Products are
computed as running sums, so solutions have one to seven steps, and rollouts have very different lengths. Every number
is between 1 and 99. The same state of the random generator gives the same problem on every platform.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

FINAL_MARK = "#### "

PEOPLE = (
    ("Maya", "she", "her"),
    ("Omar", "he", "his"),
    ("Lena", "she", "her"),
    ("Tom", "he", "his"),
    ("Ines", "she", "her"),
    ("Ravi", "he", "his"),
    ("Nora", "she", "her"),
    ("Kofi", "he", "his"),
    ("Ana", "she", "her"),
    ("Jonas", "he", "his"),
    ("Mei", "she", "her"),
    ("Paul", "he", "his"),
    ("Zoe", "she", "her"),
    ("Ivan", "he", "his"),
)
THINGS = (
    "apples",
    "stamps",
    "marbles",
    "books",
    "shells",
    "pencils",
    "cards",
    "coins",
    "buttons",
    "stickers",
    "plums",
    "beads",
)
HOLDERS = ("boxes", "bags", "jars", "baskets", "trays", "packs")
PLACES = ("at the market", "at school", "in the garden", "at the shop", "at the beach", "in the attic")


@dataclass(frozen=True)
class WordProblem:
    kind: str
    question: str
    steps: tuple[str, ...]
    answer: int

    @property
    def solution(self) -> str:
        """The steps, one a line, then the marked answer."""
        return "\n".join((*self.steps, f"{FINAL_MARK}{self.answer}"))


@dataclass(frozen=True)
class Kind:
    """draw: returns the numbers of a story. solve: returns its steps, each `(left, operator, right, result)`."""

    draw: Callable[[random.Random], tuple[int, ...]]
    solve: Callable[..., list[tuple[int, str, int, int]]]
    stories: tuple[str, ...]


def _plus(a: int, b: int) -> tuple[int, str, int, int]:
    return a, "+", b, a + b


def _minus(a: int, b: int) -> tuple[int, str, int, int]:
    return a, "-", b, a - b


def _running_sum(times: int, each: int) -> list[tuple[int, str, int, int]]:
    return [_plus(each * done, each) for done in range(1, times)]


def _draw_spread(*bounds: tuple[int, int]) -> Callable[[random.Random], tuple[int, ...]]:
    return lambda rng: tuple(rng.randint(low, high) for low, high in bounds)


KINDS = {
    "sum": Kind(
        _draw_spread((5, 49), (2, 9)),
        lambda a, b: [_plus(a, b)],
        (
            "{name} has {0} {things}. {other} gives {name} {1} more. How many {things} does {name} have now?",
            "{name} found {0} {things} {place} and {other} found {1}. How many {things} did they find together?",
            "There are {0} {things} on the table. {name} puts {1} more beside them. How many {things} are there now?",
        ),
    ),
    "difference": Kind(
        _draw_spread((12, 49), (2, 9)),
        lambda a, b: [_minus(a, b)],
        (
            "{name} has {0} {things} and gives {1} of them to {other}. How many {things} are left?",
            "{name} bought {0} {things} {place}, but lost {1} on the way home. How many {things} does {she} still have?",
            "{name} has {0} {things}. {other} has {1}. How many more {things} does {name} have?",
        ),
    ),
    "product": Kind(
        _draw_spread((3, 8), (3, 9)),
        _running_sum,
        (
            "{name} fills {0} {holders} with {1} {things} each. How many {things} is that in all?",
            "Each of {name}'s {0} {holders} holds {1} {things}. How many {things} does {she} have?",
        ),
    ),
    "change": Kind(
        _draw_spread((6, 39), (3, 9), (2, 9)),
        lambda a, b, c: [_plus(a, b), _minus(a + b, c)],
        (
            "{name} had {0} {things}. {She} bought {1} more {place} and gave {2} to {other}. How many {things} are left?",
            "{0} {things} lie in a drawer. {name} adds {1}, then {other} takes {2} away. How many {things} remain?",
        ),
    ),
    "product plus": Kind(
        _draw_spread((3, 6), (3, 9), (2, 9)),
        lambda a, b, c: [*_running_sum(a, b), _plus(a * b, c)],
        (
            "{name} has {0} {holders} with {1} {things} each, and {2} loose {things}. How many {things} does {she} have?",
            "{name} packed {0} {holders} of {1} {things}. {other} brought {2} more. How many {things} are there now?",
        ),
    ),
    "product minus": Kind(
        _draw_spread((3, 6), (4, 9), (2, 9)),
        lambda a, b, c: [*_running_sum(a, b), _minus(a * b, c)],
        (
            "{name} bought {0} {holders} with {1} {things} each. {2} were broken. How many good {things} are left?",
            "{name} carries {0} {holders} of {1} {things} and drops {2} {things}. How many does {she} still have?",
        ),
    ),
    "comparison": Kind(
        _draw_spread((3, 9), (2, 9)),
        lambda a, b: [_plus(a, b), _plus(a + b, a)],
        (
            "{name} has {0} {things}. {other} has {1} more than {name}. How many {things} do they have together?",
            "{name} picked {0} {things} {place}. {other} picked {1} more than that. How many did they pick in all?",
        ),
    ),
    "three days": Kind(
        _draw_spread((3, 39), (3, 9), (3, 9)),
        lambda a, b, c: [_plus(a, b), _plus(a + b, c)],
        (
            "{name} sold {0} {things} on Monday, {1} on Tuesday and {2} on Friday. How many {things} did {she} sell?",
            "{name} collects {things}: {0} in May, {1} in June and {2} in July. How many {things} does {she} collect?",
        ),
    ),
    "spending": Kind(
        _draw_spread((23, 59), (3, 9), (3, 9)),
        lambda a, b, c: [_minus(a, b), _minus(a - b, c)],
        (
            "{name} has {0} coins. {She} spends {1} on {things} and {2} on {holders}. How many coins are left?",
            "From {her} {0} coins {name} gives {1} to {other} and loses {2} {place}. How many coins does {she} have now?",
        ),
    ),
}


def draw_problem(rng: random.Random, kind: str) -> WordProblem:
    recipe = KINDS[kind]
    numbers = recipe.draw(rng)
    steps = recipe.solve(*numbers)
    (name, she, her), (other, _, _) = rng.sample(PEOPLE, 2)
    question = rng.choice(recipe.stories).format(
        *numbers,
        name=name,
        other=other,
        she=she,
        She=she.capitalize(),
        her=her,
        things=rng.choice(THINGS),
        holders=rng.choice(HOLDERS),
        place=rng.choice(PLACES),
    )
    return WordProblem(kind, question, tuple(f"{a}{op}{b}={c}" for a, op, b, c in steps), steps[-1][3])


def draw_problems(count: int, seed: int) -> list[WordProblem]:
    """Draw `count` problems with distinct questions, kinds in turn, in shuffled order."""
    rng = random.Random(seed)
    kinds = list(KINDS)
    drawn: dict[str, WordProblem] = {}
    while len(drawn) < count:
        problem = draw_problem(rng, kinds[len(drawn) % len(kinds)])
        drawn.setdefault(problem.question, problem)
    problems = list(drawn.values())
    rng.shuffle(problems)
    return problems
