"""The device of tests, and a Ray cluster of this machine, which takes 4 s to start."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest
import torch
from tests.rank_pool import RankPool

from trainer_adapter.automodel.rank import choose_device


@pytest.fixture(autouse=True)
def chosen_device(request: pytest.FixtureRequest) -> None:
    """Tests compute on the CPU on every machine, but for those that are marked for a GPU."""
    is_for_gpu = request.node.get_closest_marker("gpu") is not None and torch.cuda.is_available()
    choose_device(torch.device("cuda", 0) if is_for_gpu else torch.device("cpu"))


@pytest.fixture(scope="module")
def rank_pool() -> Iterator[RankPool]:
    """Ranks on the CPU, for the tests of a module. They belong into the xdist group "ranks".

    Ranks that serve every module gather more than a hundred threads that wake up every 10 ms, because torch's caches
    keep the process groups of former plays. Forking new ranks costs next to nothing.
    """
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """With room for eight workers on the CPU. Tests that use it belong into the xdist group "ray": one at a time."""
    ray = pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # sockets need a short path
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(
            num_cpus=8,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            object_store_memory=80 * 2**20,
            _temp_dir=folder,
            _system_config={"prestart_worker_first_driver": False},
        )
        yield
        ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
