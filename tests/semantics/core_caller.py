"""The core, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tests.core import caller as core
from tests.semantics.callers import Begun, Caller, Group, Refused, Rows, Tags, each

from dataplane_client.records.filters import Where, filter_message
from dataplane_server.core.calls.answers import (
    Admitted,
    Answered,
    CommitResult,
    Drawn,
    Failed,
    Grant,
    Granted,
    PutResult,
    Reservation,
    Reserved,
    Waiting,
)
from dataplane_server.core.calls.filters import Filter
from dataplane_server.core.calls.flow import DrawBand
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import (
    Call,
    ClearSamples,
    CommitClaim,
    DropPartition,
    EndRead,
    GiveUpClaim,
    GiveUpWrite,
)
from dataplane_server.service.translate.filters import rows_that_fit

A = TypeVar("A")


def terms(where: Where | None) -> Filter:
    message = filter_message(where, "a filter")
    return () if message is None else rows_that_fit(message)


def renamed(more: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a claim or a draw as the core names them."""
    given = {name: value for name, value in more.items() if value is not None}
    given["batch_size"] = given.pop("size", 1)
    given["min_size"] = given.pop("least", given["batch_size"])
    if "where" in given:
        given["where"] = terms(given["where"])
    return given


def refused(refusal: Refusal) -> Refused:
    return Refused(refusal.reason.name, refusal.message, refusal.metadata)


class CoreBegun(Begun[A]):
    def __init__(self, caller: CoreCaller, begun: object, translate: Callable[[Any], A], give_up: Any) -> None:
        self._caller = caller
        self._begun = begun
        self._translate = translate
        self._give_up = give_up

    def answer(self) -> A:
        told = self._begun
        if isinstance(told, Waiting):
            told = self._caller.told.pop(told.ticket)
        if isinstance(told, Refusal):
            raise refused(told)
        return self._translate(told)

    def in_vain(self) -> Refused:
        assert isinstance(self._begun, Waiting)
        return refused(self._caller.apply(self._give_up(self._begun.ticket)))


