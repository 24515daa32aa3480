"""The processes of a Ray job find the server that the first of them uses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.test_ray_targets import cluster

import dataplane_transfer_queue as tq
from dataplane_transfer_queue import _job_address

__all__ = ["cluster"]

ray: Any = pytest.importorskip("ray")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.long]


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the driver of one, and waits for as long as a busy machine takes to start an actor."""
    monkeypatch.setattr(_job_address, "_ANSWER_S", 600.0)


@pytest.fixture(scope="module")
def worker(cluster: None) -> Any:
    """Another process of a job; this process is its driver."""

    class Worker:
        def attach(self) -> object:
            import dataplane_transfer_queue as tq

            conf = tq.init()
            tq.kv_put("of the worker", "p", tag={})
            endpoint = tq.get_metrics_endpoint()
            tq.close()
            return conf, endpoint

        def listed_without_init(self) -> object:
            import dataplane_transfer_queue as tq

            listed = tq.kv_list()
            tq.close()
            return listed

    return ray.remote(num_cpus=0)(Worker).remote()


def test_workers_attach_to_the_server_that_the_driver_started(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATAPLANE_SERVER", raising=False)
    tq.init({"metrics": {"enabled": True}})
    tq.kv_put("of the driver", "p", tag={})
    assert ray.get(worker.attach.remote()) == (None, tq.get_metrics_endpoint())
    both: dict[str, object] = {"p": {"of the driver": {}, "of the worker": {}}}
    assert ray.get(worker.listed_without_init.remote()) == both
    assert tq.kv_list() == both  # after the worker has closed
    tq.close()
    assert _job_address.find() is None


@pytest.mark.parametrize("way", ["shm"], indirect=True)
def test_workers_attach_to_the_server_that_the_driver_names(worker: Any, address: str) -> None:
    tq.init({"backend": {"RLDataPlane": {"address": address}}})
    assert ray.get(worker.attach.remote()) == (None, None)
    assert tq.kv_list() == {"p": {"of the worker": {}}}


@pytest.mark.parametrize("way", ["shm"], indirect=True)
def test_what_another_process_published_stays_and_is_not_used_where_it_cannot_be_reached(
    worker: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATAPLANE_SERVER", raising=False)
    other = {"address": "unix:///run/dataplane.sock", "host": "elsewhere", "polling": False}
    _, keeper = _job_address.publish(other)
    with pytest.raises(RuntimeError, match=r"serves the host elsewhere only.*backend\.RLDataPlane\.address"):
        tq.init()
    tq.init({"backend": {"RLDataPlane": {"address": address}}})
    assert tq.kv_list() == {}
    tq.close()
    assert _job_address.find() == other
    _job_address.withdraw(keeper)


def test_the_wait_for_an_actor_that_does_not_answer_ends(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeper:
        def server(self) -> None:
            import time

            time.sleep(3600)

    keeper = ray.remote(num_cpus=0)(Keeper).options(name="rl-dataplane-address").remote()
    monkeypatch.delenv("DATAPLANE_SERVER", raising=False)
    monkeypatch.setattr(_job_address, "_ANSWER_S", 0.5)
    with pytest.raises(RuntimeError, match=r"rl-dataplane-address.* did not answer in 0\.5 s; name the server by"):
        tq.init()
    ray.kill(keeper)
