"""Supervised warm-up: a random model never earns a reward, so it first imitates worked solutions.

The worked problems are newly drawn; none of them is a training problem of the reinforcement learning that follows. So
the model cannot memorise answers here that are rewarded later. Like text from the wild, most solutions break off after
some line and never state an answer. The model learns to break off as well. Reinforcement learning, which sees answers
only, must teach it to finish and to calculate correctly.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from transformers import PreTrainedTokenizerBase

from problem_file import Problem, prompt_ids, prompt_text
from special_tokens import eos_id, pad_id
from token_batch import TokenBatch, pad_samples
from word_problems import KINDS, WordProblem, draw_problem

BROKEN_OFF = 0.6
"""Fraction of the solutions that break off after a random line."""
_TOKENIZER_PROBLEMS = 400


def worked_problems(seed: int, without: Collection[str] = ()) -> Iterator[WordProblem]:
    """Yield problems of random kinds forever. No question is in `without`."""
    rng = random.Random(seed)
    kinds = list(KINDS)
    while True:
        problem = draw_problem(rng, rng.choice(kinds))
        if problem.question not in without:
            yield problem


def tokenizer_texts(problems: Iterable[Problem]) -> list[str]:
    """Texts to train a tokenizer on: the prompts of `problems`, and some worked problems."""
    worked = islice(worked_problems(seed=0), _TOKENIZER_PROBLEMS)
    solved = [prompt_text(problem.question) + problem.solution for problem in worked]
    return [*(prompt_text(problem.question) for problem in problems), *solved]


def imitated_solution(problem: WordProblem, rng: random.Random) -> str:
    lines = problem.solution.split("\n")
    kept = rng.randint(1, len(lines) - 1) if rng.random() < BROKEN_OFF else len(lines)
    return "\n".join(lines[:kept])


def warmup_batches(
    tokenizer: PreTrainedTokenizerBase, batch_size: int, seed: int, without: Collection[str]
) -> Iterator[TokenBatch]:
    """Yield batches of `batch_size` worked problems forever. A sample's response is the solution to imitate."""
    rng = random.Random(seed)
    problems = worked_problems(seed, without)
    while True:
        drawn = list(islice(problems, batch_size))
        solutions = [imitated_solution(problem, rng) for problem in drawn]
        yield pad_samples(
            [prompt_ids(tokenizer, problem.question) for problem in drawn],
            [[*tokenizer.encode(text, add_special_tokens=False), eos_id(tokenizer)] for text in solutions],
            pad_id(tokenizer),
        )
