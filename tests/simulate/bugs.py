"""Bugs that the simulation must find: each is a text of a module of the server, and what stands there instead.

A text that is not there exactly once is an error: the server has changed, and so must the bug.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import NamedTuple


class Bug(NamedTuple):
    """module: below `dataplane_server`. seeds: of these, from 0 on, one at least finds it."""

    seeds: int
    module: str
    right: str
    wrong: str


BUGS = {
    "answers leave before the sync": Bug(
        3, "durability.group_commit", "            return self._awaited\n", "            return None\n"
    ),
    "the log is not synced": Bug(3, "durability.group_commit", "            self._log.sync()\n", ""),
    "values are not synced before the log": Bug(9, "durability.group_commit", "            self._arena.sync()\n", ""),
    "frees are not deferred": Bug(9, "durability.life", "defer_frees=self.commits is not None", "defer_frees=False"),
    "frees of calls that are not stable are settled": Bug(
        400, "durability.group_commit", "self._settle(Settle(releases))", "self._settle(Settle(self._plane.releases))"
    ),
    "a torn record is not cut off": Bug(9, "durability.life", "    replica.reader.cut()\n", ""),
    "the cut is not synced": Bug(
        40, "durability.log_reader", "            os.fsync(file.fileno())  # were", "            # were"
    ),
    "a torn record counts": Bug(
        9, "durability.frames", "or len(payload) < size or _crc(size, payload) != crc", "or len(payload) < size"
    ),
    "reads are not logged before rows that they pin go": Bug(
        9, "durability.logged_plane", "if self._state.space.withheld != withheld:", "if False:"
    ),
    "later reads of pinned rows are not logged": Bug(
        200, "durability.logged_plane", "if self._logged or self._held:", "if False:"
    ),
    "refused calls are not logged": Bug(
        9,
        "durability.logged_plane",
        "        finally:\n            self._append_after(withheld, call, now)\n            if",
        "        except ZeroDivisionError:\n            self._append_after(withheld, call, now)\n            if",
    ),
    "what was under way goes on": Bug(3, "core.turn", "        self._verbs.queue.fail_all(server_ended())\n", ""),
    "sessions get no time to come back": Bug(3, "core.turn", "renew(now + call.reconnect_s)", "renew(now)"),
    "clients of the former server are not waited for": Bug(
        9, "core.turn", "self._verbs.reads.recover(held=call.held)", "self._verbs.reads.recover(held=False)"
    ),
    "request ids are forgotten at a checkpoint": Bug(
        9,
        "durability.checkpoint",
        "plane.parts = tuple(map(parts.__getitem__, _PARTS))",
        'parts["answers"] = type(parts["answers"])(parts["state"].limits)\n'
        "            plane.parts = tuple(map(parts.__getitem__, _PARTS))",
    ),
    "a checkpoint is ahead of the log": Bug(
        600, "durability.replica", "            self.reader.sync()\n", "            pass\n"
    ),
    "a checkpoint gets its name before its content": Bug(
        40, "durability.checkpoint", "            os.fsync(file.fileno())\n", ""
    ),
    "segments are removed before the checkpoint has its name": Bug(
        40, "durability.checkpoint", "    sync_folder(path.parent)\n", ""
    ),
    "one segment too many is removed": Bug(
        9, "durability.log_reader", "if after <= record]", "if after <= record + 8]"
    ),
    "a new segment may vanish": Bug(
        9, "durability.log_writer", "            sync_folder(folder)\n", "            pass\n"
    ),
    "the log goes on one record later": Bug(
        3,
        "durability.life",
        "_new_log(terms, replica.reader.next_record,",
        "_new_log(terms, replica.reader.next_record + 1,",
    ),
    "two lives have one number": Bug(3, "durability.life", "lives + 1", "lives"),
    "a mark is ahead of the log": Bug(
        40,
        "durability.log_writer",
        "            os.fdatasync(self._file)\n            if self._marks is not None:\n"
        "                self._marks.acknowledge(self._position)\n",
        "            if self._marks is not None:\n                self._marks.acknowledge(self._position)\n"
        "            os.fdatasync(self._file)\n",
    ),
    "time begins anew": Bug(3, "durability.life", "replica.at - time.monotonic()", "0.0"),
    "a standby does not read to the end": Bug(
        40,
        "durability.life",
        "        replica.catch_up()\n        torn",
        "        _ = terms if replica.calls else replica.catch_up()\n        torn",
    ),
    "a failed sync is not the end": Bug(
        40,
        "durability.group_commit",
        "            self._failed(error)\n            raise\n",
        "            pass\n",
    ),
}


class _WithBug(SourceFileLoader):
    def __init__(self, spec: ModuleSpec, bug: Bug) -> None:
        assert spec.origin is not None
        super().__init__(spec.name, spec.origin)
        self._bug = bug

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        found = source.count(self._bug.right)
        if found != 1:
            raise AssertionError(f"{self.path} has {found} times what the bug replaces: {self._bug.right!r}")
        return compile(source.replace(self._bug.right, self._bug.wrong), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, bug: Bug) -> None:
        self._bug = bug

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != f"dataplane_server.{self._bug.module}":
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        spec.loader = _WithBug(spec, self._bug)
        return spec


def introduce(bug: Bug) -> None:
    """Have the bug in this process, from the import of its module on."""
    assert not any(name.startswith("dataplane_server.") for name in sys.modules), "the server was imported before"
    sys.meta_path.insert(0, _Finder(bug))
