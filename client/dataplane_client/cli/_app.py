"""The commands and their flags.

A shell starts a new process for each command, so this module imports only typer. A command loads what it needs (gRPC,
protobuf, rich, numpy) when it runs; none loads torch. For the same reason help is plain text and annotations are not
postponed: typer would evaluate them all at each start.
"""

from typing import Annotated

import typer

from dataplane_client.cli._options import (
    SERVER,
    TIMEOUT_S,
    Address,
    AnyAddress,
    AnyPartition,
    AnyTask,
    Output,
    Partition,
    Task,
    Timeout,
    Where,
    seconds_flag,
)
from dataplane_client.cli._value_commands import bench, export, import_, peek, tail

_SNAPSHOT_TIMEOUT_S = 600.0  # to copy all values
_NEWEST_VERSION = (1 << 31) - 2

app = typer.Typer(
    name="dataplane",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    server: AnyAddress = SERVER,
) -> None:
    """Show what a server of RL Data Plane holds, and who waits for what.

    --server may come before or after the command. Without it, DATAPLANE_SERVER names the server.
    """


@app.command()
def status(
    server: Address = "",
    wait: Annotated[float, seconds_flag("--wait", least=0.0, text="How long to wait for a healthy server.")] = 0.0,
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Show the server, its partitions and its health.

    \b
    Exit codes:
      0  healthy
      1  not reachable
      2  wrong usage
      3  reachable but not healthy, because
           - the server is draining,
           - its memory is over 95 % full and puts wait for space,
           - a put has waited for space for more than 30 seconds,
           - clients hold more than half of its memory, which no clear frees,
           - the server holds 99 % of the rows that it may hold, or
           - a node of its cluster does not answer.

    Waiting claims do not make a server unhealthy: a trainer that is faster than its rollouts waits.

    Untaken rows are ready if they have all fields that the task's last claim required; "-" before its first claim.
    rows/s are rows that the task has consumed. JSON output has the totals since registration, too.
    """  # noqa: D301  # \b makes typer keep the line breaks of the list
    from dataplane_client.cli._status import await_health, show_status

    await_health(server, wait, timeout)
    raise typer.Exit(show_status(server, output, timeout))


@app.command()
def top(
    server: Address = "",
    interval: Annotated[
        float, seconds_flag("--interval", "-i", least=0.1, most=3600.0, text="Time between screens.")
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Stop after N screens (default: at Ctrl-C).")
    ] = None,
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Show how many rows and bytes move, until Ctrl-C.

    Rates are averages since the previous screen; on the first screen, of the last minute. While the server is not
    reachable, the command says so and keeps trying; it exits with 1 if that is so on the Nth screen. On a terminal each
    screen replaces the one before, and the last one stays. Elsewhere the screens follow each other; with JSON output,
    one on each line.
    """
    from dataplane_client.cli._top import watch

    watch(server, interval, count, output, timeout)


@app.command()
def describe(
    partition: Partition, server: Address = "", output: Output = "table", timeout: Timeout = TIMEOUT_S
) -> None:
    """Show one partition: its fields, its tasks and their waits.

    What moved, and shares of time, are of the last minute. JSON output has the totals since registration, too.

    Exits with 1 if the partition does not exist.
    """
    from dataplane_client.cli._describe import show_partition

    show_partition(partition, server, output, timeout)


@app.command()
def sample(
    partition: Partition,
    sample_id: Annotated[str, typer.Argument(metavar="SAMPLE")],
    server: Address = "",
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Show one sample and what happened to it.

    The history remains after the sample was cleared, as long as the server remembers it.

    Exits with 1 if the server does not know the sample.
    """
    from dataplane_client.cli._rows import show_sample

    show_sample(partition, sample_id, server, output, timeout)


@app.command()
def samples(
    partition: Partition,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Also show the state for this task.")
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="untaken, claimed, consumed, delayed or dead. Repeatable."),
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Only rows with this tag. Repeatable.")
    ] = None,
    where: Where = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Most rows to show.")] = 100,
    server: Address = "",
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """List the samples of a partition, in order of arrival."""
    from dataplane_client.cli._listings import samples_request, show_samples

    request = samples_request(partition, task, states or [], tags or [], where)
    show_samples(request, limit, server, output, timeout)


@app.command()
def prove(
    partition: Partition,
    step: Annotated[int, typer.Argument(min=0, metavar="STEP")],
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Whose step (default: the partition's only task).")
    ] = None,
    server: Address = "",
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Show what the rows of a step consist of.

    Producers, weight versions, digests, deliveries and commits, of steps that the server remembers, and of rows that
    are there. The digest of the step is that of all its values: it is equal for whoever was given the same ones. Asks
    for every row that the task has taken.

    Exits with 1 if there is no such row.
    """
    from dataplane_client.cli._prove import prove as show_step

    show_step(partition, step, task, server, output, timeout)


for _command in (peek, tail, export, bench):
    app.command()(_command)
app.command("import")(import_)


@app.command("set-version")
def set_version(
    partition: Partition,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=0, max=_NEWEST_VERSION)],
    retire_below: Annotated[
        int | None,
        typer.Option(
            "--retire-below",
            metavar="VERSION",
            min=0,
            max=_NEWEST_VERSION,
            help="Remove rows and groups of older versions.",
        ),
    ] = None,
    server: Address = "",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Say which weight version the trainer has now."""
    from dataplane_client.cli._rows import set_weight_version

    set_weight_version(partition, version, retire_below, server, timeout)


@app.command()
def claims(
    partition: AnyPartition = None,
    task: AnyTask = None,
    server: Address = "",
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """List who holds rows, and who waits for what.

    Without PARTITION and TASK, the claims of all partitions.
    """
    from dataplane_client.cli._listings import show_claims

    show_claims(partition, task, server, output, timeout)


@app.command()
def groups(partition: Partition, server: Address = "", output: Output = "table", timeout: Timeout = TIMEOUT_S) -> None:
    """List groups that are not committed, and what each waits for.

    "waits for" names rows that are not complete. Below are groups that were removed too often to be reserved again. The
    rows of a group are listed by `dataplane samples`.
    """
    from dataplane_client.cli._listings import show_groups

    show_groups(partition, server, output, timeout)


@app.command()
def why(
    partition: AnyPartition = None,
    task: AnyTask = None,
    everything: Annotated[bool, typer.Option("--all", help="Also show waits of less than 2 s.")] = False,
    fail_after: Annotated[
        float | None,
        seconds_flag("--fail-after", least=0.0, text="Exit with 3 if a call has waited for so long."),
    ] = None,
    server: Address = "",
    output: Output = "table",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Explain why calls wait, and say what to do.

    Without PARTITION, the waits of all partitions. With TASK, only claims of this task. If nothing waits, or PARTITION
    is named, it also lists tasks that take no rows. docs/why.md lists the causes.

    Exits with 0 whether or not anything waits, unless --fail-after is given, which is for watchdogs; with 1 if the
    partition or task does not exist.
    """
    from dataplane_client.cli._why import show_waits

    longest_s = show_waits(partition, task, server, output, timeout, everything=everything)
    if fail_after is not None and longest_s is not None and longest_s >= fail_after:
        raise typer.Exit(3)


@app.command()
def sessions(server: Address = "", output: Output = "table", timeout: Timeout = TIMEOUT_S) -> None:
    """List the clients that are alive, and what they hold.

    A client has a session from its first claim or reservation on.
    """
    from dataplane_client.cli._listings import show_sessions

    show_sessions(server, output, timeout)


@app.command()
def dead_letters(
    partition: Partition, task: Task, server: Address = "", output: Output = "table", timeout: Timeout = TIMEOUT_S
) -> None:
    """List the rows that failed too often for a task.

    A row becomes a dead letter when max_deliveries of its deliveries to the task have failed.
    """
    from dataplane_client.cli._rows import show_dead_letters

    show_dead_letters(partition, task, server, output, timeout)


@app.command()
def reset(
    partition: Partition,
    task: Task,
    sample_ids: Annotated[list[str] | None, typer.Argument(metavar="SAMPLE...")] = None,
    whole_task: Annotated[bool, typer.Option("--all", help="Reset all rows, consumed ones too.")] = False,
    dead: Annotated[bool, typer.Option("--dead", help="Reset the dead letters, and no other rows.")] = False,
    server: Address = "",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Let a task claim rows again, dead letters included.

    Claims that hold any of the rows end: their commits are refused.
    """
    if [bool(sample_ids), whole_task, dead].count(True) != 1:
        raise typer.BadParameter("name the samples to reset, or use --dead for the dead letters or --all for all rows")
    from dataplane_client.cli._rows import reset_dead, reset_samples, reset_task

    if dead:
        reset_dead(partition, task, server, timeout)
    elif sample_ids:
        reset_samples(partition, task, sample_ids, server, timeout)
    else:
        reset_task(partition, task, [], server, timeout)


@app.command()
def drop(
    partition: Partition,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: Address = "",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Remove a partition with its rows, claims and definition.

    Asks first, unless --yes is given; without a terminal, it needs --yes.
    """
    from dataplane_client.cli._rows import drop_partition

    drop_partition(partition, server, timeout, sure=yes)


@app.command()
def doctor(server: Address = "", output: Output = "table", timeout: Timeout = TIMEOUT_S) -> None:
    """Check whether a client can work from here, and how fast.

    Checks whether this user can reach the server and its shared memory, and which limits apply, and says what to
    change. Run it where the client runs: on its host, in its container, as its user. Exits with 1 if there is a
    problem, otherwise with 0, even if there are warnings.
    """
    from dataplane_client.cli._doctor import examine

    raise typer.Exit(examine(server, output, timeout))


@app.command()
def snapshot(
    name: Annotated[str, typer.Argument(metavar="NAME")], server: Address = "", timeout: Timeout = _SNAPSHOT_TIMEOUT_S
) -> None:
    """Take a snapshot of a server with --data-dir, while it serves.

    It has rows with their values, cursors and claims of one moment, and is a folder of this name on the server's disk.
    """
    from dataplane_client.cli._snapshots import take_snapshot

    take_snapshot(name, server, timeout)


@app.command()
def snapshots(server: Address = "", output: Output = "table", timeout: Timeout = TIMEOUT_S) -> None:
    """List the snapshots of a server, the oldest first."""
    from dataplane_client.cli._snapshots import show_snapshots

    show_snapshots(server, output, timeout)


@app.command()
def restore(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    sure: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: Address = "",
    timeout: Timeout = _SNAPSHOT_TIMEOUT_S,
) -> None:
    """Make a server go on from one of its snapshots.

    What came after the snapshot is lost, and all sessions end: rows that were claimed are untaken again. Clients
    connect again by themselves. If the snapshot cannot be used, nothing changes. Asks first, unless --yes is given;
    without a terminal, it needs --yes.
    """
    from dataplane_client.cli._snapshots import restore_snapshot

    restore_snapshot(name, server, timeout, sure=sure)


@app.command()
def verify(folder: Annotated[str, typer.Argument(metavar="FOLDER")]) -> None:
    """Compare a snapshot with its checksums.

    FOLDER is the snapshot's own. No server is needed. Exits with 1 if the snapshot is damaged, or of another version.
    """
    from dataplane_client.cli._snapshots import verify_snapshot

    verify_snapshot(folder)


@app.command(context_settings={"ignore_unknown_options": True})
def replay(
    path: Annotated[str, typer.Argument(metavar="DIR")],
    screen: Annotated[
        list[str] | None, typer.Argument(metavar="[SCREEN [ARGS]...]", help="A command, such as: describe train")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="A time in UTC, or -90s before the end.")
    ] = None,
    sample_id: Annotated[
        str | None, typer.Option("--sample", metavar="SAMPLE", help="Only the calls that concern this sample.")
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the last N calls.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare with each checkpoint.")] = False,
    output: Output = "table",
) -> None:
    """Show what happened to a server, from its --data-dir.

    Without SCREEN, a line for each call until TIME. With SCREEN, what that command would have shown at TIME: waits and
    ages are counted until then. TIME is 14:03:07.250 of the last day, 2026-11-22T14:03:07.250, or -90s. Nothing in DIR
    is changed, and a server may use it meanwhile.

    --check replays all and compares with each checkpoint in DIR. Exits with 1 if there is a difference, with 2 if DIR
    cannot be replayed.
    """
    if screen and (check or sample_id is not None or last is not None):
        raise typer.BadParameter("--sample, --last and --check go without SCREEN")
    if check and (until or sample_id is not None or last is not None):
        raise typer.BadParameter("--check replays all: it goes without --until, --sample and --last")
    from dataplane_client.cli._replay import replay_calls, replay_screen

    if screen:
        replay_screen(app, path, until, screen, output)
    else:
        raise typer.Exit(replay_calls(path, until, sample_id, last, check, output))
