"""The routes: each is a call of the public client, and its answer as JSON. `front` has found the caller.

A put, claim or reservation waits for room or rows as long as it says, and other calls have _CALL_S. Puts with one
request_id are carried out one after the other, so all get the answer of the first that succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dataplane_client import FieldDescription, KVBatchMeta, PartitionDescription
from dataplane_client.aio import AsyncClaim
from dataplane_client.errors import DataPlaneError, InvalidArgumentError
from dataplane_http import models
from dataplane_http.callers import Caller, Callers
from dataplane_http.columns import columns_of, json_rows, numbers_of
from dataplane_http.errors import answer_of, error_answer, refused

MAX_ANSWER_BYTES = 64 << 20
SLASH = "\ue000"
"""Stands for a slash in a name of the path."""
_CALL_S = 10.0
_ROWS_AT_A_TIME = 64
_PART_BYTES = 4 << 20
_PIECE_BYTES = 32 << 10

Name = Annotated[str, AfterValidator(lambda name: name.replace(SLASH, "/"))]


async def _caller_of(request: Request) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


Calling = Annotated[Caller, Depends(_caller_of)]


class _StrictRequest(Request):
    async def json(self) -> object:
        try:
            return json_of(await self.body())
        except InvalidArgumentError as error:
            raise HTTPException(400, error.message) from None


class _StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


router = APIRouter(route_class=_StrictRoute)


def new_app(callers: Callers) -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(callers.sweep())
        yield
        sweeping.cancel()
        await callers.close()

    error = {"description": "An error: its reason, what it is about, and what would be right.", "model": models.Failed}
    app = FastAPI(
        title="RL Data Plane over HTTP",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": error},
    )
    app.state.callers = callers
    app.include_router(router)
    app.exception_handler(DataPlaneError)(error_answer)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(RequestValidationError)(_invalid)
    return app


# -- partitions --------------------------------------------------------------------------------------------------------


@router.get("/healthz")
async def healthz(request: Request) -> models.Health:
    """Whether the gateway reaches the server. Needs no token."""
    await request.app.state.callers.check()
    return models.Health(status="serving")


@router.get("/v1/partitions")
async def list_partitions(caller: Calling) -> list[PartitionDescription]:
    return await caller.client.partitions(timeout_s=_CALL_S)


@router.get("/v1/partitions/{partition}")
async def describe_partition(partition: Name, caller: Calling) -> PartitionDescription:
    return await caller.client.partition(partition, timeout_s=_CALL_S)


@router.put("/v1/partitions/{partition}")
async def register_partition(partition: Name, body: models.Registration, caller: Calling) -> PartitionDescription:
    given = body.model_dump(exclude={"fields", "tasks", "num_samples"})
    definition = (partition, body.fields, body.num_samples, body.tasks)
    return await caller.client.register_partition(*definition, **given, timeout_s=_CALL_S)


# -- puts and groups ---------------------------------------------------------------------------------------------------


@router.post("/v1/partitions/{partition}/samples")
async def put_samples(partition: Name, body: models.Put, caller: Calling) -> models.Written:
    """Put samples, all of them or none; with a group_id as a new group."""
    name = uuid.uuid4().hex if body.request_id is None else body.request_id
    async with caller.puts.setdefault(name, asyncio.Lock()):
        rows = await _rows_of(caller, partition, body)
        if body.group_id is not None:
            in_group: dict[str, Any] = {"weight_version": body.weight_version, "request_id": name, "timeout_s": _CALL_S}
            created = await caller.client.put_group(partition, body.group_id, **rows, **in_group)
            return models.Written(request_id=name, created_rows=created)
        named: dict[str, Any] = {"create_only": body.create_only, "request_id": name, "timeout_s": _CALL_S}
        outcomes = (await caller.client.put_samples(partition_id=partition, **rows, **named)).outcomes or []
    created, consumed = outcomes.count("created"), outcomes.count("consumed")
    replaced = len(outcomes) - created
    return models.Written(request_id=name, created_rows=created, replaced_rows=replaced, consumed_rows=consumed)


@router.post("/v1/partitions/{partition}/groups")
async def reserve_group(partition: Name, body: models.Reservation, caller: Calling) -> models.Reserved:
    """Reserve a group, hidden until it is finished, and removed when no request names it for lease_s."""
    given = body.model_dump(exclude={"group_id", "sample_ids", "wait_s", "lease_s"})
    with caller.groups.room():
        named = (partition, body.group_id, body.sample_ids)
        group = await caller.client.reserve_group(*named, **given, timeout_s=body.wait_s)
        caller.groups.add(group.reservation_id, group, body.lease_s)
    return models.Reserved(reservation_id=group.reservation_id, lease_s=body.lease_s)


@router.post("/v1/groups/{reservation_id}/samples")
async def put_into_group(reservation_id: str, body: models.Samples, caller: Calling) -> models.Done:
    """Put rows of a reserved group; those that do not exist become rows of it."""
    with caller.groups.using(reservation_id) as hold:
        rows = await _rows_of(caller, hold.handle.meta.partition_id, body)
        return models.Done(rows=(await hold.handle.add(**rows, timeout_s=_CALL_S)).size)


@router.post("/v1/groups/{reservation_id}/fail")
async def fail_samples(reservation_id: str, body: models.Fail, caller: Calling) -> models.Done:
    """Remove rows of a reserved group whose generation failed."""
    with caller.groups.using(reservation_id) as hold:
        return models.Done(rows=await hold.handle.fail(body.sample_ids, body.reason, timeout_s=_CALL_S))


@router.post("/v1/groups/{reservation_id}/keep")
async def keep_group(reservation_id: str, caller: Calling) -> models.Kept:
    with caller.groups.using(reservation_id) as hold:
        return models.Kept(lease_s=hold.lease_s)


@router.post("/v1/groups/{reservation_id}/finish")
async def finish_group(reservation_id: str, body: models.Finish, caller: Calling) -> models.Done:
    """Show the rows of a group to claims, all at once."""
    version = body.weight_version
    return models.Done(
        rows=await caller.groups.end(reservation_id, "finish", lambda group: group.commit(version, timeout_s=_CALL_S))
    )


@router.post("/v1/groups/{reservation_id}/abort")
async def abort_group(reservation_id: str, body: models.Abort, caller: Calling) -> models.Done:
    return models.Done(
        rows=await caller.groups.end(reservation_id, "abort", lambda group: group.abort(body.reason, timeout_s=_CALL_S))
    )


# -- claims ------------------------------------------------------------------------------------------------------------


@router.post("/v1/partitions/{partition}/tasks/{task}/claims")
async def claim_samples(partition: Name, task: Name, body: models.Claim, caller: Calling) -> models.Claimed:
    """Claim rows, which are held until they are committed or released, or no request names them for lease_s."""
    given = body.model_dump(include={"min_size", "whole_groups", "unit", "max_tokens", "where"})
    with caller.claims.room():
        claim = await caller.client.claim(partition, task, body.fields, body.batch_size, **given, timeout_s=body.wait_s)
        caller.claims.add(claim.claim_id, claim, body.lease_s)
    none = [None] * claim.meta.size
    columns = {
        "sample_id": claim.meta.sample_ids,
        "tags": claim.tags,
        "sequence_length": claim.meta.sequence_lengths or none,
        "deliveries": claim.deliveries,
        "group_id": [group.group_id or None for group in claim.groups for _ in range(group.rows)] or none,
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return models.Claimed.model_validate({"claim_id": claim.claim_id, "lease_s": body.lease_s, "samples": rows})


@router.get("/v1/claims/{claim_id}", response_model=models.Rows)
async def read_columns(
    claim_id: str, caller: Calling, field: Annotated[list[str], Query(max_length=models.MAX_FIELDS)]
) -> Response:
    """Read fields of claimed rows; `?field=` names each."""
    with caller.claims.using(claim_id) as hold:
        pieces, size, pause, start, rows = list[str](), 0, 0, 0, 1
        meta: KVBatchMeta = hold.handle.meta
        while start < meta.size:
            part = meta.subset(range(start, min(start + rows, meta.size)))
            columns = await caller.client.read_columns(part, field, layout="jagged", timeout_s=_CALL_S)
            _check_answer(size + 2 * numbers_of(columns))  # each takes a digit and a comma
            for row in json_rows(part.sample_ids, columns):
                pieces.append(", " if pieces else '{"samples": [')
                for piece in row:
                    pieces.append(piece)
                    size += len(piece)
                    if size >= pause:  # others keep their claims meanwhile
                        _check_answer(size)
                        await asyncio.sleep(0)
                        pause = size + _PIECE_BYTES
            start += part.size
            rows = max(1, min(_ROWS_AT_A_TIME, _PART_BYTES * start // size))
        _check_answer(size)
    return Response("".join([*pieces, "]}"]), media_type="application/json")


def _check_answer(size: int) -> None:
    if size > MAX_ANSWER_BYTES:
        message = f"the answer would have more than {MAX_ANSWER_BYTES} bytes; read fewer fields, or claim less"
        raise refused(message, max_answer_bytes=str(MAX_ANSWER_BYTES))


@router.post("/v1/claims/{claim_id}/keep")
async def keep_claim(claim_id: str, caller: Calling) -> models.Kept:
    with caller.claims.using(claim_id) as hold:
        return models.Kept(lease_s=hold.lease_s)


@router.post("/v1/claims/{claim_id}/commit")
async def commit_claim(claim_id: str, body: models.Commit, caller: Calling) -> models.Done:
    """Consume the rows of a claim, and write fields of all of them in the same step."""

    async def commit(claim: AsyncClaim) -> int:
        if body.samples and [sample.sample_id for sample in body.samples] != claim.meta.sample_ids:
            raise refused("samples must be those of the claim, in its order")
        fields = await _fields_of(caller, claim.meta.partition_id, body) if body.samples else None
        return await claim.commit(fields, timeout_s=_CALL_S)

    return models.Done(rows=await caller.claims.end(claim_id, "commit", commit))


@router.post("/v1/claims/{claim_id}/release")
async def release_claim(claim_id: str, body: models.Release, caller: Calling) -> models.Done:
    """Return the rows of a claim to the task."""
    given: dict[str, Any] = {"delay_s": body.delay_s, "reason": body.reason, "timeout_s": _CALL_S}
    return models.Done(rows=await caller.claims.end(claim_id, "release", lambda claim: claim.release(**given)))


# ----------------------------------------------------------------------------------------------------------------------


async def _rows_of(caller: Caller, partition: str, body: models.Samples) -> dict[str, Any]:
    """The rows of a body, as the client's verbs take them."""
    fields = await _fields_of(caller, partition, body)
    version = {} if body.weight_version is None else {"weight_version": body.weight_version}
    tags = [{**version, **dict(sorted(sample.tags.items()))} for sample in body.samples]
    lengths = [sample.sequence_length for sample in body.samples]
    if None in lengths and any(length is not None for length in lengths):
        sample_id = body.samples[lengths.index(None)].sample_id
        raise refused(f"sequence_length: sample {sample_id!r} has none, and others have one", sample_id=sample_id)
    return {
        "sample_ids": [sample.sample_id for sample in body.samples],
        "fields": fields,
        "tags": tags if any(tags) else None,
        "sequence_lengths": lengths if None not in lengths else None,
    }


