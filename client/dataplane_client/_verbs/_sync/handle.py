"""The base of claims and reserved groups: open until this object ends it or the server fences it."""

from __future__ import annotations

import contextlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from dataplane_client._common.reasons import reason_of
from dataplane_client._common.tracebacks import short_tracebacks
from dataplane_client._connect.deadline import Deadline
from dataplane_client._verbs._sync.session import Session
from dataplane_client.errors import (
    ClaimFencedError,
    ClaimNotFoundError,
    DataPlaneError,
    GroupFencedError,
    PreconditionError,
)

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

_DROPPED = "garbage-collected while open"


@short_tracebacks
class Handle(ABC):
    """Rows that the client's session holds. As a context manager it commits on a clean exit; on an exception it gives
    the rows up, with the exception's type and message as the reason. So does its garbage collection while it is open,
    with a ResourceWarning.
    """

    _fenced_error: ClassVar[type[ClaimFencedError | GroupFencedError]]
    _fenced_reason: ClassVar[str]
    _give_up_verb: ClassVar[str]
    _given_up_state: ClassVar[Any]
    _commit_id = ""  # of every commit of this object: one that was not answered is repeated, and takes effect once
    _unanswered: Any = None  # the last request to give rows up, likewise
    _give_up_by: Deadline | None = None  # when a block that failed ends, though the rows are not given up yet

    def __init__(self, session: Session, label: str, *, gives_back: bool = True) -> None:
        self._session = session
        self._label = label  # for errors, such as "claim 7-12"
        self._owner = os.getpid() if gives_back else 0  # the process in which its garbage collection gives the rows up
        self.state: str = "open"

    def __del__(self, getpid: Callable[[], int] = os.getpid, warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "state", "") != "open" or self._owner != getpid() or not self._session.is_open:
            return
        self._session.call_from_finalizer(self._give_up_verb, self._give_up_request(_DROPPED))
        message = f"{self!r} was {_DROPPED}, and its rows are given up: end it, or use it in a with block"
        warn(message, ResourceWarning, source=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state != "open":
            return
        if kind is not None:
            self._give_up_for(kind.__name__ if error is None else reason_of(error))
            return
        try:
            self.commit()
        except BaseException as failure:
            if isinstance(failure, PreconditionError) and self.state == "open":  # such as a group with an empty row
                self._give_up_for(reason_of(failure))
            elif not isinstance(failure, DataPlaneError):  # interrupted; after other errors the caller may commit again
                self._give_up_later(self._give_up_request(reason_of(failure)))
            raise

    def _give_up_for(self, reason: str) -> None:
        request, by = self._give_up_request(reason), self._give_up_by
        try:
            with contextlib.suppress(DataPlaneError):  # the exception that ended the block matters more
                self._give_up(request, None if by is None else by.left_s)
        finally:
            if self.state == "open":
                self._give_up_later(request)

    def _give_up_later(self, request: Any) -> None:
        self._session.call_later(self._give_up_verb, request)
        self.state = self._given_up_state

    @abstractmethod
    def commit(self) -> int: ...

    @abstractmethod
    def _give_up_request(self, reason: str) -> Any: ...

    def _give_up(self, request: Any, timeout_s: float | None) -> Any:
        response = self._give_up_rows(request, timeout_s)
        self.state = self._given_up_state
        return response

    def _give_up_rows(self, request: Any, timeout_s: float | None) -> Any:
        """Give rows up, under the request_id of the last time if that asked for the same and was not answered."""
        last, own_id, self._unanswered = self._unanswered, request.request_id, request
        if last is not None:
            request.request_id = last.request_id
            if request != last:
                request.request_id = own_id
        with self._watch_for_fence():
            response = self._session.transport.unary(self._give_up_verb, request, timeout_s)
        self._unanswered = None
        return response

    def _check_open(self) -> None:
        if self.state == "fenced":
            message = f"{self._label} is not open: the server has fenced it already"
            raise self._fenced_error(message, reason=self._fenced_reason)
        if self.state != "open":
            raise PreconditionError(f"{self._label} is not open: it was {self.state} already")

    @contextlib.contextmanager
    def _watch_for_fence(self) -> Iterator[None]:
        """A block of calls in the name of this handle, one of which may tell that it is fenced, or ended elsewhere."""
        try:
            yield
        except self._fenced_error:
            self.state = "fenced"
            raise
        except ClaimNotFoundError:
            self._owner = 0  # there is nothing to give back
            raise
