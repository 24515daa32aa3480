"""Puts of many callers in few calls, and each answered as if it were alone.

There is one call under way for each partition. Puts that come meanwhile wait in line, and the next call takes those of
them that can be gathered. No thread or task of its own waits for puts: the caller whose put is first in line sends for
all, and hands the line over when its call has ended.

A call that is refused has changed nothing, so its puts go back to their places in line, and are sent one by one, each
by its own caller. A call without an answer by the first of its deadlines fails that put alone. The others go back as
well, and one of them repeats the call under the same request_id, so it takes effect once. Until it has ended, puts of
all its rows wait behind it; and it ends by the deadlines of its puts, also if these are held again meanwhile.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from functools import partial
from types import TracebackType
from typing import NamedTuple

from dataplane_client._common.tracebacks import short_tracebacks
from dataplane_client._connect.deadline import ANSWER_MARGIN_S, Deadline, checked_timeout
from dataplane_client._connect.locator import new_future
from dataplane_client._requests.gathered_puts import PutRows, gathered, put_rows, receipts
from dataplane_client._requests.requests import GivenTag, Put
from dataplane_client._values.codec import Fields
from dataplane_client._verbs._sync.row_writes import write_rows
from dataplane_client._verbs._sync.runtime import Sending, result_of
from dataplane_client._verbs._sync.transport import Transport
from dataplane_client.errors import ClosedError, DataPlaneError, DeadlineError, UnavailableError
from dataplane_client.records.meta import KVBatchMeta

_LEFT = "the block of batching() was left by an exception before the put was"


class _Put:
    """A put of one caller. turn: resolves to its meta, or to None when this caller is to send the batch. unit: the
    batch that carries it, once chosen. is_under_way: a call has it. is_left: its caller has stopped waiting. is_told:
    its `meta()` has answered. place: in line, by arrival.
    """

    __slots__ = ("deadline", "is_left", "is_told", "is_under_way", "place", "rows", "timeout_s", "turn", "unit")

    def __init__(self, rows: PutRows, timeout_s: float) -> None:
        self.rows = rows
        self.timeout_s = timeout_s
        self.deadline = Deadline(timeout_s)
        self.unit: _Unit | None = None
        self.is_under_way = self.is_left = self.is_told = False
        self.place = 0
        self.wait()

    @property
    def sample_ids(self) -> Sequence[str]:
        """The rows that its call writes, also for puts that have failed since."""
        return self.rows.sample_ids if self.unit is None else self.unit.request.header.sample_ids

    def wait(self) -> None:
        """Wait for the next turn."""
        self.turn: Future[KVBatchMeta | None] = new_future()

    def sends(self) -> bool:
        """Whether it is its turn to send."""
        return self.turn.done() and self.turn.exception() is None and self.turn.result() is None

    def fail(self, error: DataPlaneError) -> None:
        """Does nothing if it has ended."""
        if not self.turn.done():
            self.turn.set_exception(copy(error))  # each caller adds its own traceback


class _Unit(NamedTuple):
    """A request, and the puts whose rows it has, in their order."""

    request: Put
    puts: tuple[_Put, ...]


class _Line:
    """The puts of a partition that wait, in order of arrival: for the end of a call, unless it is the first one's
    turn. busy: there is a call, or a put whose turn it is.
    """

    def __init__(self) -> None:
        self.waiting: deque[_Put] = deque()
        self.busy = False


@short_tracebacks
class PendingPut:
    """A put of `put_later`."""

    def __init__(self, answer: Callable[[], KVBatchMeta]) -> None:
        self._answer = answer

    def meta(self) -> KVBatchMeta:
        """The meta of the rows. If the put is held, sends all that is, and waits for the answers. Errors as
        put_samples, and ClosedError if the block was left by an exception before.
        """
        return self._answer()


@short_tracebacks
class Batching:
    """Puts that travel together; made by `batching`. A context manager: at its end, it sends what is held. What is
    held when it is garbage-collected is lost, with a ResourceWarning.
    """

    def __init__(self, transport: Transport, max_rows: int, max_bytes: int) -> None:
        self._transport = transport
        self._owner = os.getpid()
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._lines: dict[str, _Line] = {}  # by partition; those without puts are removed
        self._held: list[_Put] = []
        self._held_rows = self._held_bytes = 0
        self._leaving: dict[_Put, Future[None]] = {}  # were held, and a caller sends them; until they end or are again
        self._arrivals = 0
        self._untold: dict[_Put, DataPlaneError] = {}  # of puts that were held; the first ones, at most max_rows
        self._lock = threading.Lock()  # for the attributes above and the puts in line; never held across a call
        self._sending = Sending()

    def __del__(self, getpid: Callable[[], int] = os.getpid, warn: Callable[..., None] = warnings.warn) -> None:
        if self._held and self._owner == getpid():
            message = f"{len(self._held)} puts that batching() held were garbage-collected, and are lost"
            warn(f"{message}: flush it, or use it in a with block", ResourceWarning, source=self)

    def __enter__(self) -> Batching:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
            else:
                self._drop_held()
        finally:
            self._sending.join()

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Fields | None = None,
        tags: Sequence[Mapping[str, GivenTag]] | None = None,
        *,
        sequence_lengths: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Write columns and tags of rows, atomically, as the client's put_samples: its arguments, answer and errors.

        Returns when the server has the rows. If another put of this object into the partition is under way, waits for
        its end, and travels with the others that do. If puts of its rows are held, sends all that is held before;
        timeout_s begins then.
        """
        put = self._put(sample_ids, partition_id, fields, tags, sequence_lengths, timeout_s)
        self._send_before(put)
        self._join(put)
        try:
            return self._answer(put)
        except DataPlaneError:
            raise
        except BaseException:  # cancelled or interrupted
            self._withdraw(put)
            raise

    def put_later(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Fields | None = None,
        tags: Sequence[Mapping[str, GivenTag]] | None = None,
        *,
        sequence_lengths: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> PendingPut:
        """Hold a put until max_rows rows or max_bytes of values are held, `flush`, or the end of the block. Then sends
        all that is held, and waits until the server has it. Arguments as put_samples; refuses at once what can be
        refused without the server.

        Tensors are not copied: do not write to them before. timeout_s begins when the put is sent. An error of a put
        that is held is raised by its `meta()`, or else by `flush` or the end of the block. If what sends it is
        cancelled, it is held again.
        """
        put = self._put(sample_ids, partition_id, fields, tags, sequence_lengths, timeout_s)
        if self._hold([put]):
            self._send_held()
        return PendingPut(partial(self._meta_of, put))

    def flush(self) -> None:
        """Send what is held, and wait until the server has it, also where another thread or task has begun to send it.
        Raises the first error of a held put that its `meta()` has not raised, and says how many more puts failed.
        """
        with self._lock:
            puts = [*self._leaving, *self._held]
        self._send_held()
        for put in puts:
            self._left(put)
        with self._lock:
            ended = {put: put.turn.exception() for put in puts if put.turn.done() and not put.is_told}
            errors = [error for error in {**self._untold, **ended}.values() if isinstance(error, DataPlaneError)]
            self._untold.clear()
        if errors:
            first = copy(errors[0])  # another flush may raise it, too
            first.message += f" ({len(errors) - 1} more puts failed)" if errors[1:] else ""
            raise first

    def _put(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Fields | None,
        tags: Sequence[Mapping[str, GivenTag]] | None,
        sequence_lengths: Sequence[int] | None,
        timeout_s: float | None,
    ) -> _Put:
        where = f"put_samples into {partition_id!r}"
        rows = put_rows(where, partition_id, sample_ids, fields, tags, sequence_lengths)
        return _Put(rows, self._transport.options.timeout_s if timeout_s is None else checked_timeout(timeout_s))

    # -- what is held --------------------------------------------------------------------------------------------------

    def _hold(self, puts: Collection[_Put], *, first: bool = False) -> bool:
        """Hold puts, behind or before others. Returns whether no more should be held."""
        with self._lock:
            place = 0 if first else len(self._held)
            self._held[place:place] = puts
            for put in puts:
                self._has_left(put)
            self._held_rows += sum(len(put.rows.sample_ids) for put in puts)
            self._held_bytes += sum(put.rows.size_bytes for put in puts)
            return self._held_rows >= self._max_rows or self._held_bytes >= self._max_bytes

    def _take_held(self, *, leave: bool) -> list[_Put]:
        with self._lock:
            held, self._held = self._held, []
            self._held_rows = self._held_bytes = 0
            if leave:
                self._leaving.update((put, new_future()) for put in held)
        return held

    def _has_left(self, put: _Put) -> None:
        """Wake those who wait for a put that another caller sends. With the lock."""
        if leaving := self._leaving.pop(put, None):
            leaving.set_result(None)

    def _left(self, put: _Put) -> None:
        """Wait until a put that was held has ended. Who sends it may be cancelled, and then it is held again."""
        while True:
            with self._lock:
                leaving = self._leaving.get(put)
                if leaving is None and put not in self._held:
                    return
            if leaving is None:
                self._send_held()
            else:
                result_of(leaving, threading.TIMEOUT_MAX)  # who sends it keeps its deadline

    def _send_before(self, put: _Put) -> None:
        """Have puts that were held, and write rows of this one, end before it."""
        ids, partition_id = set(put.rows.sample_ids), put.rows.partition_id
        with self._lock:
            held = [one for one in (*self._leaving, *self._held) if one.rows.partition_id == partition_id]
            earlier = [one for one in held if not ids.isdisjoint(one.sample_ids)]
        for one in earlier:
            self._left(one)

    def _send_held(self) -> None:
        held = dict.fromkeys(self._take_held(leave=True))  # and not answered, in order
        try:
            partitions: dict[str, list[_Put]] = {}
            for put in held:
                partitions.setdefault(put.rows.partition_id, []).append(put)
            for puts in partitions.values():  # one after the other: waits for one hold up no line of another
                for put in puts:
                    self._join(put)
                for put in sorted(puts, key=lambda put: put.place):  # as their turns come
                    self._end(put)
                    del held[put]
        except BaseException:  # cancelled or interrupted
            for put in held:
                self._withdraw(put)
            self._hold(held, first=True)  # also puts under way: the next flush reports how they end
            raise

    def _end(self, put: _Put) -> None:
        """Wait until a put that was held has ended, and keep its error."""
        error: DataPlaneError | None = None
        try:
            self._answer(put)
        except DataPlaneError as raised:
            error = raised
        with self._lock:
            if error is not None and len(self._untold) < self._max_rows:
                self._untold[put] = error
            self._has_left(put)

    def _drop_held(self) -> None:
        held = self._take_held(leave=False)
        with self._lock:
            for put in held:
                if not put.is_under_way:
                    put.fail(ClosedError(f"{_LEFT} sent"))

    def _meta_of(self, put: _Put) -> KVBatchMeta:
        self._left(put)
        with self._lock:
            put.is_told = True
            self._untold.pop(put, None)
        return self._answer(put)

    # -- in line -------------------------------------------------------------------------------------------------------

    def _join(self, put: _Put) -> None:
        """Have a put wait in line, unless a call has it, or has ended it, since it was there before."""
        with self._lock:
            put.is_left = False
            if put.is_under_way or (put.turn.done() and not put.sends()):
                return
            if put.unit is None or len(put.unit.puts) == 1:
                put.deadline = Deadline(put.timeout_s)
            elif not put.deadline.left_s:  # its call would also repeat puts that have failed
                put.fail(DeadlineError(f"put_samples into {put.rows.partition_id!r}: no answer before the deadline"))
                return
            if put.turn.done():
                put.wait()
            line = self._lines.setdefault(put.rows.partition_id, _Line())
            self._arrivals += 1
            put.place = self._arrivals
            line.waiting.append(put)
            if not line.busy:
                line.busy = True
                put.turn.set_result(None)

    def _answer(self, put: _Put) -> KVBatchMeta:
        """Wait for the answer to a put; if its turn comes, send for all."""
        while True:
            meta = self._next_turn(put)
            if meta is not None:
                return meta
            batch = self._take(put)
            if batch:
                self._sending.run(self._send(batch))

    def _next_turn(self, put: _Put) -> KVBatchMeta | None:
        if put.turn.done():
            return put.turn.result()
        for wait_s in (put.deadline.left_s, 2 * ANSWER_MARGIN_S):
            try:
                return result_of(put.turn, wait_s)
            except TimeoutError as error:  # noqa: PERF203  # twice at most
                if isinstance(error, DataPlaneError):
                    raise
                if self._withdraw(put):
                    break  # otherwise it is under way, with this deadline
        late = DeadlineError(f"put_samples into {put.rows.partition_id!r} waited behind other puts until its deadline")
        put.fail(late)  # for callers that ask again
        raise late

    def _take(self, first: _Put) -> list[_Put]:
        """The puts of the next call, which a put sends whose turn it is; none if another thread has taken it."""
        rows = first.rows
        with self._lock:
            if not first.sends():
                return []
            first.wait()
            line, n_rows, size_bytes, seen = self._lines[rows.partition_id], 0, 0, set[str]()
            batch, others = list[_Put](), deque[_Put]()
            for put in line.waiting:
                ids = put.rows.sample_ids
                fits = n_rows + len(ids) <= self._max_rows and size_bytes + put.rows.size_bytes <= self._max_bytes
                joins = fits and put.unit is None and put.rows.alike == rows.alike and seen.isdisjoint(ids)
                if put is first or (joins if first.unit is None else put.unit is first.unit):
                    batch.append(put)
                    put.is_under_way = True
                    n_rows += len(ids)
                    size_bytes += put.rows.size_bytes
                else:
                    others.append(put)
                seen.update(put.sample_ids)  # also of those that wait: puts of a row keep their order
            line.waiting = others
        return batch

    def _withdraw(self, put: _Put) -> bool:
        """Take a put out of line, as its caller leaves. Returns whether it was there."""
        with self._lock:
            put.is_left = True
            line = self._lines.get(put.rows.partition_id)
            if line is None or put not in line.waiting:
                return False
            line.waiting.remove(put)
            if put.sends():
                put.wait()  # so that no other caller that waits for it sends
                self._hand_over(put.rows.partition_id, line)
            return True

    def _hand_over(self, partition_id: str, line: _Line) -> None:
        if line.waiting:
            line.waiting[0].turn.set_result(None)
        else:
            del self._lines[partition_id]

    # -- a call --------------------------------------------------------------------------------------------------------

    def _send(self, batch: Sequence[_Put]) -> int:
        """Send puts, and hand over the line. Returns how many have ended."""
        partition_id, again = batch[0].rows.partition_id, list[_Put]()
        try:
            again = self._write(batch)
        finally:
            lost = f"put_samples into {partition_id!r}: the caller that sent it with its own was interrupted"
            for put in batch:
                if put not in again:
                    put.fail(UnavailableError(lost))
            with self._lock:
                line = self._lines[partition_id]
                for put in batch:
                    put.is_under_way = False
                back = [put for put in again if not put.is_left]
                for put in again:
                    is_sent_again = not put.is_left or put in self._held or put in self._leaving
                    if not is_sent_again and put.deadline.left_s:  # with no time left, its caller has its own error
                        put.fail(ClosedError(f"{_LEFT} answered"))
                line.waiting = deque(sorted([*back, *line.waiting], key=lambda put: put.place))
                self._hand_over(partition_id, line)
        return len(batch) - len(again)

    def _write(self, batch: Sequence[_Put]) -> list[_Put]:
        """Make a call. Returns the puts that are to be sent again."""
        caller = self._transport.options.caller
        unit = batch[0].unit or _Unit(gathered([put.rows for put in batch], caller), tuple(batch))
        first = min(batch, key=lambda put: put.deadline.left_s)
        again = list[_Put]()
        try:
            response = write_rows(self._transport, unit.request.write, first.deadline.left_s)
        except DataPlaneError as error:
            is_unanswered = type(error) in (DeadlineError, UnavailableError)
            if len(unit.puts) > 1 and not isinstance(error, ClosedError):
                again = [put for put in batch if put.deadline.left_s and not (is_unanswered and put is first)]
            for put in batch:
                if put not in again:
                    put.fail(error)
            for put in unit.puts:  # also those that are held again
                if not put.turn.done():
                    put.unit = unit if is_unanswered else _Unit(gathered([put.rows], caller), (put,))
            return again
        for put, meta in zip(unit.puts, receipts([put.rows for put in unit.puts], response), strict=True):
            if not put.turn.done():
                put.turn.set_result(meta)
        return again
