"""The version of the distribution that this server came with."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("rl-dataplane")
