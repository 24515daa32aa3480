"""The distribution that gives the module TransferQueue's name."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import yaml
from tests import commands

import dataplane_transfer_queue as ours

FOLDER = Path(__file__).parents[3] / "deploy" / "transfer_queue"

SCRIPT = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import transfer_queue as tq
import dataplane_transfer_queue as ours
assert all(getattr(tq, name) is getattr(ours, name) for name in ours.__all__)
from importlib import resources
from transfer_queue import *
from transfer_queue.client import TransferQueueClient as client
from transfer_queue.metadata import BatchMeta as meta
from transfer_queue.dataloader import StreamingDataset
from transfer_queue.sampler import GRPOGroupNSampler
from transfer_queue.storage import StorageKeyNotFoundError as error
assert (client, meta, error) == (tq.TransferQueueClient, tq.BatchMeta, tq.StorageKeyNotFoundError)
assert (resources.files("transfer_queue") / "config.yaml").is_file()
print(tq.__version__, kv_put.__module__, sorted(set(ours.__all__) - set(tq.__all__)))
"""


def test_the_module_has_everything_of_ours_under_their_name() -> None:
    ended = commands.run([sys.executable, "-c", SCRIPT])
    assert ended.stdout.split() == [ours.__version__, "dataplane_transfer_queue._kv", "[]"]


def test_init_takes_its_default_configuration_and_logs_whose_server_it_uses(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    conf = yaml.safe_load((FOLDER / "transfer_queue" / "config.yaml").read_text())
    returned = ours.init(conf)
    assert returned is not None
    address = returned["backend"]["RLDataPlane"]["address"]
    assert f"transfer_queue_is_rl_dataplane address={address}" in caplog.text
    assert ours.kv_list() == {}