class CoreCaller(Caller):
    """told: what calls that waited were answered, by ticket."""

    def __init__(self, caller: core.Caller) -> None:
        self.core = caller
        self.told: dict[int, object] = {}

    def apply(self, call: Call[A]) -> A:
        try:
            answer = self.core.apply(call)
        except Refusal as refusal:
            raise refused(refusal) from None
        if isinstance(answer, Reservation):
            answer = self._finish(answer.ticket)  # type: ignore[assignment]
        self._settle()
        return answer

    def _finish(self, ticket: int) -> object:
        try:
            return self.core.finish(ticket)
        except Refusal as refusal:
            raise refused(refusal) from None

    def _settle(self) -> None:
        """Answer the calls that waited until now; those that may write do so."""
        while effects := self.core.plane.take_effects():
            for effect in effects:
                if isinstance(effect, Granted):
                    self.told[effect.ticket] = effect.grant
                elif isinstance(effect, Answered):
                    self.told[effect.ticket] = effect.answer
                elif isinstance(effect, Failed):
                    self.told[effect.ticket] = effect.refusal
                elif isinstance(effect, Admitted):
                    self.told[effect.ticket] = self._finish(effect.ticket)

    def _begin(self, call: Call[Any], translate: Callable[[Any], A], give_up: Any) -> CoreBegun[A]:
        return CoreBegun(self, self.apply(call), translate, give_up)

    def register(self, fields: str = "ab", tasks: Sequence[str] = ("train", "score"), **more: Any) -> None:
        per_token = frozenset(more.pop("per_token_fields", ()))
        self.core.register(tuple(fields), tuple(tasks), per_token_fields=per_token, **more)

    def put_call(self, ids: str, *fields: str, **more: Any) -> Any:
        size, version = more.pop("size", 1), more.pop("version", None)
        tags = each(ids, more.pop("tags", None), version)
        generations, only_if = more.pop("generations", None), more.pop("only_if", None)
        return self.core.put_call(
            list(ids),
            {name: [size] * len(ids) for name in fields},
            tags=tags,  # type: ignore[arg-type]
            only_if=None if only_if is None else terms(only_if),
            generations=None if generations is None else core.int64(generations),
            **more,
        )

    def begin_put(self, ids: str, *fields: str, timeout_s: float | None = None, **more: Any) -> Begun[list[int]]:
        return self._begin(self.put_call(ids, *fields, **more), lambda result: result.generations.tolist(), GiveUpWrite)

    def append(self, ids: str, size: int = 1, *, field: str = "a", claim: Rows | None = None) -> None:
        claim_id = "" if claim is None else claim.claim_id
        self.apply(self.put_call(ids, field, size=size, append=True, claim_id=claim_id))

    def begin_claim(self, *fields: str, timeout_s: float | None = None, **more: Any) -> Begun[Rows]:
        return self._begin(self.core.claim_call(*fields, **renamed(more)), rows_of_grant, GiveUpClaim)

    def begin_draw(self, *fields: str, timeout_s: float | None = None, **more: Any) -> Begun[Rows]:
        return self._begin(self.core.draw_call(*fields, **renamed(more)), rows_of_draw, GiveUpClaim)

    def begin_reserve(
        self, group: str, ids: str = "", *, version: int | None = None, timeout_s: float | None = None
    ) -> Begun[Group]:
        call = self.core.reserve_call(group, list(ids), weight_version=version)
        return self._begin(call, lambda reserved: CoreGroup(self, reserved), GiveUpClaim)

    def commit(self, claim: Rows, **sizes: int) -> int:
        lengths = {name: [size] * len(claim.ids) for name, size in sizes.items()}
        call = self.core.commit_call(claim.claim_id, lengths) if sizes else None
        result = self.apply(call or CommitClaim(self.core.request_id(), claim.claim_id))
        assert isinstance(result, CommitResult)
        return result.consumed_rows

    def release(self, claim: Rows, *, delay_s: float = 0.0, reason: str = "") -> int:
        released = self._did(lambda: self.core.release(claim.claim_id, delay_s=delay_s, reason=reason))
        return released.released_rows

    def _did(self, act: Callable[[], A]) -> A:
        try:
            answer = act()
        except Refusal as refusal:
            raise refused(refusal) from None
        self._settle()
        return answer

    def reset(self, ids: str | None = None) -> int:
        return self._did(lambda: self.core.reset(None if ids is None else list(ids))).reset_rows

    def clear(
        self, ids: str | None = None, *, where: str | None = None, generations: Sequence[int] | None = None
    ) -> int:
        named = None if ids is None else list(ids)
        numbers = None if generations is None else core.int64(generations)
        return self.apply(ClearSamples(self.core.request_id(), "p", named, numbers, where=terms(where))).cleared_rows

    def set_policy(self, task: str = "train", **policy: Any) -> None:
        where = terms(policy.pop("where", None))
        self._did(lambda: self.core.set_policy(policy.pop("max_staleness", None), task=task, where=where, **policy))

    def set_flow(self, **flow: Any) -> None:
        if "band" in flow:
            flow["band"] = DrawBand(*flow["band"])
        self._did(lambda: self.core.set_flow(**{**flow, "evict_where": terms(flow.get("evict_where"))}))

    def set_version(self, version: int, retire_below: int | None = None) -> int:
        return self._did(lambda: self.core.set_version(version, retire_below)).rows

    def close(self) -> int:
        return self._did(self.core.close)

    def drop(self) -> None:
        self.apply(DropPartition(self.core.request_id(), "p"))

    def listed(self, where: str | None = None) -> str:
        page = self._did(lambda: self.core.plane.list_samples("p", "", [], terms(where), 1000, 0, self.core.now))
        return "".join(page.sample_ids)

    def sizes(self, ids: str, field: str) -> Sequence[int]:
        plan = self.apply_read(list(ids), field)
        self.core.apply(EndRead(plan.ticket))
        return [int(entries) for entries in plan.columns[0].entries]

    def apply_read(self, ids: Sequence[str], field: str) -> Any:
        return self._did(lambda: self.core.read(ids, field))

    def partition(self) -> Any:
        return self.core.plane.partition_info("p", self.core.now)

    def used(self) -> int:
        return self.core.used

    def waiting(self) -> int:
        totals = self.core.plane.totals()
        return totals.waiting_claims + totals.waiting_puts + totals.waiting_for_room


class CoreGroup(Group):
    def __init__(self, caller: CoreCaller, reserved: Reserved) -> None:
        self._caller = caller
        self._id = reserved.reservation_id

    def put(self, ids: str, *fields: str, add: bool = False, **more: Any) -> str:
        call = self._caller.put_call(ids, *fields, reservation_id=self._id, add_to_group=add, **more)
        result = self._caller.apply(call)
        assert isinstance(result, PutResult)
        return result.abort_hint

    def append(self, ids: str, size: int = 1, *, field: str = "a", tags: Tags | None = None) -> None:
        call = self._caller.put_call(ids, field, size=size, append=True, reservation_id=self._id, tags=tags)
        self._caller.apply(call)

    def share(self, field: str, size: int) -> None:
        self._caller._did(lambda: self._caller.core.share(self._id, **{field: size}))

    def finish(self, version: int | None = None) -> int:
        return self._caller._did(lambda: self._caller.core.finish_group(self._id, version)).rows

    def abort(self) -> int:
        return self._caller._did(lambda: self._caller.core.abort_group(self._id)).removed_rows


def rows_of_grant(grant: Grant) -> Rows:
    return Rows(
        "".join(grant.sample_ids),
        grant.claim_id,
        list(grant.tags),
        grant.generations.tolist(),
        grant.sequence_lengths.tolist(),
        grant.deliveries.tolist(),
        grant.staleness.tolist(),
        [(one.group_id, one.rows, one.start_weight_version, one.end_weight_version) for one in grant.groups],
    )


def rows_of_draw(drawn: Drawn) -> Rows:
    return Rows(
        "".join(drawn.sample_ids),
        tags=list(drawn.tags),
        generations=drawn.generations.tolist(),
        sequence_lengths=drawn.sequence_lengths.tolist(),
        staleness=drawn.staleness.tolist(),
        draws=drawn.draws.tolist(),
        probabilities=drawn.probabilities.tolist(),
    )
