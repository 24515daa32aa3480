"""Ctrl-C: it ends a command at once until the command says that it has something to tidy up.

Libraries that are being imported may lose a KeyboardInterrupt and go on, half loaded.
"""

from __future__ import annotations

import signal


def end_at_interrupts() -> None:
    """Let Ctrl-C end the process, unless it is ignored, as by the background jobs of a shell."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def catch_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from now on."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
