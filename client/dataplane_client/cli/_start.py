"""Start and end of the command, made fast.

Half of the time of a short command is spent in loading Python's and other libraries, of which it uses a part.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from types import ModuleType

_UNUSED = (
    "asyncio",  # by grpc, for its asynchronous API; with ssl a tenth of the time of `status`
    "grpc.aio",
    "socket",  # by grpc, whose compiled part has sockets of its own
    "google.protobuf.internal.python_message",  # by protobuf, for use without its compiled part
    "calendar",
    "subprocess",  # by typer, to detect the shell and to open a browser
    "tokenize",  # by inspect and linecache, to read source code
    "ipaddress",  # by urllib, to parse web addresses
)
"""Modules that the libraries import and most commands never use. Each takes at least a hundredth of the start."""


def main() -> None:
    """Run the command that the arguments name, and end the process."""
    gc.disable()  # a command ends before its garbage matters; `top`, which runs on, enables it
    defer_imports(_UNUSED)
    try:
        from dataplane_client.cli._app import app

        app()
    except SystemExit as end:
        try:
            if isinstance(end.code, int) and _flush_output():
                os._exit(end.code)  # skips Python's slow finalization
        except BrokenPipeError:
            os._exit(1)  # who reads the output, such as head(1), has seen enough: no error to report
        raise


def _flush_output() -> bool:
    """Whether all output was written. If not, Python must end the process itself and report the error, except for a
    BrokenPipeError, which it raises.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None if it was closed before the start
                stream.flush()
    except BrokenPipeError:
        raise
    except (OSError, ValueError):
        return False
    return True


class _DeferredModule(ModuleType):
    """Takes a module's place in sys.modules. Loads the module when one of its attributes is used."""

    def __getattr__(self, name: str) -> object:
        from importlib import import_module

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def defer_imports(modules: Iterable[str]) -> None:
    """Load these modules at their first use instead of their import. Modules that are loaded already are not affected.

    Only for a process that is a command. importlib's LazyLoader does not serve: up to Python 3.11 it loads a module as
    soon as a second module imports it.
    """
    for name in modules:
        sys.modules.setdefault(name, _DeferredModule(name))
