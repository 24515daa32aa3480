"""Import this last in a process that forks: garbage collection then skips its modules, and their pages stay shared."""

from __future__ import annotations

import gc

gc.freeze()
