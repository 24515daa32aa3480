"""slime's own code, from a source tree that SLIME_SOURCE names: its fully asynchronous worker on our data source, in a
process that is killed. Only the engine is ours, by slime's own option for it.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Beside = Callable[[str], list[int]]

SOURCE = os.environ.get("SLIME_SOURCE")

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(SOURCE is None, reason="SLIME_SOURCE names no source tree of slime"),
]

ENGINE = """
import json, os, sys
from argparse import Namespace

from slime.utils.types import Sample

GIVEN_BACK = 3
seen = set()


async def generate(args, sample, sampling_params):
    first = sample.index not in seen
    seen.add(sample.index)
    if sample.group_index == GIVEN_BACK and first:
        sample.status = Sample.Status.ABORTED
        return sample
    sample.tokens, sample.response_length, sample.loss_mask = [5, 6, 7], 2, [1, 1]
    sample.reward, sample.status = 1.0, Sample.Status.COMPLETED
    return sample


def arguments(folder):
    return Namespace(
        data_plane_prompts="", data_plane_timeout_s=60, n_samples_per_prompt=2, save=folder, hf_checkpoint=folder,
        custom_generate_function_path="engine.generate", partial_rollout=True, mask_offpolicy_in_partial_rollout=False,
        group_rm=False, sglang_server_concurrency=4, sglang_dp_size=1, rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1, rollout_temperature=1.0, rollout_top_p=1.0, rollout_top_k=-1,
        rollout_max_response_len=8, rollout_stop=None, rollout_stop_token_ids=None,
        rollout_skip_special_tokens=True, rollout_all_samples_process_path="dataplane_slime.note_rollout",
    )
"""


@pytest.fixture
def beside(run: Callable[..., str], address: str, tmp_path: Path) -> Beside:
    """Run code beside slime; what its last line has. It may kill itself."""
    (tmp_path / "engine.py").write_text(ENGINE)
    said = functools.partial(run, path=[tmp_path, SOURCE], DATAPLANE_SERVER=address)
    return lambda code: json.loads(said(code, str(tmp_path)).splitlines()[-1])


def test_groups_in_flight_in_their_fully_asynchronous_worker_come_again_after_a_kill(beside: Beside) -> None:
    used = beside(
        """
        import time
        from engine import *
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast
        from slime.rollout.fully_async_rollout import AsyncRolloutWorker
        from dataplane_slime import DataPlaneDataSource, convert_samples_to_train_data

        folder = sys.argv[1]
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a"))).save_pretrained(folder)
        args = arguments(folder)
        source = DataPlaneDataSource(args)
        source.add_samples([[Sample(group_index=g, index=2 * g + i) for i in (0, 1)] for g in range(20)])
        worker = AsyncRolloutWorker(args, source, concurrency=4)
        worker.start()
        used, deadline = [], time.monotonic() + 200
        for rollout in range(3):
            groups = []
            while len(groups) < 4:
                groups += [group for _, group in worker.get_completed_groups(limit=4 - len(groups))]
                assert time.monotonic() < deadline
                time.sleep(0.02)
            convert_samples_to_train_data(args, [sample for group in groups for sample in group])
            source.save(rollout)
            used += [group[0].group_index for group in groups]
        print(json.dumps(used), flush=True)
        os._exit(0)  # nothing is closed
        """,
    )
    again = beside(
        """
        from engine import *
        from dataplane_slime import DataPlaneDataSource

        source = DataPlaneDataSource(arguments(sys.argv[1]))
        source.load(2)
        groups = source.get_samples(8)
        assert {type(sample) for group in groups for sample in group} == {Sample}
        print(json.dumps([group[0].group_index for group in groups]))
        source.close()
        """,
    )
    assert len(used) == 12
    assert sorted(used + again) == list(range(20))


def test_train_data_is_what_their_conversion_makes_of_the_samples(beside: Beside) -> None:
    differing = beside(
        """
        import itertools
        import json
        import sys
        from argparse import Namespace
        from importlib.machinery import ModuleSpec
        from types import SimpleNamespace
        from unittest.mock import MagicMock


        class Engine:
            # Their module imports the engine and trackers, which are not installed and have no part in this.
            def find_spec(self, name, path=None, target=None):
                absent = name.partition(".")[0] in ("sglang", "sglang_router", "httpx", "wandb")
                return ModuleSpec(name, self, is_package=True) if absent else None

            def create_module(self, spec):
                return MagicMock(__name__=spec.name, __path__=[], __spec__=spec)

            def exec_module(self, module):
                pass


        sys.meta_path.append(Engine())
        from slime.ray.rollout import RolloutManager
        from slime.utils.types import Sample

        from dataplane_slime import convert_samples_to_train_data

        theirs = RolloutManager.__ray_metadata__.modified_class


        def samples():
            for group, index in itertools.product(range(3), range(2)):
                yield Sample(
                    group_index=group, index=2 * group + index, tokens=[5, 6, 7], response_length=2,
                    loss_mask=[1, index], reward=group + 1.5 * index, rollout_log_probs=[-0.1, -0.2],
                    teacher_log_probs=[-0.3, -0.4], rollout_id=7 if group == 1 else None,
                    remove_sample=group == 2 and index == 1, metadata={"round_number": index, "source_name": "math"},
                    status=Sample.Status.TRUNCATED if index else Sample.Status.COMPLETED,
                )


        differing = []
        for number, (estimator, std, normalized) in enumerate(itertools.product(
            ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline", "reinforce_plus_plus", "ppo"),
            (True, False), (True, False),
        )):
            args = Namespace(
                advantage_estimator=estimator, grpo_std_normalization=std, rewards_normalization=normalized,
                n_samples_per_prompt=2, rollout_batch_size=3, reward_key=None, rollout_top_p=1.0,
            )
            manager = SimpleNamespace(
                args=args, custom_convert_samples_to_train_data_func=None, custom_reward_post_process_func=None
            )
            manager._post_process_rewards = lambda found: theirs._post_process_rewards(manager, found)
            expected = theirs._convert_samples_to_train_data(manager, list(samples()))
            found = convert_samples_to_train_data(args, list(samples()))
            pairs = zip(expected.pop("rewards"), found.pop("rewards"), strict=True)
            if expected != found or any(abs(a - b) > 1e-5 for a, b in pairs):
                differing.append(number)
        print(json.dumps(differing))
        """,
    )
    assert differing == []
