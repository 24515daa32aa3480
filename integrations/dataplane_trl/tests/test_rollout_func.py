"""TRL's synchronous rollout function: prompts go out to generators, and their completions come back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClaimTimeoutError, InvalidArgumentError, PreconditionError, UnavailableError
from dataplane_trl import RolloutFunc, answer_prompts, register_prompts

NewFunc = Callable[..., Any]
Ask = Callable[..., Future[Any]]


def trainer(rank: int = 0, step: int = 0) -> Any:
    return SimpleNamespace(accelerator=SimpleNamespace(process_index=rank), state=SimpleNamespace(global_step=step))


def generate(prompts: list[str], steps: list[int]) -> dict[str, Any]:
    """As many tokens as the prompt has letters; the completion has no more than the trainer's step."""
    ids = [[ord(letter) for letter in prompt] for prompt in prompts]
    completions = [row[:step] for row, step in zip(ids, steps, strict=True)]
    logprobs = [[-0.5] * len(row) for row in completions]
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": logprobs, "score": [len(p) for p in prompts]}


@pytest.fixture
def generator(client: DataPlaneClient) -> DataPlaneClient:
    """The client of a generator."""
    register_prompts(client, extra_fields=["score"])
    return client


@pytest.fixture
def new_func(address: str, way: str) -> Iterator[NewFunc]:
    """Rollout functions, which are closed at the end."""
    made: list[Any] = []

    def make(**settings: Any) -> Any:
        settings = {"extra_fields": ["score"], "timeout_s": 20.0, **settings}
        made.append(RolloutFunc(address, transport=way, **settings))
        return made[-1]

    yield make
    for func in made:
        func.close()
        func.close()


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Call a rollout function in another thread."""
    with ThreadPoolExecutor(4) as threads:
        yield threads.submit


def result(asked: Future[Any], generator: DataPlaneClient, generate: Any = generate) -> Any:
    """Of a rollout function, whose prompts a generator answers meanwhile."""
    while not asked.done():
        answer_prompts(generator, generate, batch_size=3, timeout_s=0.1)
    return asked.result()


def test_completions_come_in_the_order_of_the_prompts(generator: DataPlaneClient, new_func: NewFunc, ask: Ask) -> None:
    func = new_func()
    for step, prompts in [(2, ["abc", "abc", "x", "hello"]), (0, ["b", "aa"])]:
        answer = result(ask(func, prompts, trainer(step=step)), generator)
        assert answer["prompt_ids"] == [[ord(letter) for letter in prompt] for prompt in prompts]
        assert answer["completion_ids"] == [row[:step] for row in answer["prompt_ids"]]
        assert answer["logprobs"] == [[-0.5] * len(row) for row in answer["completion_ids"]]
        assert answer["score"] == [len(prompt) for prompt in prompts]
    assert generator.partition("prompts").rows == 0


def test_ranks_get_their_own_completions(generator: DataPlaneClient, new_func: NewFunc, ask: Ask) -> None:
    asked = [ask(new_func(), [f"rank {rank}"], trainer(rank, 9)) for rank in range(2)]
    answers = [result(future, generator)["prompt_ids"] for future in asked]
    assert answers == [[[ord(letter) for letter in f"rank {rank}"]] for rank in range(2)]


def test_messages_reach_the_generator_as_they_are(generator: DataPlaneClient, new_func: NewFunc, ask: Ask) -> None:
    seen: list[Any] = []

    def note(prompts: list[Any], steps: list[int]) -> dict[str, Any]:
        seen.extend(prompts)
        return generate(["a"] * len(prompts), steps)

    messages = [[{"role": "user", "content": "a"}], [{"role": "user", "content": [{"type": "text", "text": "b"}]}]]
    result(ask(new_func(), messages, trainer(step=1)), generator, note)
    assert seen == messages


def test_prompts_of_a_generator_that_fails_are_answered_by_another(
    generator: DataPlaneClient, new_func: NewFunc, ask: Ask
) -> None:
    def fail(_prompts: list[str], _steps: list[int]) -> dict[str, Any]:
        raise ArithmeticError

    asked = ask(new_func(), ["ab"], trainer(step=1))
    with pytest.raises(ArithmeticError):
        answer_prompts(generator, fail, timeout_s=200.0)
    assert result(asked, generator)["completion_ids"] == [[ord("a")]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"logprobs": [[]]}, "prompt 0: 0 logprobs for 1 completion_ids"),
        ({"logprobs": []}, "generate returned 0 logprobs for 1 prompts"),
        ({"completion_ids": [[1], [2]]}, "generate returned 2 completion_ids for 1 prompts"),
        ({"prompt_ids": None}, "generate returned 0 prompt_ids for 1 prompts"),
    ],
)
def test_columns_that_do_not_fit_are_refused_where_they_were_made(
    generator: DataPlaneClient, new_func: NewFunc, ask: Ask, column: dict[str, Any], message: str
) -> None:
    def wrong(prompts: list[str], steps: list[int]) -> dict[str, Any]:
        columns = {**generate(prompts, steps), **column}
        return {name: rows for name, rows in columns.items() if rows is not None}

    asked = ask(new_func(), ["ab"], trainer(step=1))
    with pytest.raises(InvalidArgumentError, match=message):
        answer_prompts(generator, wrong, timeout_s=200.0)
    assert result(asked, generator)["completion_ids"] == [[ord("a")]]


def test_a_call_that_gets_no_completions_says_what_is_missing_and_leaves_nothing(
    generator: DataPlaneClient, new_func: NewFunc
) -> None:
    with pytest.raises(ClaimTimeoutError, match="completion_ids"):
        new_func(timeout_s=0.05)(["a"], trainer())
    assert answer_prompts(generator, generate, timeout_s=0.0) == 0


def test_a_call_whose_put_fails_leaves_nothing(
    generator: DataPlaneClient, new_func: NewFunc, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = DataPlaneClient.put_samples

    def put_and_fail(*args: Any) -> None:
        put(*args)
        raise UnavailableError("the answer is lost")

    monkeypatch.setattr(DataPlaneClient, "put_samples", put_and_fail)
    with pytest.raises(UnavailableError):
        new_func()(["a"], trainer())
    assert generator.partition("prompts").rows == 0


def test_prompts_that_their_trainer_gave_up_are_not_answered(generator: DataPlaneClient, new_func: NewFunc) -> None:
    def give_up(prompts: list[str], steps: list[int]) -> dict[str, Any]:
        generator.clear_samples(None, "prompts")
        return generate(prompts, steps)

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(new_func(timeout_s=0.5), ["a"], trainer())
        assert answer_prompts(generator, give_up, timeout_s=200.0) == 0
        assert isinstance(asked.exception(20.0), ClaimTimeoutError)


def test_prompts_of_a_rank_that_was_killed_are_gone_when_it_begins_anew(
    generator: DataPlaneClient, new_func: NewFunc, ask: Ask
) -> None:
    left = {"rank": 1, "call": 0, "weight_version": 0}
    generator.put_samples(["rank 1, call 0, 0"], "prompts", {"prompt": ["the killed one's"]}, [left])
    answer = result(ask(new_func(), ["ab"], trainer(rank=1, step=2)), generator)
    assert answer["prompt_ids"] == [[ord("a"), ord("b")]]


def test_a_rank_whose_first_call_failed_begins_anew_with_the_next(
    client: DataPlaneClient, new_func: NewFunc, ask: Ask
) -> None:
    client.register_partition("prompts", ["prompt"], 0, ["generate"], max_deliveries=3)
    func = new_func()
    with pytest.raises(PreconditionError, match="max_deliveries"):
        func(["ab"], trainer())
    client.drop_partition("prompts")
    register_prompts(client, extra_fields=["score"])
    tags = {"rank": 0, "call": 0, "weight_version": 0}
    client.put_samples(["of a rank that was killed"], "prompts", {"prompt": ["x"]}, [tags])
    assert result(ask(func, ["ab"], trainer(step=1)), client)["completion_ids"] == [[ord("a")]]
    assert client.partition("prompts").rows == 0
