"""How a server with a data directory gets its life: at once, or, as a standby, when the server before has ended."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path

from dataplane_server.access.opening import open_rules, open_tls
from dataplane_server.config import ServerConfig
from dataplane_server.durability.life import DataDirDurability, Life, Terms, begin_life
from dataplane_server.durability.standby import take_over
from dataplane_server.log import get_log
from dataplane_server.storage.arena import Arena

_LOG_FAILED = 74
"""Exit status of a process that could not write its log."""


async def next_life(config: ServerConfig, stopping: threading.Event, arena: Arena | None = None) -> Life | None:
    """The life of a server with this configuration; None if it has no data directory, or if `stopping` is set before it
    began. arena: for one whose values are not in the directory. Errors as `begin_life`.
    """
    if config.data_dir is None:
        return None
    terms = replace(_terms(config, config.data_dir), arena=arena)
    if config.standby:
        folder = str(terms.folder)
        life = await asyncio.to_thread(take_over, terms, stopping, lambda: get_log().info("standing_by", folder=folder))
    else:
        life = await asyncio.to_thread(begin_life, terms)
    if life is not None:
        _report(life)
    return life


def life_now(config: ServerConfig) -> Life | None:
    """As next_life, in this thread."""
    life = None if config.data_dir is None else begin_life(_terms(config, config.data_dir))
    if life is not None:
        _report(life)
    return life


def _terms(config: ServerConfig, folder: Path) -> Terms:
    """Raises OSError that says what is wrong with the files of TLS and access, before a life begins or is awaited."""
    open_tls(config), open_rules(config)
    kind: DataDirDurability = "disk" if config.durability == "disk" else "process"
    return Terms(folder, config.limits, config.share_memory, kind, _log_failed, config.accept_loss)


def _report(life: Life) -> None:
    log, found = get_log(), life.recovery
    if found is not None:
        log.info(
            "recovered",
            folder=str(life.folder),
            rows=found.rows,
            calls=found.calls,
            torn_bytes=found.torn_bytes,
            seconds=found.seconds,
            held=found.held,
            damaged=found.damaged,
        )
        for why in found.warnings:
            log.warning("damage_in_directory", folder=str(life.folder), why=why)
        if found.torn_bytes:
            log.warning("torn_record_cut_off", folder=str(life.folder), bytes=found.torn_bytes)
    if not life.arena.guarded:
        log.warning("arena_not_guarded", why="no Landlock in this kernel: a client can cut the arena short")


def _log_failed(error: Exception) -> None:
    """End the process: a call has changed the core and is not in the log. The next life does not know of it."""
    get_log().error("log_failed", why=str(error))
    os._exit(_LOG_FAILED)
