"""How the command begins and ends. Half of the time that a short one takes is not its own, but Python's."""

from __future__ import annotations

import gc


def main() -> None:
    """Run the command that the arguments name; ends with SystemExit."""
    gc.disable()  # a command is over before its garbage could matter; `top`, which is not, enables it
    try:
        from dataplane_client.cli._app import app

        app()
    finally:
        gc.freeze()  # or Python looks through all that was loaded once more
