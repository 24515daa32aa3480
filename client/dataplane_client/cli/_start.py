"""How the command begins and ends. Half of the time that a short one takes is not its own, but Python's and that of the
libraries that it needs a part of.
"""

from __future__ import annotations

import gc
import os
import sys

from dataplane_client.cli._unloaded import leave_unloaded

_UNUSED = (
    "asyncio",  # of grpc, which we call from this thread alone; with ssl a tenth of what `status` takes
    "grpc.aio",
    "socket",  # of grpc, too, whose sockets are those of its compiled part
    "google.protobuf.internal.python_message",  # of protobuf, for those who run it without its compiled part
    "calendar",
    "subprocess",  # of typer, to ask a shell for its version and the system for a browser
    "tokenize",  # of inspect and linecache, to read source code
    "ipaddress",  # of urllib, to judge addresses of web sites
)
"""What the libraries load at once, and most commands never use. What takes a hundredth of a start is worth a line."""


def main() -> None:
    """Run the command that the arguments name, and end the process."""
    gc.disable()  # a command is over before its garbage could matter; `top`, which is not, enables it
    leave_unloaded(_UNUSED)
    try:
        from dataplane_client.cli._app import app

        app()
    except SystemExit as end:
        if isinstance(end.code, int) and _is_all_written():
            os._exit(end.code)  # or Python takes apart all that was loaded, piece by piece
        raise


def _is_all_written() -> bool:
    """False where Python has to end the process in its own way, and say what became of the output."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # closed before we began
                stream.flush()
    except (OSError, ValueError):
        return False
    return True
