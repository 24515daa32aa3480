"""One seed: a server, its disk, a checkpointer, a standby and many clients in one process, which die and begin again.

Each answer is compared with the model of the core when it is given. When an answer would leave, its calls count as
answered. After each death the directory must begin again, with every answered call, the batch that was under way as a
whole or not at all, and nothing else: its state is that of another core which was given just these calls, and that
of the model. The clients go back to what they knew then, and send again what was lost.

What a batch leaves behind is known by copies of clients and model, which are only taken while the server is doomed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

from tests.simulate.crowd import Crowd, World, applied
from tests.simulate.disk import Died, Disk, in_memory

from dataplane_server.collection import without_collection
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.plane import DataPlane
from dataplane_server.durability import life, replica, standby
from dataplane_server.durability.call_codec import decode_record
from dataplane_server.durability.checkpointer import remove_history
from dataplane_server.durability.group_commit import GroupCommit
from dataplane_server.durability.life import DataDirDurability, Life, Terms, begin_life
from dataplane_server.durability.log_reader import LogReader
from dataplane_server.durability.replica import Replica, kept
from dataplane_server.durability.standby import _Standby
from dataplane_server.storage import arena_file
from dataplane_server.storage.arena import Arena

Loss = Literal["power", "kill"]
_TOO_LONG_S = 20
_FIRST_GENERATION = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """What a seed came to. trace: a hash of all calls, their outcomes, and all points of the disk, in order. state: the
    digest of the core in the end. counts: of events and of what happened to the server.
    """

    trace: str
    state: str
    counts: Counter[str]


class Violation(Exception):
    """A promise was broken. Its message tells the last calls."""


def simulate(seed: int, events: int, whole_one_in: int = 8, root: str | None = None) -> Outcome:
    """Run a seed. whole_one_in: how many events there are to each whole comparison with the model; it changes nothing
    else. root: where its folder is made.
    """
    folder = Path(tempfile.mkdtemp(prefix="simulated-", dir=root or in_memory()))
    try:
        with without_collection():
            return Simulation(seed, folder, whole_one_in).run(events)
    finally:
        shutil.rmtree(folder)


class Simulation:
    def __init__(self, seed: int, folder: Path, whole_one_in: int = 1) -> None:
        self.dice = Random(seed)
        self.counts: Counter[str] = Counter()
        self.last: deque[tuple[Any, ...]] = deque(maxlen=40)
        self._whole_one_in = whole_one_in
        self._trace = hashlib.blake2b(digest_size=8)
        self._disk = Disk(folder, self.dice, self._note)
        durability: DataDirDurability = "disk" if self.dice.randrange(5) else "process"
        self._crowd = Crowd(self.dice, self._new_world, self._doom)
        limits, segment_bytes = self._crowd.world.model.limits, self.dice.choice([4 << 10, 16 << 10, 64 << 10])
        self._terms = Terms(folder, limits, True, durability, self._failed, segment_bytes=segment_bytes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: Life | None = None
        self._clock_s = 0  # of the machine
        self._holders: list[int] = []
        self._checkpointer: Replica | None = None
        self._standby: _Standby | None = None
        self._failure: BaseException | None = None
        self._epoch = 0
        self._has_standby, self._has_reference = not seed % 3, not seed % 4
        self._reference: DataPlane | None = None  # what was recovered, without a disk
        self._applied = 0  # records, to the reference
        self._records: dict[int, bytes] = {}  # that the reference has not seen
        self._ends = {0: 0}  # how many calls there are before a record
        self._submitted = 0  # calls, to the log
        self._taken = 0  # of them, up to the record that is written
        self._answered = 0
        self._checkpoints = self._pause = 1  # how often there are any; how seldom others act
        self._beset = False  # others act between two steps of the disk
        self._doomed = False
        self._copies: dict[int, Crowd] = {}  # with the calls before a record

    def run(self, events: int) -> Outcome:
        try:
            with self._disk.simulated(), self._patched():
                self._begin("kill")
                while self.counts["events"] < events:
                    self._event()
                state = self._end()
        except (Exception, Died) as error:
            self._leave()
            lines = [f"  {now:.6f} {call}\n    {outcome!r}" for now, call, outcome in self.last]
            raise Violation("\n".join(["the last calls:", *lines, repr(error)])) from error
        return Outcome(self._trace.hexdigest(), state, self.counts)

    def _count(self, event: str) -> None:
        """Something happens. Now and then, everything that can be asked is compared after it."""
        self.counts[event] += 1
        self.counts["events"] += 1
        self._crowd.world.whole = self.counts["events"] % self._whole_one_in == 0

    # -- events --------------------------------------------------------------------------------------------------------

    def _event(self) -> None:
        try:
            self._happen()
        except Died:
            if self._failure is not None:
                raise self._failure from None
            self._die()

    def _happen(self) -> None:
        kind = self.dice.randrange(1000)
        if kind < 1:
            self._doom()
        elif kind < 2:
            self._stop()
        elif kind < 22 and self._has_standby:
            self._follow()
        elif kind < 22 + 5 * self._checkpoints:
            self._write_checkpoint()
        elif kind < 100 and self._copies:
            self._disk.die()
        else:
            self._act()
            if not self.dice.randrange(3):
                self._commit()
        if self._disk.dead:
            raise Died

    def _doom(self) -> None:
        """The server dies soon: in a few steps of the disk after its calls are stable once more."""
        if not self._doomed:
            self._doomed = True
            if self._terms.durability == "process":
                self._disk.fuse = self.dice.randint(1, 5)

    def _stop(self) -> None:
        """The server is asked to end."""
        self._count("stops")
        self._spare()
        self._crowd.world.drain()
        assert self._life is not None
        self._on_loop(self._life.close())
        self._answered = self._submitted
        self._begin("kill")

    def _spare(self) -> None:
        self._doomed = False
        self._disk.fuse = None
        self._copies.clear()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _new_world(self, limits: Limits) -> World:
        return World(limits, self._before_call, self._after_call)

    def _before_call(self) -> None:
        if self._disk.dead:
            raise Died
        if self._doomed and self._life is not None and self._life.commits is None:
            self._copies[self._life.log.next_record] = self._crowd.copied()

    def _after_call(self, now: float, call: object, outcome: object) -> None:
        self.last.append((now, call, outcome))
        self._trace.update(type(outcome).__name__.encode())
        if self._life is not None and self._life.commits is None and not self._disk.dead:
            self._answered = self._submitted

    def _note(self, point: str) -> None:
        self._trace.update(point.encode())

    def _commit(self) -> None:
        """Answers wait until they may leave."""
        assert self._life is not None
        if self._life.commits is None:
            self._answered = self._answered if self._disk.dead else self._submitted
            return
        self._on_loop(self._answer(self._life.commits))
        if self._doomed and self._copies and self._disk.fuse is None:
            self._disk.fuse = self.dice.randint(1, 24)

    async def _answer(self, commits: GroupCommit) -> None:
        commits.write_if_due()
        submitted = self._submitted
        if (pending := commits.unstable()) is not None:
            await asyncio.wait_for(asyncio.shield(pending), _TOO_LONG_S)
        self._answered = max(self._answered, submitted)

    def _on_loop(self, work: Any) -> None:
        assert self._loop is not None
        self._loop.run_until_complete(work)

    async def _beside_the_loop(self, work: Callable[[], None]) -> None:
        """As a thread that writes a batch: others act meanwhile."""
        assert self._life is not None
        self._taken = self._submitted
        if self._doomed:
            self._copies[self._life.log.next_record + 1] = self._crowd.copied()
        self._count("batches")
        beside = [self._follow] * self._has_standby + [self._write_checkpoint] * self._checkpoints
        with self._failing(), self._beside(*[self._act] * 8, *beside):
            work()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What is wrong ends the loop, which would wait for ever."""
        try:
            yield
        except (Died, OSError):
            raise
        except Exception as error:
            self._failure = error
            raise Died from error

    @contextmanager
    def _beside(self, *acts: Callable[[], object]) -> Iterator[None]:
        """A block at whose points others act, but not while others act already."""

        def between() -> None:
            if not self._beset and not self.dice.randrange(self._pause):
                self._beset = True
                try:
                    self.dice.choice(acts)()
                finally:
                    self._beset = False

        before, self._disk.between = self._disk.between, self._disk.between or between
        try:
            yield
        finally:
            self._disk.between = before

    def _act(self) -> None:
        self._count("actions")
        self._crowd.act()

    def _settle(self, call: Any) -> None:
        with self._failing():
            self._crowd.world.settle(call)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, OSError):
            raise error
        self.counts[f"server: {error.strerror}"] += 1
        self._disk.die()

    # -- beside the server ---------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        self._standby = self._standby or _Standby(self._terms)
        self._count("looks of the standby")
        self._standby.advance()

    def _write_checkpoint(self) -> None:
        """Sometimes the checkpointer is killed in the middle, or fails."""
        alone = self._disk.fuse is None and not self.dice.randrange(4)
        if alone:
            self._disk.fuse = self.dice.randint(1, 14)
        self._disk.spared = "log-"
        try:
            self._checkpoint(() if alone or self._beset else (self._act, self._commit))
        except (OSError, Died) as error:
            if isinstance(error, Died) and not alone:
                raise
            self._checkpointer = None
            self._disk.restart()
        finally:
            self._disk.spared = "-"
            if alone:
                self._disk.fuse = None

    def _checkpoint(self, beside: Sequence[Callable[[], object]]) -> None:
        folder = self._terms.folder
        if self._checkpointer is None:
            with kept(folder):
                self._checkpointer = Replica(folder)
        while self._checkpointer.advance() and self.dice.randrange(3):
            pass
        with self._beside(*beside) if beside else nullcontext():
            self._checkpointer.write_checkpoint(folder)
            with kept(folder):
                remove_history(folder, self.dice.choice([0, 1 << 14, 1 << 20]))
        self._count("checkpoints")

    # -- the next life -------------------------------------------------------------------------------------------------

    def _die(self) -> None:
        power = self._terms.durability == "disk" and self.dice.randrange(5) < 3
        self._leave()
        self._begin("power" if power else "kill")

    def _leave(self) -> None:
        """The kernel closes what the process had open."""
        if self._life is not None:
            self._life.arena.close()
            if self._life.log._file is not None:
                os.close(self._life.log._file)
        if self._loop is not None:
            self._loop.close()
        self._life = self._loop = self._checkpointer = None
        self._disk.between = None
        self._beset = False

    def _begin(self, loss: Loss) -> None:
        self._leave()
        begun = self._begun(loss)
        record = begun.log.next_record
        known = self._known_at(record)
        self._compare(begun, record)
        self._follow_log(begun)
        for number in [number for number in self._ends if number > record]:
            del self._ends[number]
        self._records.clear()
        self._submitted = self._ends[record]
        self._spare()
        if known is not self._crowd:
            self.counts["batches lost"] += 1
            known.forgets(self._crowd)
            self._crowd = known
        self._crowd.later += self._crowd.world.sent[-self.dice.randrange(1, 4) :]
        self._life = begun
        self._checkpoints, self._pause = self.dice.choice([0, 0, 1, 3]), self.dice.choice([2, 6, 30])
        torn = begun.recovery is not None and begun.recovery.torn_bytes > 0
        if self._crowd.world.sent and not self.dice.randrange(2 if torn else 5):  # what was cut must stay so
            self._doomed, self._copies[record] = True, self._crowd.copied()
        self._crowd.world.begin(begun)
        if not self._crowd.world.sent:
            self._crowd.register_all()
        self._crowd.world.whole = True
        self._crowd.check()
        self._count("beginnings")
        if self._doomed:
            self._disk.fuse = self.dice.randint(1, 24)

    def _begun(self, loss: Loss) -> Life:
        """Several attempts may die, or find no space, or a disk that fails."""
        disk, replica = self._disk, None
        while True:
            self._count("losses of power" if loss == "power" else "ends of a process")
            if loss == "power":
                disk.lose_power()
            if loss == "power" or disk.has_lost_writes("arena"):  # the disk does not see which values are put again
                self._standby = None
            elif self._standby is not None and self.dice.randrange(2):
                self.counts["take-overs"] += 1
                replica, self._standby = self._standby.replica, None
            disk.restart()
            disk.fuse = None if self.dice.randrange(3) else self.dice.randint(1, 40)
            self._clock_s = self.dice.randrange(1 << 20)
            self._holders = [1] if loss == "kill" and self._answered and self.dice.randrange(2) else []
            try:
                return begin_life(self._terms, replica)
            except Died:
                loss = "power" if self._terms.durability == "disk" and self.dice.randrange(2) else "kill"
            except OSError:
                if not disk.erred:
                    raise
                loss = "kill"
            replica = None

    def _known_at(self, record: int) -> Crowd:
        """The clients as they were before a record was made."""
        assert record in self._ends, f"the log goes on with record {record}, which no server wrote"
        assert self._ends[record] >= self._answered, "calls were answered and are lost"
        if self._ends[record] == self._submitted:
            return self._crowd
        return self._copies[max(number for number in self._copies if number <= record)]

    def _compare(self, begun: Life, record: int) -> None:
        header = begun.log._header
        assert int(str(header["epoch"])) > self._epoch, "each life has a number of its own"
        self._epoch = int(str(header["epoch"]))
        assert begun.held == bool(self._holders)
        if record > self._applied:
            at, _ = decode_record(self._records[record - 1])[-1]
            assert begun.now() >= at, "time goes back"
        if self._has_reference:
            if self._reference is None:
                origin = {"incarnation": header["incarnation"], "first_generation": header["first_generation"]}
                self._reference = DataPlane(self._terms.limits, **origin)  # type: ignore[arg-type]
            for number in range(self._applied, record):
                for at, call in decode_record(self._records[number]):
                    applied(self._reference, call, at)
            assert begun.plane.digest() == self._reference.digest(), "the state is not that of the calls"
        self._applied = record

    def _follow_log(self, begun: Life) -> None:
        """Note what the server logs, and let its threads be the simulation's."""
        append = begun.log.append

        def log(payload: bytes) -> None:
            number = begun.log.next_record
            self._trace.update(payload)
            self._records[number] = payload
            if begun.commits is None:
                self._submitted += 1
                self._taken = self._submitted
            self._ends[number + 1] = self._taken
            self._disk.quiet = begun.commits is None
            try:
                append(payload)
            except OSError:
                if begun.commits is not None or not LogReader(self._terms.folder, number).read(1):
                    raise
                self._disk.dead = True  # what failed is the mark: the call counts, and is not answered
            self._disk.quiet = False

        begun.log.append = log  # type: ignore[method-assign]
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)
        if begun.commits is not None:
            collect = begun.commits.append

            def collected(payload: bytes) -> None:
                self._submitted += 1
                collect(payload)

            begun.commits.append = collected  # type: ignore[method-assign]
            begun.commits._in_thread = self._beside_the_loop
            begun.commits.start(self._settle)

    def _end(self) -> str:
        """All is answered, the server dies once more, and then all is released."""
        self._spare()
        self._beset = True
        self._answer_all()
        self._begin("power" if self._terms.durability == "disk" else "kill")
        self._spare()
        self._beset = True
        self._crowd.world.settled = self._answer_all
        self._crowd.world.release_all()
        assert self._life is not None
        state = self._life.plane.digest()
        self._leave()
        return state

    def _answer_all(self) -> None:
        for _ in range(9):
            if self._submitted == self._answered and not self._crowd.world.plane.releases_deferred:
                return
            self._commit()
        raise AssertionError("answers, or bytes that were freed, wait for ever")

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Time, and ids of lives, are the simulation's; no process is watched."""
        clock = SimpleNamespace(
            monotonic=lambda: float(self._clock_s), time=lambda: 0.0, time_ns=lambda: _FIRST_GENERATION
        )
        ids = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="simulatedlife"))
        collector = SimpleNamespace(freeze=lambda: None, unfreeze=lambda: None, collect=lambda: None)
        with (
            mock.patch.object(life, "time", clock),
            mock.patch.object(life, "uuid", ids),
            mock.patch.object(life, "new_incarnation", return_value=f"simulated.{16 * '5e'}"),
            mock.patch.object(life, "gc", collector),
            mock.patch.object(replica, "gc", collector),
            mock.patch.object(standby, "gc", collector),
            mock.patch.object(Arena, "holders", lambda arena: self._holders),  # noqa: PT008  # a method
            mock.patch.object(arena_file, "can_guard", lambda: False),  # it starts a thread to find out  # noqa: PT008  # a function
        ):
            yield
