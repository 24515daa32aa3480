"""`python -m dataplane_server.durability.verify FOLDER`: what the command `dataplane verify` runs, in a process of its
own, since the client's package does not load the server's.

Exits with 1 if the folder is no snapshot of this version, or differs from its checksums.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from dataplane_server.durability.snapshot import SnapshotError, read_manifest, verify_snapshot


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    folder, screen = Path(sys.argv[1]), Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    try:
        with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
            task = bar.add_task("", total=read_manifest(folder).values_bytes)
            manifest = verify_snapshot(folder, partial(bar.advance, task))
    except (OSError, SnapshotError) as error:
        sys.exit(f"dataplane: {error}")
    rows = f"rows {sum(manifest.rows.values()):,}, bytes of values {manifest.values_bytes:,}"
    text = f"snapshot {manifest.name} is as it was written: {rows}"
    print(text)  # noqa: T201  # what a command says


if __name__ == "__main__":
    main()
