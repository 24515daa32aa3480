"""What callers were told, for callers that ask again.

A caller whose connection broke repeats its call with the same request_id. If the first attempt was applied, the
answer is repeated and nothing else happens. Answers are kept for a time and up to a number; a caller retries within
its own deadline, which is far shorter.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dataplane_server.core.limits import Limits
from dataplane_server.core.refusal import Reason, Refusal

MAX_REQUEST_ID_BYTES = 64


@dataclass(frozen=True, slots=True)
class _Answer:
    verb: str
    value: object
    at: float


class Answers:
    """Answers by request_id. `now` is monotonic, in seconds."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def recall(self, request_id: str, verb: str, now: float) -> object | None:
        """The answer given to this call before, or None. Refusal when the id is malformed or was another call's."""
        if not 1 <= len(request_id.encode()) <= MAX_REQUEST_ID_BYTES:
            message = f"request_id must have 1 to {MAX_REQUEST_ID_BYTES} bytes, got {len(request_id.encode())}"
            raise Refusal(Reason.INVALID_REQUEST, message)
        self._expire(now)
        answer = self._answers.get(request_id)
        if answer is None:
            return None
        if answer.verb != verb:
            message = f"request_id {request_id!r} was used for {answer.verb} and cannot be used for {verb}"
            raise Refusal(Reason.INVALID_REQUEST, message, request_id=request_id)
        return answer.value

    def remember(self, request_id: str, verb: str, value: object, now: float) -> None:
        self._answers.pop(request_id, None)  # an answer that changes is as old as its change
        self._answers[request_id] = _Answer(verb, value, now)
        if len(self._answers) > self._limits.remembered_requests:
            self._answers.popitem(last=False)

    def _expire(self, now: float) -> None:
        while self._answers and next(iter(self._answers.values())).at < now - self._limits.remember_s:
            self._answers.popitem(last=False)
