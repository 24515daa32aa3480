"""What generators return, as rows: each function turns the output of one kind of generator into `RolloutRows`.

    rows = from_vllm(llm.generate(prompts, SamplingParams(n=8, logprobs=0)), group_ids=names)
    rows.columns["reward"] = [reward(text) for text in rows.columns["response"]]
    rows.put(client, "train", weight_version=7)

The tokens are those that the generator sampled, and each has the logprob that the generator returned. What is missing
is refused: no function tokenizes text again, which may give other tokens. Neither torch nor a generator's
package is imported before its objects are given.
"""

from __future__ import annotations

from dataplane_rollout._completions import from_completions
from dataplane_rollout._generate import from_generate
from dataplane_rollout._messages import from_message_logs
from dataplane_rollout._rows import PER_TOKEN_FIELDS, RolloutRows
from dataplane_rollout._vllm import from_vllm

__all__ = [
    "PER_TOKEN_FIELDS",
    "RolloutRows",
    "from_completions",
    "from_generate",
    "from_message_logs",
    "from_vllm",
]
