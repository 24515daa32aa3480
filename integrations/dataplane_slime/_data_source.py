"""slime on the data plane: its prompts and its partial rollouts are rows of the server, and survive slime's process.

    --data-source-path dataplane_slime.DataPlaneDataSource
    --rollout-all-samples-process-path dataplane_slime.note_rollout
    --custom-convert-samples-to-train-data-path dataplane_slime.convert_samples_to_train_data

slime draws groups of samples, one for each prompt, from its data source, gives back those whose generation it aborted,
and tells the source when it saves its model. Its own source keeps what was given back in the memory of the process.

Here each group is a group of rows, and drawing it is a claim. A group that is given back replaces its rows and can be
drawn again, by this process or by another one. A rollout marks the groups that it has used, and a save removes them
(see `dataplane_common.progress`). So a process that is killed and resumes from a checkpoint gets every group that the
checkpoint was not trained on, with the tokens, log-probabilities and weight versions that were given back last, and no
prompt twice.

slime's fully asynchronous loop never calls the second option's function. There the third one's tells what was used.

slime itself is imported for its class of samples and its source of prompts only. Settings are attributes of slime's
`args` (`--custom-config-path`), all of them optional:

- data_plane_address (None: DATAPLANE_SERVER), data_plane_partition ("slime"): of one run at a time.
- data_plane_prompts: the path of a data source from which new prompts come ("slime.rollout.data_source.
  RolloutDataSource"). "": none; another process puts groups with `add_samples`, and drawing waits for them.
- data_plane_max_staleness (None): groups of which the oldest token is more versions behind the newest token of all are
  removed, and counted as filtered. slime counts versions from 0 in each process; the server goes on counting.
- data_plane_timeout_s (600): how long drawing waits. 0: it draws the groups that are there, perhaps none.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, repeat
from typing import Any, Final

import numpy as np

from dataplane_client.client import Claim, DataPlaneClient, connect
from dataplane_client.codec import object_array
from dataplane_client.errors import (
    ClaimNotFoundError,
    ClaimTimeoutError,
    DeadlineError,
    InvalidArgumentError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from dataplane_client.observe import log_event
from dataplane_client.records.tasks import TaskPolicy
from dataplane_common.progress import UNTRAINED, Progress

_ARRAYS: Final = {
    "tokens": np.int32,
    "loss_mask": np.int8,
    "rollout_log_probs": np.float64,
    "rollout_routed_experts": np.int32,
}
_OPTIONAL: Final = (
    "rollout_log_probs",
    "rollout_routed_experts",
    "rollout_top_p_token_ids",
    "rollout_top_p_token_offsets",
    "teacher_log_probs",
    "train_metadata",
    "multimodal_train_inputs",
)
_SCALED: Final = ("grpo", "gspo", "cispo")
_CENTRED: Final = (*_SCALED, "reinforce_plus_plus_baseline")
_TASK: Final = "rollout"
_AGAIN_S: Final = 0.2
_AWAY_S: Final = 60.0
"""How long a draw that does not wait for groups is repeated while the server is away: as long as other calls are."""
_TELLS: Final = "dataplane_slime.note_rollout"
_GROUP: Final = "data_plane_group"
"""The key in a sample's metadata of its group's name."""
_KNOWN: Final = "known_versions"
"""The key in the meta of a claim of how many weight versions each sample had when it was drawn."""


def rows_of(samples: Sequence[Any], versions: Iterable[Iterable[int]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The columns and the tags of samples, which have `to_dict()`. versions: that generated the tokens of each.

    What has an entry for each token is a column if all samples have it; all the rest of a sample is an
    object. The tag `arrays` names these columns, `weight_version` is the oldest version that generated a token.
    """
    dicts = [dict(sample.to_dict()) for sample in samples]
    arrays = [name for name in _ARRAYS if all(row.get(name) is not None for row in dicts)]
    columns: dict[str, Any] = {name: [np.asarray(row.pop(name), _ARRAYS[name]) for row in dicts] for name in arrays}
    columns["sample"] = object_array("sample", dicts, len(dicts))
    return columns, [{"arrays": ",".join(arrays), "weight_version": min(each, default=None)} for each in versions]


def samples_of(columns: Mapping[str, Any], sample_type: Any) -> list[Any]:
    """The samples of columns as `read_columns(layout="jagged")` returns them; sample_type has `from_dict(data)`."""
    rows = [dict(row) for row in columns["sample"]]
    for name in _ARRAYS:
        if name in columns:
            for row, values in zip(rows, columns[name].unbind(), strict=True):
                row[name] = values.numpy().copy() if name == "rollout_routed_experts" else values.tolist()
    return [sample_type.from_dict(row) for row in rows]


