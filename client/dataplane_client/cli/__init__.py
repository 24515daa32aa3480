"""The command `dataplane`: shows what a server holds and why calls wait, as tables for people or JSON for programs.

`_app` defines the commands and their flags. Each command has a module, which is loaded when it runs.
"""

from dataplane_client.cli._start import main

__all__ = ["main"]
