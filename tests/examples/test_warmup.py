from __future__ import annotations

from itertools import islice

from transformers import PreTrainedTokenizerBase

from make_problems import PROBLEMS_FILE
from problem_file import load_problems, prompt_ids
from token_batch import pad_samples
from warmup import warmup_batches, worked_problems


def test_no_question_of_the_training_problems_is_worked() -> None:
    known = {problem.question for problem in load_problems(PROBLEMS_FILE)}
    drawn = [problem.question for problem in islice(worked_problems(0, known), 3000)]
    assert not known.intersection(drawn)
    assert known.intersection(problem.question for problem in islice(worked_problems(0), 3000))


def test_a_sample_is_a_prompt_and_a_closed_solution_and_only_the_solution_is_trained(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    batch = next(warmup_batches(tokenizer, 8, 5, ()))
    problems = list(islice(worked_problems(5), 8))
    for problem, ids, length, mask in zip(
        problems, batch.input_ids, batch.input_lengths, batch.token_mask, strict=True
    ):
        prompt = prompt_ids(tokenizer, problem.question)
        assert ids[~mask][: len(prompt)].tolist() == prompt
        response = ids[mask].tolist()
        assert response[-1] == tokenizer.eos_token_id
        assert len(prompt) + len(response) == length
        assert problem.solution.startswith(str(tokenizer.decode(response[:-1])))


def test_padding_a_sample_marks_its_response_and_fills_the_rest() -> None:
    batch = pad_samples([[1, 2], [3]], [[4], [5, 6, 7]], pad_token_id=0)
    assert batch.input_ids.tolist() == [[1, 2, 4, 0], [3, 5, 6, 7]]
    assert batch.input_lengths.tolist() == [3, 4]
    assert batch.token_mask.int().tolist() == [[0, 0, 1, 0], [0, 1, 1, 1]]
