from __future__ import annotations

import re
import sys
from itertools import islice
from pathlib import Path

import pytest
from tests import commands

from make_problems import COUNT, PROBLEMS_FILE, problem_lines
from problem_file import load_problems, prompt_batches
from word_problems import FINAL_MARK, KINDS, WordProblem, draw_problems

_STEP = re.compile(r"(\d+)([+-])(\d+)=(\d+)")


def test_the_shipped_problems_are_those_the_script_writes() -> None:
    assert PROBLEMS_FILE.read_text(encoding="utf-8") == problem_lines()
    script = PROBLEMS_FILE.with_name("make_problems.py")
    assert commands.run([sys.executable, script, "--nope"]).returncode == 2  # it wrote a file of that name


def test_the_shipped_problems_load_and_no_question_comes_twice() -> None:
    problems = load_problems(PROBLEMS_FILE)
    assert len({problem.question for problem in problems}) == len(problems) == COUNT


def _result_of(step: str) -> int:
    found = _STEP.fullmatch(step)
    assert found is not None, step
    left, operator, right, result = found.groups()
    assert int(result) == (int(left) + int(right) if operator == "+" else int(left) - int(right)), step
    return int(result)


@pytest.mark.parametrize("problem", draw_problems(3 * len(KINDS), seed=1), ids=lambda problem: problem.kind)
def test_every_step_is_right_small_and_the_last_one_is_the_answer(problem: WordProblem) -> None:
    results = [_result_of(step) for step in problem.steps]
    assert results[-1] == problem.answer
    assert all(1 <= int(number) <= 99 for step in problem.steps for number in re.findall(r"\d+", step))
    assert problem.solution.endswith(f"\n{FINAL_MARK}{problem.answer}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param('{"question": "q", "answer": 1}\n{"question": "q"}', "line 2: .*'answer'", id="no answer"),
        pytest.param('{"answer": 1}', "line 1: .*'question'", id="no question"),
        pytest.param('{"question": 5, "answer": 1}', "line 1: .*'question'", id="question is no text"),
        pytest.param('{"question": "q", "answer": "many"}', "line 1: answer: 'many'", id="answer is no number"),
        pytest.param("[1]", "line 1: expected an object", id="no object"),
        pytest.param("\n{", "line 2: ", id="no JSON"),
        pytest.param("\n\n", "no problems", id="empty"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_reason(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=complaint):
        load_problems(path)


def test_each_pass_over_the_problems_takes_every_problem_once_in_another_order(tmp_path: Path) -> None:
    problems = load_problems(PROBLEMS_FILE)[:10]
    batches = islice(prompt_batches(problems, 4, seed=0), 5)
    taken = [problem.question for batch in batches for problem in batch]
    first, second = taken[:10], taken[10:]
    assert sorted(first) == sorted(second) == sorted(problem.question for problem in problems)
    assert first != second
