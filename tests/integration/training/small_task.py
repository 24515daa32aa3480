"""Problems such as "Say 7 for 17.", and a model that answers a random digit, so that one rollout in ten is right."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch

from problem_file import INSTRUCTION, prompt_ids, prompt_text
from settings import ModelSettings
from special_tokens import eos_id
from tiny_model import load_model, save_tiny_model

PROBLEMS = 48


def make_task(folder: Path) -> tuple[Path, Path]:
    """Write a model and problems. Returns their paths."""
    questions = [f"Say {number % 10} for {number + 10}." for number in range(PROBLEMS)]
    texts = [f"{prompt_text(question, INSTRUCTION)}#### {digit}" for question in questions for digit in range(10)]
    save_tiny_model(folder / "model", texts, ModelSettings(320, 32, 64, 2, 2), seed=0)
    model, tokenizer = load_model(folder / "model")
    prompts = [prompt_ids(tokenizer, question, INSTRUCTION) for question in questions]  # all of one length
    answers = [[*tokenizer.encode(f"#### {n}", add_special_tokens=False), eos_id(tokenizer)] for n in range(10)]
    optimizer, dice = torch.optim.AdamW(model.parameters(), lr=1e-2), random.Random(0)
    for _ in range(60):
        ids = torch.tensor([[*prompt, *dice.choice(answers)] for prompt in dice.sample(prompts, 16)])
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids.clone().index_fill_(1, torch.arange(len(prompts[0])), -100)).loss.backward()
        optimizer.step()
    model.save_pretrained(folder / "model")
    lines = (json.dumps({"question": text, "answer": number % 10}) for number, text in enumerate(questions))
    (folder / "problems.jsonl").write_text("\n".join(lines))
    return folder / "model", folder / "problems.jsonl"
