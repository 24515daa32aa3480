"""The command `dataplane`: what a server holds and why somebody waits, for people (tables) and programs (JSON).

The flags are in `_app`; each command has a module of its own, loaded when it runs.
"""

from dataplane_client.cli._start import main

__all__ = ["main"]
