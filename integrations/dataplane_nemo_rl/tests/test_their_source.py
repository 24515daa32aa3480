"""NeMo-RL's own code, from a source tree that NEMO_RL_SOURCE names: its configuration and its adapter on our module,
its factory with ours in it, and its Ray.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

Run = Callable[..., str]

SOURCE = os.environ.get("NEMO_RL_SOURCE")
ROOT = Path(__file__).parents[3]
MODULE = ROOT / "deploy" / "transfer_queue"
PAGE = (ROOT / "docs" / "adopting" / "nemo-rl.md").read_text()
BEFORE, OURS = (block.partition("```")[0] for block in PAGE.split("```yaml\n")[1:])

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(SOURCE is None, reason="NEMO_RL_SOURCE names no source tree of NeMo-RL"),
]

CONFIGURATION = """
        import sys
        from omegaconf import OmegaConf

        example, before = sys.argv[1:]
        merged = OmegaConf.merge(OmegaConf.load(example), OmegaConf.create(before))
        config = OmegaConf.to_container(merged.data_plane)
"""


@pytest.fixture
def beside(run: Run, address: str) -> Run:
    """Run code beside their package."""
    return functools.partial(run, path=[SOURCE, MODULE], DATAPLANE_SERVER=address)


@pytest.fixture
def configured(beside: Run) -> Run:
    """Run code with `config`: what their example's configuration has of the data plane, with the page's lines."""
    example = str(Path(str(SOURCE)) / "examples" / "configs" / "grpo_math_1B.yaml")
    return lambda code, **variables: beside(dedent(CONFIGURATION) + dedent(code), example, BEFORE, **variables)


def test_their_master_config_takes_the_lines_of_the_page(configured: Run) -> None:
    code = """
        import typing
        import typing_extensions

        if sys.version_info < (3, 12):  # pydantic takes no other there; NeMo-RL is for 3.13
            typing.TypedDict = typing_extensions.TypedDict
        from nemo_rl.algorithms.grpo import MasterConfig
        from nemo_rl.utils.config import load_config, register_omegaconf_resolvers

        register_omegaconf_resolvers()
        master = OmegaConf.merge(load_config(example), OmegaConf.create(before))
        taken = MasterConfig(**OmegaConf.to_container(master, resolve=True)).data_plane
        assert taken == config and taken["enabled"] and taken["impl"] == "transfer_queue", taken
    """
    configured(code)


def test_their_adapter_runs_on_our_module_with_their_configuration(configured: Run) -> None:
    code = """
        import torch
        from tensordict import TensorDict
        from nemo_rl.data_plane import build_data_plane_client
        from nemo_rl.data_plane.adapters import transfer_queue as adapter

        adapter._resolve_tq_pin = lambda: "TransferQueue"  # NeMo-RL itself is not installed
        client = build_data_plane_client(config, bootstrap=True)
        for _ in range(2):  # each registration puts float32 into every field and clears it
            client.register_partition("train", ["input_ids", "whole"], 2, ["train"])
            ids = torch.nested.nested_tensor([torch.arange(3), torch.arange(5)], layout=torch.jagged)
            fields = TensorDict({"input_ids": ids, "whole": torch.tensor([True, False])}, [2])
            client.put_samples(["a", "b"], "train", fields, tags=[{"input_lengths": 3}, {"input_lengths": 5}])
            meta = client.claim_meta("train", "train", ["input_ids", "whole"], 2, dp_rank=0)
            assert (meta.sample_ids, meta.sequence_lengths) == (["a", "b"], [3, 5])
            assert client.get_data(meta)["whole"].tolist() == [True, False]
            assert client.check_consumption_status("train", ["train"])
            client.clear_samples(None, "train")
        client.close()
    """
    configured(code)


def test_the_adapter_is_theirs_and_so_are_metas(beside: Run) -> None:
    code = """
        import torch
        from tensordict import TensorDict
        from nemo_rl.data_plane.interfaces import DataPlaneClient, KVBatchMeta
        import dataplane_nemo_rl as ours

        adapter = ours.DataPlaneAdapter()
        assert isinstance(adapter, DataPlaneClient)
        adapter.register_partition("train", ["x"], 1, ["train"])
        put = adapter.put_samples(["a"], "train", TensorDict({"x": torch.ones(1)}, batch_size=[1]), [{"step": 1}])
        assert put == KVBatchMeta("train", None, ["a"], ["x"], tags=[{"step": 1}])
        claimed = adapter.claim_meta("train", "train", ["x"], 2, 0, timeout_s=0.01)
        assert claimed == KVBatchMeta("train", "train", ["a"], ["x"], extra_info={"dp_rank": 0}, tags=[{"step": 1}])
        assert {type(meta) for meta in (put, claimed, adapter.put_samples([], "train"))} == {ours.KVBatchMeta}
        assert ours.KVBatchMeta is KVBatchMeta
        assert adapter.get_data(KVBatchMeta("train", None, ["a"]).with_fields(["x"]))["x"].tolist() == [1.0]
        adapter.close()
    """
    beside(code)


def test_an_installed_factory_keeps_their_observability(beside: Run) -> None:
    code = """
        import sys
        from omegaconf import OmegaConf
        import dataplane_nemo_rl

        events = []
        dataplane_nemo_rl.install()
        ours = OmegaConf.to_container(OmegaConf.create(sys.argv[1]))["data_plane"]
        ours |= {"address": None, "observability": {"enabled": True, "callback": events.append}}
        from nemo_rl import data_plane  # its module has the factory that was installed

        client = data_plane.build_data_plane_client(ours)
        client.register_partition("train", ["x"], 1, ["train"])
        assert type(client).__name__ == "MetricsDataPlaneClient", client
        assert events, "no event"
        client.close()
    """
    beside(code, OURS)


@pytest.fixture
def ray_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray cluster of this test, so that theirs attaches to it and to no other one of the machine."""
    code = """
        import sys, tempfile
        import ray

        with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # sockets need a short path
            ray.init("local", num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, _temp_dir=folder)
            print(ray.get_runtime_context().gcs_address, flush=True)
            sys.stdin.read()
            ray.shutdown()
    """
    with subprocess.Popen(
        [sys.executable, "-c", dedent(code)],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as host:
        assert host.stdout is not None
        yield host.stdout.readline().strip()


def test_workers_of_their_ray_reach_the_server_that_the_driver_names(configured: Run, ray_address: str) -> None:
    code = """
        import ray
        import torch
        from nemo_rl.data_plane import build_data_plane_client
        from nemo_rl.data_plane.adapters import transfer_queue as adapter
        from nemo_rl.distributed.virtual_cluster import init_ray

        adapter._resolve_tq_pin = lambda: "TransferQueue"  # NeMo-RL itself is not installed
        init_ray()

        @ray.remote
        def work(config, row, install):
            from tensordict import TensorDict
            if install:
                import dataplane_nemo_rl
                dataplane_nemo_rl.install()
            from nemo_rl.data_plane import build_data_plane_client
            client = build_data_plane_client(config, bootstrap=False)
            client.put_samples([row], "train", TensorDict({"x": torch.ones(1)}, [1]))

        client = build_data_plane_client(config, bootstrap=True)
        client.register_partition("train", ["x"], 2, ["train"])
        ray.get(work.remote(config, "theirs", False))
        ray.get(work.remote({"enabled": True, "impl": "rl_dataplane"}, "ours", True))
        assert sorted(client.claim_meta("train", "train", ["x"], 2).sample_ids) == ["ours", "theirs"]
        client.close()
    """
    configured(code, RAY_ADDRESS=ray_address, RAY_AUTH_MODE="disabled")
