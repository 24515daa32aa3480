"""NeMo-RL's own code, from a source tree that NEMO_RL_SOURCE names: its TransferQueue adapter on our module, and its
factory with ours in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCE = os.environ.get("NEMO_RL_SOURCE")
MODULE = Path(__file__).parents[3] / "deploy" / "transfer_queue"

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(SOURCE is None, reason="NEMO_RL_SOURCE names no source tree of NeMo-RL"),
]

CONFIGURATION = """
        from nemo_rl.data_plane import build_data_plane_client
        from nemo_rl.data_plane.interfaces import DataPlaneConfig

        page = {
            "enabled": True, "impl": "transfer_queue", "backend": "simple", "storage_capacity": 100,
            "num_storage_units": 1, "claim_meta_poll_interval_s": 0.01, "global_segment_size": 0,
            "local_buffer_size": 0,
        }
        assert page.keys() <= DataPlaneConfig.__annotations__.keys()  # nothing of ours
"""


def run(code: str, address: str, folder: Path) -> None:
    """Run code beside their data plane, without the rest of NeMo-RL, whose import needs all that it trains with."""
    (folder / "nemo_rl").mkdir()
    (folder / "nemo_rl" / "data_plane").symlink_to(Path(str(SOURCE)) / "nemo_rl" / "data_plane")
    path = os.pathsep.join([str(folder), str(MODULE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "DATAPLANE_SERVER": address, "PYTHONPATH": path}
    command = [sys.executable, "-c", textwrap.dedent(CONFIGURATION) + textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_their_adapter_runs_on_our_module_with_their_configuration(address: str, tmp_path: Path) -> None:
    code = """
        import torch
        from tensordict import TensorDict
        from nemo_rl.data_plane.adapters import transfer_queue as adapter

        adapter._resolve_tq_pin = lambda: "TransferQueue"  # NeMo-RL itself is not installed
        client = build_data_plane_client(page, bootstrap=True)
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
    run(code, address, tmp_path)


def test_an_installed_factory_keeps_their_observability(address: str, tmp_path: Path) -> None:
    code = """
        import dataplane_nemo_rl

        events = []
        dataplane_nemo_rl.install()
        ours = {**page, "impl": "rl_dataplane", "observability": {"enabled": True, "callback": events.append}}
        from nemo_rl import data_plane  # its module has the factory that was installed

        client = data_plane.build_data_plane_client(ours)
        client.register_partition("train", ["x"], 1, ["train"])
        assert type(client).__name__ == "MetricsDataPlaneClient", client
        assert events, "no event"
        client.close()
    """
    run(code, address, tmp_path)
