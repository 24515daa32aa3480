"""Compare with TransferQueue on the put of one row, as NeMo-RL's token sink stages each model call before the answer.

The row has 21 columns; see `exchanges.call_record`. Each round puts a number of rows, one after the other, under new
keys. TransferQueue takes columns of tokens as nested tensors or as rectangles with one row; the faster form counts. We
take nested tensors.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from exchanges.call_record import Form
from exchanges.compare import GRPC, SAME_HOST, TRANSFER_QUEUE
from session import Goal, Session
from timing import Round, Series, alternate
from workers import Worker

_FORMS: dict[str, Form] = {f"{TRANSFER_QUEUE}, nested": "jagged", f"{TRANSFER_QUEUE}, rectangles": "dense"}
_ROUNDS, _PUTS = 31, 20
_HEADINGS = ("system", "p50 ms", "p99 ms", "puts")


def measure(session: Session, near: Worker, remote: Worker, queue: Worker) -> None:
    """near, remote: ours, over shared memory and over gRPC."""
    systems = {SAME_HOST: _Puts(near, "jagged"), GRPC: _Puts(remote, "jagged")}
    systems.update({name: _Puts(queue, form) for name, form in _FORMS.items()})
    rounds: dict[str, Round] = dict(systems)
    session.keep("exchange.single_row", alternate(rounds, session.rounds(_ROUNDS), 1))
    _report(session, {name: each.times() for name, each in systems.items()})


class _Puts:
    """Rounds of puts by one worker, which keep the time of each put."""

    def __init__(self, putter: Worker, form: Form) -> None:
        self._putter, self._form = putter, form
        self._rounds: list[list[float]] = []

    def __call__(self) -> Mapping[str, float]:
        self._putter.call("prepare_record", form=self._form)
        took = self._putter.call("puts", times=_PUTS)["seconds"]
        self._rounds.append(took)
        return {"put": statistics.median(took)}

    def times(self) -> Series:
        """All but those of the first round, which warms up."""
        return Series(tuple(second for took in self._rounds[1:] for second in took))


def _report(session: Session, times: Mapping[str, Series]) -> None:
    rows = [
        (name, f"{each.median * 1e3:.2f}", f"{_p99(each) * 1e3:.2f}", str(len(each.values)))
        for name, each in times.items()
    ]
    session.show("put of one row with 21 columns", _HEADINGS, rows)
    for quantile, of in (("p50", lambda each: each.median), ("p99", _p99)):
        peer = min(of(times[name]) for name in _FORMS)
        for name in (SAME_HOST, GRPC):
            taken = of(times[name])
            text = f"{peer / taken:.2f} x: {taken * 1e3:.2f} against {peer * 1e3:.2f} ms"
            title = f"put of a row with 21 columns, {quantile}, {name}: at least as fast as {TRANSFER_QUEUE}"
            session.goals.append(Goal(title, text, taken <= peer, peer / taken))


def _p99(series: Series) -> float:
    return statistics.quantiles(series.values, n=100)[98]
