"""The distribution that gives the module TransferQueue's name."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import commands

import dataplane_transfer_queue as ours

FOLDER = Path(__file__).parents[3] / "deploy" / "transfer_queue"

SCRIPT = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import transfer_queue as tq
import dataplane_transfer_queue as ours
assert all(getattr(tq, name) is getattr(ours, name) for name in ours.__all__)
from transfer_queue import *
print(tq.__version__, kv_put.__module__, sorted(set(ours.__all__) - set(tq.__all__)))
"""


def test_the_module_has_everything_of_ours_under_their_name() -> None:
    ended = commands.run([sys.executable, "-c", SCRIPT])
    assert ended.stdout.split() == [ours.__version__, "dataplane_transfer_queue._kv", "[]"]