def _numbers(versions: Iterable[object] | None) -> list[int]:
    """Weight versions as numbers."""
    return [int(version) for version in map(str, versions or ()) if version.isdecimal()]


def _flat(samples: Iterable[Any]) -> Iterator[Any]:
    for sample in samples:
        if isinstance(sample, list):
            yield from _flat(sample)
        else:
            yield sample


def _status(sample: Any) -> str:
    return str(getattr(sample.status, "value", sample.status))


def _known_group(sample: Any) -> Any:
    """That under which its group was drawn, or the number that slime's source gave it; None without both."""
    return (sample.metadata or {}).get(_GROUP) or getattr(sample, "group_index", None)


def _group_name(samples: Sequence[Any]) -> str:
    """That of the first sample, or a new one."""
    known = _known_group(samples[0])
    return uuid.uuid4().hex if known is None else str(known)


def _load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


_open_sources: weakref.WeakSet[DataPlaneDataSource] = weakref.WeakSet()
"""Those of this process, for slime's functions that are given no source."""


class DataPlaneDataSource:
    """slime's data source; see the module's docstring. It connects when it is made. For one thread; another one may
    note what was used and save meanwhile.

    Without `note_rollout` among slime's settings, a save takes all groups that were drawn and not given back as used:
    right if nothing is being generated during a save, as in slime's synchronous loop. A group that is then in flight
    would be lost if the process died before the next save.

    sample_type, prompts: slime's class of samples and a source of new prompts, instead of those of the settings.
    """

    def __init__(self, args: Any, sample_type: Any = None, prompts: Any = None) -> None:
        path = getattr(args, "data_plane_prompts", "slime.rollout.data_source.RolloutDataSource")
        self._sample_type = sample_type or _load("slime.utils.types.Sample")
        self._prompts = prompts or (_load(path)(args) if path else None)
        self._group_size = getattr(args, "n_samples_per_prompt", 1)
        self._timeout_s = float(getattr(args, "data_plane_timeout_s", 600.0))
        self._partition = getattr(args, "data_plane_partition", "slime")
        self._client: DataPlaneClient = connect(getattr(args, "data_plane_address", None))
        self._client.register_partition(self._partition, ["sample", *_ARRAYS], 0, [_TASK])
        bound = getattr(args, "data_plane_max_staleness", None)
        policy = TaskPolicy(order="oldest_version")
        if bound is not None:
            policy = replace(policy, where=f"not staleness > {int(bound)}", when_excluded="drop")
        self._client.set_policies(self._partition, {_TASK: policy})
        self._progress = Progress(self._client, self._partition, _TASK)
        self._drawn: dict[str, Claim] = {}
        self._tried: dict[str, Claim | None] = {}  # what an `add_samples` that failed has given back or put
        self._unput: deque[Sequence[Any]] = deque()  # groups that the source of prompts has given
        self._prompting = threading.Lock()  # a save must not come between a prompt and its put
        self._rollout = 0  # the one that comes next
        self._is_told = getattr(args, "rollout_all_samples_process_path", None) == _TELLS
        self._newest = -1
        self._base = 0  # what the server counts more than slime
        _open_sources.add(self)

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """Draw groups: those that wait, of the oldest versions first, and then new prompts. Raises ClaimTimeoutError if
        there are too few within data_plane_timeout_s; if that is 0, returns those that are there. Nothing is drawn when
        it raises.
        """
        deadline = time.monotonic() + self._timeout_s
        groups: list[list[Any]] = []
        try:
            while len(groups) < num_samples:
                groups.append(self._next(deadline, num_samples - len(groups)))
        except BaseException as error:  # also one of the source of prompts: a save would take them as used
            if self._timeout_s or not isinstance(error, ClaimTimeoutError):
                self._release([_group_name(group) for group in groups])
                raise
        return groups

    def add_samples(self, samples: Iterable[Sequence[Any]]) -> None:
        """Give groups back, with what they have become, to be drawn again; or put new ones. If it raises, a group that
        was not given back is drawn as it was, unless the call is tried again first.
        """
        for group in samples:
            name = _group_name(group)
            claim = self._drawn.pop(name, None) or self._tried.get(name)
            if claim is not None:
                self._tried[name] = claim
                self._give_back(group, claim)
            elif name not in self._tried:
                self._put(group)
                self._tried[_group_name(group)] = None  # the put has named it
        self._tried.clear()

    def _give_back(self, group: Sequence[Any], claim: Claim) -> None:
        try:
            if self._is_lost(claim):
                log_event(logging.WARNING, "group_lost", group=_group_name(group), partition=self._partition)
                return
            known: Any = claim.meta.extra_info[_KNOWN]
            meta, newer = claim.meta, self._newer(group, known)
            older = [_numbers([tags.get("weight_version")]) for tags in claim.tags]
            columns, tags = rows_of(group, map(chain, older, newer))
            self._client.put_samples(meta.sample_ids, self._partition, columns, tags, generations=meta.generations)
            self._see_versions(newer)
        finally:
            if claim.state == "open":
                with contextlib.suppress(ClaimNotFoundError):  # the session has just expired
                    claim.release()

    def _is_lost(self, claim: Claim) -> bool:
        """Whether the group is gone, or the claim has ended and the group was drawn again."""
        with contextlib.suppress(NotFoundError):
            if claim.state == "open":
                claim.write({})
                return False
        for name, generation in zip(claim.meta.sample_ids, claim.meta.generations or (), strict=True):
            row = self._client.sample(self._partition, name)
            if row.generation != generation or any(t.task == _TASK and t.state != "untaken" for t in row.tasks):
                return True
        return False

    def _newer(self, group: Sequence[Any], drawn: Iterable[int]) -> list[list[int]]:
        """The versions of the tokens of each sample since it was drawn with so many versions, as the server counts."""
        entries = [getattr(sample, "weight_versions", None) or [] for sample in group]
        newer = [_numbers(versions[known:]) for versions, known in zip(entries, drawn, strict=False)]
        return [[self._base + version for version in versions] for versions in newer]

    def _see_versions(self, newer: Iterable[Iterable[int]]) -> None:
        """Staleness counts from the newest version that generated a token."""
        newest = max(chain.from_iterable(newer), default=-1)
        if newest > self._newest:
            known = self._client.partition(self._partition).weight_version
            if known is None or known < newest:
                self._client.set_weight_version(self._partition, newest)
            self._newest = newest

    def note_rollout(self, samples: Iterable[Any], *, keeps_others: bool = True) -> None:
        """The next rollout has used these samples, or has filtered them out: mark their groups. Those that it aborted
        are not among them. keeps_others: whether other groups that were drawn may still be given back or used; if not,
        they can be drawn again.
        """
        flat = list(_flat(samples))
        aborted = {_group_name([sample]) for sample in flat if _status(sample) == "aborted"}
        self._mark({_group_name([sample]) for sample in flat} - aborted, self._rollout)
        self._rollout += 1
        self._is_told = True
        if not keeps_others:
            self._release(list(self._drawn))

    def note_trained(self, samples: Iterable[Any]) -> None:
        """The next rollout has used these samples, unless `note_rollout` has said so already. Does nothing where slime
        was not given `note_rollout`: a save takes all drawn groups as used then.
        """
        flat = list(_flat(samples))
        if self._is_told and any(_group_name([sample]) in self._drawn for sample in flat):
            self.note_rollout(flat)

    def save(self, rollout_id: int) -> None:
        """The model is saved after this rollout: remove the groups of all rollouts up to it. Raises what a put raises
        if the source of prompts has given groups that cannot be put: saved, they would be lost.
        """
        if self._prompts is not None:
            with self._prompting:
                self._put_new(time.monotonic() + (self._timeout_s or _AWAY_S))
                self._prompts.save(rollout_id)
        if not self._is_told:
            self._mark(list(self._drawn), rollout_id)
        self._progress.forget(rollout_id)
        self._rollout = max(self._rollout, rollout_id + 1)

    def load(self, rollout_id: int | None = None) -> None:
        """The run goes on from the model that was saved after this rollout (None: from the beginning). All groups that
        the model was not trained on can be drawn, also those that another process had drawn.
        """
        last = -1 if rollout_id is None else rollout_id
        self._release(list(self._drawn))
        self._tried.clear()
        self._progress.rewind(last)
        self._rollout = last + 1
        if self._newest < 0:  # else slime's count goes on, too
            self._base = self._client.partition(self._partition).weight_version or 0
        if self._prompts is not None:
            with self._prompting:
                self._unput.clear()  # it gives them again
                self._prompts.load(rollout_id)

    def __len__(self) -> int:
        """The prompts of the source of prompts; without one, groups that can be drawn."""
        if self._prompts is not None:
            return len(self._prompts)
        (task,) = self._client.partition(self._partition).tasks
        return int(task.untaken_rows // self._group_size)

    def close(self) -> None:
        """Release what was drawn, and disconnect. May be called again."""
        _open_sources.discard(self)
        self._release(list(self._drawn))
        self._client.close()

    def _next(self, deadline: float, missing: int) -> list[Any]:
        until = deadline if self._prompts is None else 0.0
        back_by = deadline if self._timeout_s else time.monotonic() + _AWAY_S
        while True:
            try:
                return self._draw(until)
            except ClaimTimeoutError:
                if until or self._prompts is None:
                    raise
            except (DeadlineError, UnavailableError):  # the server is busy, or away, and may be back
                if time.monotonic() >= back_by:
                    raise
                time.sleep(_AGAIN_S)
                continue
            with self._prompting:
                if not self._unput:
                    self._unput.extend(self._prompts.get_samples(missing))
                is_at_its_end = not self._unput  # but groups may be given back
                self._put_new(back_by)
            if is_at_its_end or time.monotonic() >= deadline:
                until = deadline

    def _draw(self, until: float) -> list[Any]:
        """A group that slime has not got."""
        while True:
            timeout_s = max(0.0, until - time.monotonic())
            claim = self._client.claim(
                self._partition, _TASK, ["sample"], 1, whole_groups=True, where=UNTRAINED, timeout_s=timeout_s
            )
            name = claim.groups[0].group_id
            former = self._drawn.get(name)
            if former is None:
                break
            self._drawn[name] = claim  # the session had expired; slime generates the group, or has used it
            claim.meta.extra_info.update(former.meta.extra_info)
            with contextlib.suppress(ClaimNotFoundError):
                former.release()
        arrays = [array for array in str(claim.tags[0]["arrays"]).split(",") if array]
        columns = self._client.read_columns(claim.meta, ["sample", *arrays], layout="jagged")
        self._drawn[name] = claim
        samples = samples_of(columns, self._sample_type)
        claim.meta.extra_info[_KNOWN] = [len(getattr(sample, "weight_versions", None) or ()) for sample in samples]
        return samples

    def _put_new(self, deadline: float) -> None:
        """Put what the source of prompts has given. It repeats what it gave after its last save, so that may be there;
        or a process that died while it put it has it reserved, until its session ends. What cannot be put is kept.
        """
        while self._unput:
            try:
                self._put(self._unput[0])
            except (PreconditionError, UnavailableError) as error:
                is_away = isinstance(error, UnavailableError)
                if not is_away and error.reason != "SAMPLE_EXISTS":
                    raise
                if is_away or error.details.get("group_state") == "reserved":
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(_AGAIN_S)
                    continue
            self._unput.popleft()

    def _put(self, group: Sequence[Any]) -> None:
        name = _group_name(group)
        for sample in group:
            sample.metadata = {**(sample.metadata or {}), _GROUP: name}
        ids = [f"{name}/{index}" for index in range(len(group))]
        self._client.put_group(self._partition, name, ids, *rows_of(group, self._newer(group, repeat(0))))

    def _mark(self, names: Iterable[str], rollout_id: int) -> None:
        claims = {name: self._drawn[name] for name in names if name in self._drawn}
        rows = [
            row
            for claim in claims.values()
            for row in zip(claim.meta.sample_ids, claim.meta.generations or (), strict=True)
        ]
        self._progress.mark(dict(rows), rollout_id)  # if it fails, they are drawn as before
        for name, claim in claims.items():
            with contextlib.suppress(ClaimNotFoundError):
                claim.commit()
            del self._drawn[name]

    def _release(self, names: Sequence[str]) -> None:
        claims = [self._drawn.pop(name) for name in reversed(names)]  # each comes before those released before it
        for claim in claims:
            with contextlib.suppress(ClaimNotFoundError):
                claim.release()


def note_rollout(args: Any, all_groups: Iterable[Any], data_source: DataPlaneDataSource) -> None:
    """For slime's `--rollout-all-samples-process-path`: the rollout has used these groups, or filtered them out. The
    others that it drew were aborted; without `--partial-rollout` slime drops them, and they can be drawn again.
    """
    data_source.note_rollout(all_groups, keeps_others=getattr(args, "partial_rollout", True))


def convert_samples_to_train_data(args: Any, samples: Iterable[Any]) -> dict[str, Any]:
    """For slime's `--custom-convert-samples-to-train-data-path`: lists with one entry for each sample. The data sources
    of this process learn that these were used (`note_trained`).

    samples: a list of samples, or of groups of them. `rewards` are normalized in each group as slime's estimators want
    it: less the mean for grpo, gspo, cispo and reinforce_plus_plus_baseline, and of the first three divided by the
    standard deviation unless args.grpo_std_normalization is False; raw for all others, or if args.rewards_normalization
    is False. args.custom_reward_post_process_path names a function that does it instead. args.reward_key chooses one of
    several rewards. A sample with remove_sample has a loss mask of zeros; one without a loss mask trains on its whole
    response. `rollout_mask_sums` are the trained tokens of a sample's rollout: of all samples with its rollout_id, or
    of itself without one. Optional columns are there if all samples have them, `multimodal_train_inputs` if any has
    them. Raises InvalidArgumentError (a ValueError) for a sample without a reward, or without a group in which to
    normalize it, or with a loss mask of another length than its response.
    """
    flat = list(_flat(samples))
    key = getattr(args, "reward_key", None)
    raw: list[Any] = [(sample.reward or {}).get(key) if key else sample.reward for sample in flat]
    if None in raw:
        raise InvalidArgumentError(f"sample {flat[raw.index(None)].index} has no reward{f' {key!r}' if key else ''}")
    masks = [[1] * sample.response_length if sample.loss_mask is None else sample.loss_mask for sample in flat]
    for row, sample in enumerate(flat):
        if len(masks[row]) != sample.response_length:
            lengths = f"{len(masks[row])} entries for {sample.response_length} tokens of its response"
            raise InvalidArgumentError(f"sample {sample.index}: loss_mask has {lengths}")
        if getattr(sample, "remove_sample", False):
            masks[row] = [0] * len(masks[row])
    rollouts = _rollouts(flat)
    trained: Counter[int] = Counter()
    for rollout, mask in zip(rollouts, masks, strict=True):
        trained[rollout] += sum(mask)
    if process := getattr(args, "custom_reward_post_process_path", None):
        raw, rewards = _load(process)(args, flat)
    else:
        rewards = _normalized(args, raw, flat)
    metadata = [sample.metadata or {} for sample in flat]
    data: dict[str, Any] = {
        "tokens": [sample.tokens for sample in flat],
        "response_lengths": [sample.response_length for sample in flat],
        "rewards": rewards,
        "raw_reward": [known.get("raw_reward", reward) for known, reward in zip(metadata, raw, strict=True)],
        "truncated": [int(_status(sample) == "truncated") for sample in flat],
        "sample_indices": [sample.index for sample in flat],
        "rollout_ids": rollouts,
        "rollout_mask_sums": [trained[rollout] for rollout in rollouts],
        "loss_masks": masks,
        "source_names": [
            getattr(sample, "source", None) or known.get("source_name") or "unknown"
            for sample, known in zip(flat, metadata, strict=True)
        ],
    }
    optional = {name: [getattr(sample, name, None) for sample in flat] for name in _OPTIONAL}
    optional["metadata"] = optional.pop("train_metadata")
    optional["round_number"] = [known.get("round_number") for known in metadata]
    for name, column in optional.items():
        present = any if name == "multimodal_train_inputs" else all
        if present(values is not None for values in column):
            data[name] = column
    for source in list(_open_sources):
        source.note_trained(flat)
    return data


def _rollouts(samples: Sequence[Any]) -> list[int]:
    """For each sample a number that it shares with the others of its rollout_id; one of its own without one."""
    ids = [getattr(sample, "rollout_id", None) for sample in samples]
    taken = set(ids)
    free = (number for number in count() if number not in taken)
    return [next(free) if rollout is None else rollout for rollout in ids]


def _normalized(args: Any, rewards: Sequence[float], samples: Sequence[Any]) -> list[float]:
    estimator = getattr(args, "advantage_estimator", "grpo")
    values = np.array(rewards, np.float64)
    if estimator in _CENTRED and getattr(args, "rewards_normalization", True):
        for sample in samples:
            if _known_group(sample) is None:  # as a group of its own it would have the reward 0
                raise InvalidArgumentError(f"sample {sample.index} has no group_index; {estimator} compares groups")
        groups = [_group_name([sample]) for sample in samples]
        for group in set(groups):
            rows = [row for row, name in enumerate(groups) if name == group]
            values[rows] -= values[rows].mean()
            if estimator in _SCALED and getattr(args, "grpo_std_normalization", True) and len(rows) > 1:
                values[rows] /= values[rows].std(ddof=1) + 1e-6
    return [float(value) for value in values]
