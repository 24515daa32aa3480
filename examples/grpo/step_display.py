"""The display of a run: a progress bar, a table of steps, the account of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from controller import StepResult
from dataplane_client.records.descriptions import NodeDescription

_COMPARED_STEPS = 10
_COLUMNS = (
    ("step", 4, "{step}"),
    ("reward", 6, "{reward:.3f}"),
    ("trained", 7, "{trained_rows}"),
    ("dropped", 7, "{dropped_rows}"),
    ("loss", 8, "{loss:+.4f}"),
    ("grad norm", 9, "{grad_norm:.3f}"),
    ("tokens/s", 8, "{tokens_per_s:,.0f}"),
    ("MB moved", 8, "{moved_mb:.2f}"),
    ("padding avoided", 15, "{padding_avoided:.0%}"),
    ("s", 5, "{seconds:.1f}"),
)


def progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def heading() -> str:
    return "  ".join(f"{name:>{width}}" for name, width, _ in _COLUMNS)


def line(result: StepResult, moved_mb: float) -> str:
    """One step as a line of the table. moved_mb: megabytes put to and read from the server during the step."""
    values = {
        **vars(result),
        "tokens_per_s": result.tokens / max(result.seconds, 1e-9),
        "moved_mb": moved_mb,
        "padding_avoided": 1 - result.mean_tokens / max(result.longest_tokens, 1),
    }
    return "  ".join(f"{form.format(**values):>{width}}" for _, width, form in _COLUMNS)


def account(put: int, fates: Sequence[tuple[str, int]]) -> Table:
    """A table of all rollout rows by outcome."""
    table = Table(title="every rollout row", box=None, title_justify="left", title_style="bold", show_header=False)
    table.add_row("put", f"{put:,}")
    for name, rows in fates:
        table.add_row(f"  {name}", f"{rows:,}")
    balanced = put == sum(rows for _, rows in fates)
    table.add_row("balance", "[green]every row accounted for[/green]" if balanced else "[red]rows are missing[/red]")
    return table


def nothing_learned(trained_rows: int) -> str:
    """What a run says that has trained nothing so far; empty if it has."""
    if trained_rows:
        return ""
    return (
        "[bold]nothing can be learned so far[/bold]: in every group all rewards are equal, so no rollout is better "
        "than another. If they are 0, the model answers no prompt, as one that is not warmed up: leave out --model, or "
        "name a model that answers some"
    )


def rewards(values: Sequence[float]) -> str:
    """The mean reward of the first and of the last steps; empty for fewer than two."""
    compared = min(_COMPARED_STEPS, len(values) // 2)
    if not compared:
        return ""
    first, last = sum(values[:compared]) / compared, sum(values[-compared:]) / compared
    return f"mean reward of the first {compared} steps {first:.3f}, of the last {compared} [bold]{last:.3f}[/bold]"


def nodes(described: Sequence[NodeDescription]) -> Table:
    """A table of the bytes of values that clients have put and read on each node of a cluster."""
    table = Table(title="values by node, in kB", box=None, title_justify="left", title_style="bold")
    for name in ("node", "put", "read in place", "fetched from others", "read again"):
        table.add_column(name, justify="right")
    for node in described:
        counts = (node.written_bytes, node.local_read_bytes, node.fetched_bytes, node.cache_hit_bytes)
        table.add_row(str(node.number), *(f"{count / 1e3:,.0f}" for count in counts))
    return table