async def _fields_of(caller: Caller, partition: str, body: models.Samples | models.Commit) -> dict[str, object]:
    """The fields of a body, as the client's verbs take them."""
    described = await caller.client.partition(partition, timeout_s=_CALL_S)
    stored = {field.name: _typed(field, described) for field in described.fields}
    return columns_of(body.samples, stored, body.dtypes)


def _typed(field: FieldDescription, described: PartitionDescription) -> FieldDescription:
    """A field; one without values has the element type that is declared, not that of its last values."""
    if field.rows:
        return field
    dtype = described.dtypes.get(field.name, "")
    return replace(field, dtype=dtype, kind="object" if dtype == "object" else None)


def json_of(body: bytes) -> object:
    """A body as JSON in UTF-8, with finite numbers and no key twice in an object. Raises InvalidArgumentError."""
    try:
        return json.loads(body.decode(), parse_constant=_refuse_number, parse_float=_float, object_pairs_hook=_object)
    except RecursionError:
        raise refused("the body is nested too deeply") from None
    except ValueError as error:
        raise refused(f"the body is not JSON in UTF-8: {error}") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError(f"the key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} is twice in an object")
    return entries


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; numbers must be finite")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        _refuse_number(text)
    return number


async def _http_error(request: Request, error: HTTPException) -> Response:
    headers = {"Allow": error.headers["Allow"]} if error.headers and "Allow" in error.headers else {}
    message = error.detail
    if error.status_code in (404, 405):
        message = f"there is no {request.method} {request.scope['path']}; GET /openapi.json lists what there is"
    return answer_of(error.status_code, "INVALID_REQUEST", message, headers=headers)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    """Names the sample, the key and the rule of the first thing that is wrong."""
    found = error.errors()[0]
    place: Sequence[Any] = found["loc"][1:]
    details, where = {}, ".".join(map(str, place))
    if place[:1] == ("samples",) and len(place) > 1:
        sample = error.body["samples"][place[1]]
        sample_id = sample.get("sample_id") if isinstance(sample, dict) else None
        details = {"sample_id": sample_id} if isinstance(sample_id, str) else {}
        where += f" (sample {sample_id!r})" if details else ""
    limit = found.get("ctx", {}).get("max_length")
    details |= {} if limit is None else {"limit": str(limit)}
    return answer_of(400, "INVALID_REQUEST", f"{where or 'the body'}: {found['msg']}", details)
