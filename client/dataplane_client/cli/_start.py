"""Start and end of the command, made fast.

Half of the time of a short command is spent in loading Python's and other libraries, of which it uses a part.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Iterable
from types import ModuleType

from dataplane_client.cli._interrupts import end_at_interrupts

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
    end_at_interrupts()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    elif sys.stdout is None:  # closed before the start
        sys.stdout = io.StringIO()
    os._exit(_exit_code())  # skips Python's slow finalization


def _exit_code() -> int:
    """Run the command, which ends with SystemExit, and write all its output."""
    try:
        try:
            from dataplane_client.cli._app import app

            app()
        except SystemExit as end:
            sys.stdout.flush()
            return int(end.code or 0)
    except BrokenPipeError:
        return 1  # who reads the output, such as head(1), has seen enough: no error to report
    except UnicodeEncodeError as error:
        message, code = f"{error.object!r} is not UTF-8", 2
    except OSError as error:
        message, code = f"{error.filename or 'stdout'}: {error.strerror}", 1
    from dataplane_client.cli._text import printable

    print(f"dataplane: {printable(message)}", file=sys.stderr)  # noqa: T201  # an error
    return code


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
