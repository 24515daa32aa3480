"""What `generate` of a real, tiny model returns, against the tokens it sampled and a forward pass over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dataplane_client.errors import InvalidArgumentError
from dataplane_rollout import from_generate
from dataplane_rollout.tests.recordings import assert_rows

transformers = pytest.importorskip("transformers")

PAD, EOS, STEPS, SAMPLES = 0, 1, 6, 4
PROMPTS = [[5, 6, 7], [8]]
INPUT_IDS = torch.tensor([[5, 6, 7], [PAD, PAD, 8]])
MASK = torch.tensor([[1, 1, 1], [0, 0, 1]])


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(3)
    config = transformers.Qwen2Config(
        vocab_size=12,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.4,
    )
    return transformers.Qwen2ForCausalLM(config).eval()


def generate(model: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GenerationConfig(
        **{"do_sample": True, "num_return_sequences": SAMPLES, "top_k": 0, "temperature": 0.7, **options},
        max_new_tokens=STEPS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    return model.generate(input_ids=INPUT_IDS, attention_mask=MASK, generation_config=config)


def forward(model: Any, tokens: list[int], temperature: float) -> list[float]:
    """The logprob of each token after the first, by one forward pass without padding."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, :-1] / temperature
    chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])
    return [float(value) for value in chosen[:, 0]]


@pytest.mark.parametrize(("of", "temperature"), [("scores", 0.7), ("logits", 1.0)])
def test_a_generated_batch_has_the_tokens_and_the_logprobs_of_a_forward_pass(
    model: Any, of: Any, temperature: float
) -> None:
    output = generate(model)
    rows = from_generate(output, MASK, eos_token_id=EOS, group_ids=["p", "q"], of=of)
    assert rows.sample_ids == [f"{name}_g{sample}" for name in "pq" for sample in range(SAMPLES)]
    reasons = set()
    for row in range(2 * SAMPLES):
        prompt, sampled = PROMPTS[row // SAMPLES], output.sequences[row, 3:].tolist()
        ended = EOS in sampled
        response = sampled[: sampled.index(EOS) + 1] if ended else sampled
        assert rows.columns["input_ids"][row].tolist() == prompt + response
        assert rows.columns["token_mask"][row].tolist() == [False] * len(prompt) + [True] * len(response)
        expected = [0.0] * len(prompt) + forward(model, prompt + response, temperature)[len(prompt) - 1 :]
        assert np.allclose(rows.columns["generation_logprobs"][row], expected, atol=1e-5)
        assert rows.tags[row] == {"finish_reason": "stop" if ended else "length"}
        reasons.add(ended)
    assert reasons == {True, False}


def test_logprobs_are_the_transition_scores_of_the_model(model: Any) -> None:
    output = generate(model)
    rows = from_generate(output, MASK, eos_token_id=[EOS], group_ids=["p", "q"])
    scores = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    for row, logprobs in enumerate(rows.columns["generation_logprobs"]):
        sampled = logprobs[rows.columns["token_mask"][row]]
        assert np.allclose(sampled, scores[row, : len(sampled)], atol=1e-6)


def test_a_tensor_of_sequences_is_a_hand_made_batch() -> None:
    sequences = torch.tensor([[5, 6, 7, 9, EOS, PAD], [PAD, PAD, 8, EOS, PAD, PAD]])
    rows = from_generate(sequences, MASK, eos_token_id=[EOS, 2], group_ids=["p", "q"], logprobs=False)
    columns: dict[str, list[Any]] = {
        "input_ids": [[5, 6, 7, 9, EOS], [8, EOS]],
        "token_mask": [[False, False, False, True, True], [False, True]],
        "input_lengths": [5, 2],
        "sample_mask": [1, 1],
    }
    assert_rows(rows, ["p_g0", "q_g0"], columns, [{"finish_reason": "stop"}] * 2)


def test_padding_after_a_stop_that_is_no_eos_token_is_not_sampled() -> None:
    sequences = torch.tensor([[5, 6, 7, 9, 4, 4], [PAD, PAD, 8, 9, PAD, PAD]])
    rows = from_generate(sequences, MASK, eos_token_id=EOS, pad_token_id=PAD, group_ids=["p", "q"], logprobs=False)
    assert [row.tolist() for row in rows.columns["input_ids"]] == [[5, 6, 7, 9, 4, 4], [8, 9]]
    assert [tags["finish_reason"] for tags in rows.tags] == ["length", "stop"]


def test_a_beam_search_is_refused(model: Any) -> None:
    output = generate(model, do_sample=False, num_beams=SAMPLES, temperature=1.0)
    with pytest.raises(InvalidArgumentError, match="of a beam search, whose rows were not sampled"):
        from_generate(output, MASK, eos_token_id=EOS, group_ids=["p", "q"])


SEQUENCES = torch.tensor([[5, 6, 7, 9], [PAD, PAD, 8, 9]])


@pytest.mark.parametrize(
    ("output", "mask", "message"),
    [
        (SEQUENCES, MASK, "eos_token_id must be a list of integers"),
        (
            SEQUENCES,
            MASK,
            "the output has no scores; call generate(return_dict_in_generate=True, output_scores=True), or",
        ),
        (SEQUENCES[:1], MASK, "sequences of shape (1, 4) and an attention mask of shape (2, 3) do not fit"),
        (SEQUENCES[:, :2], MASK, "sequences of shape (2, 2) and an attention mask of shape (2, 3) do not fit"),
        (SEQUENCES, MASK.flip(1), "generate, prompt 1 ('q'), sample 0: the prompt is not padded on the left"),
    ],
)
def test_what_does_not_fit_is_refused(output: Any, mask: torch.Tensor, message: str) -> None:
    end: Any = None if "eos" in message else EOS
    with pytest.raises(InvalidArgumentError) as refused:
        from_generate(output, mask, eos_token_id=end, group_ids=["p", "q"], logprobs="has no" in message)
    assert message in str(refused.value)


def test_scores_of_other_steps_are_refused(model: Any) -> None:
    output = generate(model)
    output.scores = output.scores[1:]
    with pytest.raises(InvalidArgumentError, match=r"scores of \d steps for \d sampled tokens"):
        from_generate(output, MASK, eos_token_id=EOS, group_ids=["p", "q"])
