"""Write `problems.jsonl`: `python examples/grpo/make_problems.py`. The output is the same every time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from word_problems import draw_problems

PROBLEMS_FILE = Path(__file__).with_name("problems.jsonl")
COUNT = 360


def problem_lines() -> str:
    rows = ({"question": problem.question, "answer": problem.answer} for problem in draw_problems(COUNT, seed=0))
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", type=Path, default=PROBLEMS_FILE, help="where to write it")
    parser.parse_args().target.write_text(problem_lines(), encoding="utf-8")
