"""The commands and their flags.

A shell starts all this anew for every look at a server, so this module knows words alone. What a command needs (gRPC,
protobuf, rich, numpy) is loaded when it runs; torch never is. For the same reason help is plain text, and annotations
are not left as text: typer would read all of them at each start.
"""

from typing import Annotated

import typer

from dataplane_client.cli._options import SERVER, TIMEOUT_S, Address, Output, Partition, Task, Timeout

app = typer.Typer(name="dataplane", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dataplane {version('rl-dataplane')}")
        raise typer.Exit


@app.callback()
def _dataplane(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Look at a server of RL Data Plane: what it holds, what moves, who waits for whom.

    The server is the one that --server or the variable DATAPLANE_SERVER names.
    """


@app.command()
def status(server: Address = SERVER, output: Output = "table", timeout: Timeout = TIMEOUT_S) -> None:
    """Show a server on one screen; exit code: its health.

    \b
    Exit codes:
      0  healthy
      1  cannot be reached
      2  wrong usage
      3  reachable, but not healthy, because (the screen says which)
           - it is draining,
           - its memory is over 95 % full and puts wait for space,
           - a put has waited for space for more than 30 seconds, or
           - it holds 99 % of the rows that it may hold.

    Waiting claims are no fault of the server: a trainer that is faster than its rollouts waits.
    """  # noqa: D301  # \b is for typer: it leaves the lines of the list as they are
    from dataplane_client.cli._status import show_status

    raise typer.Exit(show_status(server, output, timeout))


@app.command()
def top(
    server: Address = SERVER,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, max=3600.0, help="Seconds from screen to screen.")
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Screens after which to end; without end if not given.")
    ] = None,
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Show what moves, until Ctrl-C.

    By partition and task, anew every few seconds. Rates are those since the screen before, so the first has none.
    While the server is away this says so and goes on. Without a terminal screens are printed below each other; as JSON
    each is one line.
    """
    from dataplane_client.cli._top import watch

    watch(server, interval, count, output, timeout)


@app.command()
def describe(
    partition: Partition, server: Address = SERVER, output: Output = "table", timeout: Timeout = TIMEOUT_S
) -> None:
    """Show one partition: fields, tasks, who waits.

    Exit code 1 when there is none of that name.
    """
    from dataplane_client.cli._describe import show_partition

    show_partition(partition, server, output, timeout)


@app.command()
def sample(
    partition: Partition,
    sample_id: Annotated[str, typer.Argument(metavar="SAMPLE")],
    server: Address = SERVER,
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Tell the story of a sample, even of one that is gone.

    Exit code 1 when the server knows of none of that name.
    """
    from dataplane_client.cli._sample import show_sample

    show_sample(partition, sample_id, server, output, timeout)


@app.command()
def dead_letters(
    partition: Partition, task: Task, server: Address = SERVER, output: Output = "table", timeout: Timeout = TIMEOUT_S
) -> None:
    """List the rows that a task has given up.

    They were delivered too often, and never committed.
    """
    from dataplane_client.cli._dead_letters import show_dead_letters

    show_dead_letters(partition, task, server, output, timeout)


@app.command()
def reset(
    partition: Partition,
    task: Task,
    sample_ids: Annotated[list[str] | None, typer.Argument(metavar="SAMPLE")] = None,
    whole_task: Annotated[bool, typer.Option("--all", help="All rows of the partition.")] = False,
    server: Address = SERVER,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Give rows back to a task, dead ones included.

    It is as if the task had never taken them. Claims that hold any of them are fenced.
    """
    if bool(sample_ids) == whole_task:
        raise typer.BadParameter("name the samples to reset, or all of them with --all")
    from dataplane_client.cli._dead_letters import reset_task

    reset_task(partition, task, sample_ids or [], server, timeout)


@app.command()
def doctor(server: Address = SERVER, output: Output = "table", timeout: Timeout = TIMEOUT_S) -> None:
    """Check what a client needs, from here, as this user.

    Whether it reaches the server and its memory, what limits it meets, and what to do where something is wrong. Run it
    where the client runs: in its container, as its user. Exit code 1 when there is a problem, 0 otherwise, also with
    warnings.
    """
    from dataplane_client.cli.doctor import examine

    raise typer.Exit(examine(server, output, timeout))
