"""What holds for every test: it draws the same in each run, and at its end the laws of the core, conservation among
them, hold in every server that runs then.

A server that a test stops is checked as it stops, by `ServerThread.stop`; cores without a server by `tests/core`, and
servers in processes of their own by the counters that they tell their clients (`tests/integration/command`).

Tests that start ranks are one group, `xdist_group("ranks")`: their processes keep all cores busy, so one worker runs
them one after the other, from the beginning, beside another whose tests wait for graces and deadlines half of the time.

A test that its timeout does not end, because it waits where no signal is heard or waits again as it is torn down, takes
its process with it half a minute later: every thread's stack is printed, xdist names the test and goes on with others.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=3000, deadline=None, database=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))  # nightly draws others, by a seed that it prints
if settings().derandomize:
    # Some examples are constants of the modules that were imported so far, which depends on what ran before in the same
    # worker. There is no setting for that.
    _none = Constants()
    providers._get_local_constants = lambda: _none

gc.disable()  # until everything is imported, a quarter of a second's work at a time would find nothing to free

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads would spin on cores that other tests need
for _wait in ("gcs_server_port_wait_time_s", "raylet_start_wait_time_s", "worker_register_timeout_seconds"):
    os.environ.setdefault(f"RAY_{_wait}", "300")  # Ray gives its processes 30 s to start, which a busy machine needs

_LAST_WORDS = pytest.StashKey[int]()
_GRACE_S = 30.0


def pytest_configure(config: pytest.Config) -> None:
    """Keep the stream of errors as it is before tests are captured."""
    config.stash[_LAST_WORDS] = os.dup(2)


@pytest.hookimpl(wrapper=True, optionalhook=True)  # the core is tested without the plugin
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Iterator[None]:
    """Where a test has a timeout, there is one for its process."""
    faulthandler.dump_traceback_later(settings.timeout + _GRACE_S, exit=True, file=item.config.stash[_LAST_WORDS])
    return (yield)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> Iterator[None]:
    """The test has ended."""
    faulthandler.cancel_dump_traceback_later()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first."""
    items.sort(key=lambda item: not any("ranks" in mark.args for mark in item.iter_markers("xdist_group")))


def pytest_collection_finish() -> None:
    """Modules and tests are no garbage: no collection looks at them again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def three_nodes() -> Iterator[Any]:
    """A cluster, `tests.cluster.three_nodes.ThreeNodes`. Tests that use it belong into the xdist group "ray"."""
    from tests.cluster.three_nodes import three_nodes  # not imported above: the core is tested without Ray

    with three_nodes() as running:
        yield running


@pytest.fixture(autouse=True)
def the_same_draws() -> None:
    """Random numbers of the global generators are the same in each run, whatever tests ran before."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` takes a thousand times as long without a GPU
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def laws_hold() -> Iterator[None]:
    """Check every server of this process when the test is over."""
    yield
    testing = sys.modules.get("dataplane_server.testing")  # not imported here: the core is tested without gRPC
    if testing is not None:
        testing.check_running_servers()
