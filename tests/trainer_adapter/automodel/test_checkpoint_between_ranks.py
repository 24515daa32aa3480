"""Two real ranks save beside training: what is saved, a rank that cannot write, and a kill while files are written. And
they load what one of them cannot read.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.rank_pool import RankPool
from tests.ranks import environment, free_port, run_ranks
from tests.trainer_adapter.automodel.setup_cases import parts_of, paths_in, scheduled, set_up, train_step

from trainer_adapter.automodel.checkpoint import CheckpointManager

pytestmark = pytest.mark.xdist_group("ranks")

BESIDE = {"is_async": True}


def losses_from(rank: int, folder: Path, saved: Path, tp: int = 1) -> list[float]:
    """Two further losses, from the checkpoint."""
    with set_up(scheduled(folder, tensor_parallel_size=tp), **paths_in(saved)) as state:
        return [train_step(state, rank * (2 // tp) // 2, 2 // tp)[0] for _ in range(2)]


def train_beside(rank: int, folder: Path, saved: Path) -> list[float]:
    """A save, and two further losses while it is written."""
    manager = CheckpointManager()
    with set_up(scheduled(folder)) as state:
        train_step(state, rank, 2)
        save(manager, state, saved)
        losses = [train_step(state, rank, 2)[0] for _ in range(2)]
        manager.close()
        return losses


def test_a_checkpoint_has_what_was_trained_when_it_was_asked_for(
    folder: Path, tmp_path: Path, rank_pool: RankPool
) -> None:
    first, _ = rank_pool.play(train_beside, folder, tmp_path)
    for tp in (1, 2):
        for losses in rank_pool.play(losses_from, folder, tmp_path, tp):
            assert losses == pytest.approx(first, rel=1e-6)


def fail_on_rank_1(rank: int, folder: Path, saved: Path) -> list[str]:
    """What is said of a save that one rank has no room for: when asked, and by the next save, which then works."""
    manager = CheckpointManager()
    said: list[str] = []
    with set_up(scheduled(folder)) as state:
        for asked in (manager.finish_checkpoint, lambda: save(manager, state, saved / "other")):
            most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000 if rank == 1 else most[0], most[1]))
            save(manager, state, saved / str(len(said)))
            with pytest.raises(RuntimeError) as refused:
                asked()
            said.append(str(refused.value))
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
        save(manager, state, saved / "other")
        manager.close()
    return said


def save(manager: CheckpointManager, state: Any, saved: Path) -> None:
    manager.save_checkpoint(**parts_of(state), **paths_in(saved), checkpointing_cfg=BESIDE)


def test_a_rank_that_cannot_write_fails_the_save_of_all_when_it_is_asked_for_and_at_the_next(
    folder: Path, tmp_path: Path, rank_pool: RankPool
) -> None:
    for said in rank_pool.play(fail_on_rank_1, folder, tmp_path):
        for number, text in enumerate(said):
            assert text.startswith(f"{tmp_path}/{number}/weights/model was not saved: CheckpointException")
            assert "File too large" in text
    assert not (tmp_path / "0" / "weights" / "model").exists()
    assert (tmp_path / "other" / "weights" / "model").exists()


READ = {
    "weights/model": "looking for weights",
    "optimizer/optim/numbers.msgpack": "reading the optimizer's numbers",
    "optimizer/optim/scheduler.msgpack": "reading the learning-rate schedule",
}
"""What a checkpoint may lack, and when that shows."""


def lack_on_rank_1(rank: int, folder: Path, saved: Path) -> list[str]:
    """What is said of loads of checkpoints that are whole for rank 0, as where ranks have file systems of their own."""
    manager, whole = CheckpointManager(), saved / "whole"
    said: list[str] = []
    with set_up(scheduled(folder)) as state:
        manager.save_checkpoint(**parts_of(state), **paths_in(whole), checkpointing_cfg={})
        for number, lacking in enumerate(READ):
            seen = whole if rank == 0 else Path(shutil.copytree(whole, saved / str(number)))
            if rank == 1:
                (seen / lacking).rename(seen / "elsewhere")
            with pytest.raises(RuntimeError if rank == 0 else FileNotFoundError) as refused:
                manager.load_checkpoint(**parts_of(state), **paths_in(seen))
            said.append(str(refused.value))
        manager.load_checkpoint(**parts_of(state), **paths_in(whole))
    return said


def test_files_that_one_rank_cannot_read_fail_the_load_of_all(
    folder: Path, tmp_path: Path, rank_pool: RankPool
) -> None:
    told, _ = rank_pool.play(lack_on_rank_1, folder, tmp_path)
    for text, what in zip(told, READ.values(), strict=True):
        assert text.startswith(f"another rank failed: {what}")


def die_while_saving(rank: int, port: int, folder: Path, saved: Path) -> None:
    """After one checkpoint and two further losses, as soon as the first file of the next one appears."""
    os.environ.update(environment(rank, 2, port))
    manager = CheckpointManager()
    with set_up(scheduled(folder)) as state:
        train_step(state, rank, 2)
        save(manager, state, saved / "former")
        manager.finish_checkpoint()
        losses = [train_step(state, rank, 2)[0] for _ in range(2)]
        if rank == 0:
            (saved / "losses.json").write_text(json.dumps(losses))
        threading.Thread(target=_die_at_first_file, args=(saved / "torn",), daemon=True).start()
        with contextlib.suppress(RuntimeError):  # the other rank may die first
            save(manager, state, saved / "torn")
            manager.close()
        signal.pause()


def _die_at_first_file(saved: Path) -> None:
    while not any(saved.glob("*/*.unfinished/*.safetensors")):
        time.sleep(0.0002)
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(rank: int, folder: Path, saved: Path) -> str:
    try:
        losses_from(rank, folder, saved)
    except (FileNotFoundError, RuntimeError) as error:
        return str(error)
    return "loaded"


def test_after_a_kill_while_files_are_written_training_goes_on_from_the_former_checkpoint_and_none_is_half(
    folder: Path, tmp_path: Path, rank_pool: RankPool
) -> None:
    port = free_port()
    run_ranks(die_while_saving, [(rank, port, folder, tmp_path) for rank in range(2)], exit_codes=[-9, -9])
    assert not (tmp_path / "torn" / "weights" / "model").exists()
    assert (tmp_path / "torn" / "weights" / "model.unfinished").exists()
    expected = json.loads((tmp_path / "losses.json").read_text())
    for tp in (1, 2):
        for losses in rank_pool.play(losses_from, folder, tmp_path / "former", tp):
            assert losses == pytest.approx(expected, rel=1e-6)
    for said in rank_pool.play(refuse, folder, tmp_path / "torn"):
        assert "contains no weights" in said
