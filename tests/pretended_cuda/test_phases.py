"""How often the host waits for the device in each phase of a rank, and what a rank on a GPU does right or wrong.

A wait that is added goes over the ceiling of its phase, and the failure names all waits by file and line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.pretended_cuda.build import compiler

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler: the pretended device's guard cannot be built"),
    pytest.mark.skipif(
        torch.version.cuda is not None, reason="torch has CUDA; the pretended device is for one without"
    ),
    pytest.mark.xdist_group("pretended_cuda"),
]


class Ceiling(NamedTuple):
    """Waits of a phase, and those of each forward pass."""

    once: int
    each_pass: int = 0


CEILINGS = {
    # Reading the width that data-parallel ranks agree on, lengths, and results. In each pass transformers reads whether
    # the mask is all true; a loss reads its metrics.
    "logprobs from the data plane": Ceiling(3, 1),
    "training from the data plane": Ceiling(5, 2),
    "put from the device": Ceiling(1),
    "loader": Ceiling(0),
    "jagged loader": Ceiling(0),
    "packed logprobs": Ceiling(1, 1),
    "reference logprobs": Ceiling(3, 1),
    "packed top-k": Ceiling(2, 1),
    "packed training": Ceiling(3, 2),
    "offload": Ceiling(4),
    "return": Ceiling(4),
}
ON_TWO_RANKS = {"packed training on two ranks": Ceiling(5, 2)}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return played("alone", tmp_path_factory)


@pytest.fixture(scope="module")
def seen_on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return played("between_ranks", tmp_path_factory)


def played(which: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process saw that played the phases of a rank alone, or of two ranks."""
    folder = tmp_path_factory.mktemp("pretended")
    (folder / "model").mkdir()
    command = [sys.executable, "-m", "tests.pretended_cuda.phases", str(folder), which]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    return found


@pytest.mark.parametrize("phase", CEILINGS)
def test_the_host_waits_for_the_device_no_oftener_than_the_phase_allows(seen: dict[str, Any], phase: str) -> None:
    check_waits(seen, phase, CEILINGS[phase])


@pytest.mark.long
@pytest.mark.parametrize("phase", ON_TWO_RANKS)
def test_the_host_waits_no_oftener_between_ranks(seen_on_two_ranks: dict[str, Any], phase: str) -> None:
    assert seen_on_two_ranks["phases"].keys() == ON_TWO_RANKS.keys()
    check_waits(seen_on_two_ranks, phase, ON_TWO_RANKS[phase])


def check_waits(seen: dict[str, Any], phase: str, ceiling: Ceiling) -> None:
    found = seen["phases"][phase]
    waits, allowed = found["waits"], ceiling.once + ceiling.each_pass * found["passes"]
    listed = "\n".join(f"{count} x {what}" for what, count in sorted(waits.items(), key=lambda item: -item[1]))
    assert sum(waits.values()) <= allowed, (
        f"{phase}: {found['passes']} forward passes may wait {allowed} times\n{listed}"
    )


def test_no_phase_is_without_a_ceiling(seen: dict[str, Any]) -> None:
    assert seen["phases"].keys() == CEILINGS.keys()


def test_log_probabilities_are_those_of_a_plain_model(seen: dict[str, Any]) -> None:
    facts = seen["facts"]
    plain = torch.tensor(facts["plain logprobs"])
    written, packed = torch.tensor(facts["written back"]), torch.tensor(facts["reference logprobs"])
    assert (written - plain[:, : written.shape[1]]).abs().max() < 1e-4
    assert (packed - plain).abs().max() < 0.3  # bfloat16


def test_columns_on_the_device_are_stored_as_they_are(seen: dict[str, Any]) -> None:
    assert all(seen["facts"]["put from the device"])


def test_weights_and_optimizer_leave_the_device_and_come_back(seen: dict[str, Any]) -> None:
    assert (seen["facts"]["offloaded"], seen["facts"]["returned"]) == (["cpu"], ["cuda"])


@pytest.mark.long
def test_weights_of_unequal_shards_come_back(seen_on_two_ranks: dict[str, Any]) -> None:
    assert seen_on_two_ranks["facts"]["weights came back"], "FSDP pads them on the host: copies must have arrived"


@pytest.mark.long
def test_two_ranks_have_the_loss_of_one(seen: dict[str, Any], seen_on_two_ranks: dict[str, Any]) -> None:
    loss = seen_on_two_ranks["facts"]["loss on two ranks"]
    assert loss == pytest.approx(seen["facts"]["packed loss"], rel=0.02)  # bfloat16


def test_a_loader_delivers_tensors_on_the_device_by_a_stream_of_its_own(seen: dict[str, Any]) -> None:
    assert seen["facts"]["loaded on"] == ["cuda"]
    assert 0 not in seen["phases"]["loader"]["streams"], "the training loop's work is queued on the default stream"


@pytest.mark.parametrize(("phase", "batches"), [("loader", 2), ("jagged loader", 1)])
def test_all_ragged_fields_of_a_batch_cross_the_bus_in_one_copy(seen: dict[str, Any], phase: str, batches: int) -> None:
    assert seen["phases"][phase]["copies"] == batches


def test_memory_of_a_loaders_batch_waits_for_the_training_loops_stream(seen: dict[str, Any]) -> None:
    assert seen["facts"]["recorded"] == [True, True]


def test_the_group_of_all_ranks_is_bound_to_the_ranks_gpu(seen: dict[str, Any]) -> None:
    assert seen["facts"]["group"] == {"backend": "nccl", "device_id": "cuda:0"}


def test_engines_find_weights_in_a_folder_of_the_trainers_user(seen: dict[str, Any]) -> None:
    folder, name = seen["facts"]["endpoint"].removeprefix("ipc://").rsplit("/", 1)
    assert name == "GPU-pretended.sock"
    assert (Path(folder).stat().st_uid, Path(folder).stat().st_mode & 0o777) == (os.getuid(), 0o700)
