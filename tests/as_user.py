"""Functions in forked processes of another user. Only root can start them."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from tests.integration.sidecar.containers import Container

_SET_DUMPABLE = 4


@dataclass(frozen=True)
class User(Container):
    """A process of a user with one group and at most one supplementary group, and nothing else of a container."""

    def enter(self) -> None:
        os.setgroups([] if self.fs_group is None else [self.fs_group])
        os.setresgid(self.group, self.group, self.group)
        os.setresuid(self.user, self.user, self.user)
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # its /proc is its own, as after exec


def user(number: int, group: int | None = None, other_group: int | None = None) -> User:
    """A user whose group has the user's number unless it is given."""
    return User(Path("/"), number, number if group is None else group, other_group)
