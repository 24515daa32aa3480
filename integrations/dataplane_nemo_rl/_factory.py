"""Our implementation in NeMo-RL's factory, whose set of implementations is closed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dataplane_nemo_rl._adapter import DataPlaneAdapter

IMPL = "rl_dataplane"

_NAME = "build_data_plane_client"


def build_data_plane_client(cfg: Mapping[str, Any], *, bootstrap: bool = True, **_: Any) -> DataPlaneAdapter:
    """The adapter that a configuration describes; the keys are those of this package's docstring. Opens nothing.

    bootstrap, and whatever else their factory takes, has no effect: the server runs by itself. Raises ValueError
    without an address, and TypeError or ValueError for settings that `connect` does not take.
    """
    settings = {key: cfg[key] for key in ("coroutines", "tokens_field") if key in cfg}
    return DataPlaneAdapter(cfg.get("address"), **settings, **(cfg.get("connect") or {}))


@dataclass(frozen=True)
class _Factory:
    """Their factory, with one implementation more."""

    theirs: Callable[..., Any]

    def __call__(self, cfg: Mapping[str, Any] | None, *, bootstrap: bool = True, **more: Any) -> Any:
        if cfg is not None and cfg.get("impl") == IMPL and cfg.get("enabled", True):
            return _observed(build_data_plane_client(cfg, bootstrap=bootstrap), cfg.get("observability") or {})
        return self.theirs(cfg, bootstrap=bootstrap, **more)


def _observed(client: DataPlaneAdapter, settings: Mapping[str, Any]) -> Any:
    """The client in their wrapper that records each operation, if it is switched on, as their factory does it."""
    if not settings.get("enabled"):
        return client
    theirs = importlib.import_module("nemo_rl.data_plane.observability")
    return theirs.MetricsDataPlaneClient(client, on_event=settings.get("callback") or theirs.log_event)


def install() -> None:
    """Make NeMo-RL's `build_data_plane_client` give our adapter where `cfg["impl"]` is "rl_dataplane"; everything else,
    also a configuration that is not enabled, goes to theirs.

    Replaces it in every module of NeMo-RL, and of the script, that has imported it already. Calling it again changes
    nothing. Raises ModuleNotFoundError without NeMo-RL.
    """
    theirs = getattr(importlib.import_module("nemo_rl.data_plane"), _NAME)
    if isinstance(theirs, _Factory):
        return
    ours = _Factory(theirs)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("nemo_rl", "__main__") and vars(module).get(_NAME) is theirs:
            setattr(module, _NAME, ours)
