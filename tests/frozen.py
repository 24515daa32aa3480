"""Imported last by a process that others are forked from: what was imported before is no garbage, and stays shared."""

from __future__ import annotations

import gc

gc.freeze()
