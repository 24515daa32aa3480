"""The commands that move values, with their flags; as `_app`, which adds them to `dataplane`, it imports only typer."""

from typing import Annotated

import typer

from dataplane_client._connect.options import TransportChoice
from dataplane_client.cli._options import (
    TIMEOUT_S,
    Address,
    Fields,
    FileFormat,
    Output,
    Partition,
    Timeout,
    Where,
    seconds_flag,
)

_FileFormat = Annotated[
    FileFormat | None,
    typer.Option("--format", help="Of the file (default: parquet if it ends in .parquet, else jsonl)."),
]


def peek(
    partition: Partition,
    sample_ids: Annotated[list[str] | None, typer.Argument(metavar="[SAMPLE]...")] = None,
    where: Where = None,
    fields: Fields = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Most rows to show.")] = 5,
    decode: Annotated[
        str | None,
        typer.Option("--decode", metavar="DIR", help="Also show token ids as text, by DIR/tokenizer.json."),
    ] = None,
    server: Address = "",
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Show rows with their values, shortened."""
    if sample_ids and where is not None:
        raise typer.BadParameter("name samples, or choose them by --where, not both")
    from dataplane_client.cli import _values as values

    chosen = values.Chosen(partition, sample_ids or [], where, fields or [], limit)
    values.peek(chosen, decode, server, output, timeout)


def tail(
    partition: Partition,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    where: Where = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, metavar="N", help="Rows to begin with.")] = 10,
    server: Address = "",
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Show the rows that arrived last; with -f, also those to come."""
    from dataplane_client.cli._tail import tail as show_last

    show_last(partition, where, limit, server, output, timeout, follow=follow)


def export(
    partition: Partition,
    path: Annotated[str, typer.Argument(metavar="FILE")],
    where: Where = None,
    fields: Fields = None,
    file_format: _FileFormat = None,
    server: Address = "",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Write rows with their values to a file.

    A file of JSON Lines, or of Parquet, which needs the extra rl-dataplane[parquet]. FILE may be "-" for JSON Lines on
    stdout. Values have their types beside them, and rows their groups; rows of reserved groups are left out. Rows stay
    in the server, and may change meanwhile: a row is as it is when its turn comes.
    """
    from dataplane_client.cli import _values as values

    chosen = values.Chosen(partition, where=where, fields=fields or [], finished=True)
    values.export(chosen, path, file_format, server, timeout)


def import_(
    partition: Partition,
    path: Annotated[str, typer.Argument(metavar="FILE")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Clear rows and groups of the same names before, instead of an error.")
    ] = False,
    file_format: _FileFormat = None,
    server: Address = "",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Put the rows of a file that export has written.

    FILE may be "-" for JSON Lines on stdin. The partition must be registered. Pages of 256 rows are put one after the
    other, so an error leaves those before it. Claims see a group when the file has given all of its rows, or ends.
    """
    from dataplane_client.cli import _values as values

    values.import_rows(partition, path, file_format, server, timeout, replace=replace)


def bench(
    rows: Annotated[int, typer.Option("--rows", min=1, metavar="N", help="Rows of a batch.")] = 256,
    tokens: Annotated[int, typer.Option("--tokens", min=1, metavar="N", help="Tokens of a row.")] = 4096,
    clients: Annotated[int, typer.Option("--clients", min=1, max=64, metavar="N", help="Threads that call.")] = 1,
    seconds: Annotated[
        float, seconds_flag("--seconds", least=0.1, most=600.0, text="Time for each kind of call.")
    ] = 2.0,
    transport: Annotated[TransportChoice, typer.Option("--transport", help="How values travel.")] = "auto",
    server: Address = "",
    output: Output = "table",
    timeout: Timeout = 60.0,
) -> None:
    """Measure how fast the server serves clients from here.

    Puts, reads, claims whose commit writes one column back, and small calls, beside copies in this machine's memory. A
    token has 12 bytes, and 4 in the column. The rows are in a partition that is removed in the end. The server should
    have nothing else to do. Refused if the rows need more than half of its free memory.
    """
    from dataplane_client.cli import _bench

    _bench.bench(_bench.Load(rows, tokens, clients, seconds), transport, server, output, timeout)
