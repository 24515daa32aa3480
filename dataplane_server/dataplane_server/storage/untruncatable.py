"""Descriptors that cannot truncate their file, in this process and in those that receive them.

The kernel decides whether a descriptor may truncate when it opens the file. So a thread that lives only for this takes
the right from itself by Landlock (Linux 6.2) and opens the file; no other thread is restricted. `ftruncate` then fails
with EACCES, whether it would shrink or grow the file.

What is left to a process with such a descriptor, if its access is O_RDWR:

- It can free pages inside the file (fallocate with PUNCH_HOLE, madvise with MADV_REMOVE). They then hold zeros. The
  next access to them needs new space, and ends its process by SIGBUS if the file system is full.
- It can remove or insert a range (fallocate with COLLAPSE_RANGE or INSERT_RANGE) where the file system has that: ext4
  and XFS do, tmpfs does not. Removal makes the file shorter.
- It can grow the file (fallocate, or a write behind the end).

And whatever the access of the descriptor: a process that may open the file by its permissions, which is one of the
same user or root, can open it anew (by its path or by /proc/self/fd), and truncate it then.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")

_SET_NO_NEW_PRIVILEGES = 38
_CREATE_RULESET = 444
_RESTRICT_SELF = 446
_TRUNCATE = 1 << 14
_LIBRARY = ctypes.CDLL(None)


def can_guard() -> bool:
    """Whether this system takes the right to truncate from descriptors."""
    return _in_new_thread(_restrict)


def open_untruncatable(path: str, access: int) -> int:
    """A descriptor that cannot truncate the file if `can_guard`, else an ordinary one. access: O_RDONLY or O_RDWR."""

    def restricted() -> int:
        _restrict()
        return os.open(path, access | os.O_CLOEXEC)

    return _in_new_thread(restricted)


def _in_new_thread(work: Callable[[], A]) -> A:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def _restrict() -> bool:
    """Take the right to truncate from what this thread opens from now on. False if the system cannot."""
    rights = ctypes.c_uint64(_TRUNCATE)
    ruleset = _system_call(_CREATE_RULESET, ctypes.addressof(rights), ctypes.sizeof(rights), 0)
    if ruleset < 0:
        return False
    try:
        allowed = _LIBRARY.prctl(_SET_NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0
        return allowed and _system_call(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _system_call(*numbers: int) -> int:
    return int(_LIBRARY.syscall(*map(ctypes.c_long, numbers)))
