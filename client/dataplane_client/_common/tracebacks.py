"""Short tracebacks: a refused verb shows the frame of its caller and one or two of this package.

The frames between a verb and the place that finds an error tell callers nothing that the message does not say. Only an
InternalError keeps them: it reports a defect.

Where a message begins with the name of an RPC, as in logs and metrics, callers see the verb that they called instead.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

from dataplane_client.errors import DataPlaneError, InternalError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_SPECIAL = {"__aenter__", "__aexit__", "__enter__", "__exit__", "__next__"}
_RPC = re.compile(r"\A(?!Session )[A-Z]\w+ at ")  # a session is opened for many calls, which share its error
_OWNER = re.compile(r"\A(Async|\w+Verbs\.)")  # what a name lacks: put_samples, claim.write


def short_traceback(verb: F) -> F:
    """The verb, a function or coroutine function, with short tracebacks of its errors."""
    called = _awaited(verb) if inspect.iscoroutinefunction(verb) else _called(verb)
    return cast("F", functools.wraps(verb)(called))


def short_tracebacks(kind: type[T]) -> type[T]:
    """Decorate a class: its public methods have short tracebacks."""
    for name, value in list(vars(kind).items()):
        is_verb = inspect.isfunction(value) and not hasattr(value, "__wrapped__")
        if is_verb and (not name.startswith("_") or name in _SPECIAL):
            setattr(kind, name, short_traceback(value))
    return kind


def _awaited(verb: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await verb(*args, **kwargs)
        except DataPlaneError as error:
            raise _for_callers(error, verb) from error.__cause__

    return call


def _called(verb: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        except DataPlaneError as error:
            raise _for_callers(error, verb) from error.__cause__

    return call


def _for_callers(error: DataPlaneError, verb: Callable[..., Any]) -> DataPlaneError:
    if verb.__name__ not in _SPECIAL:
        name = _OWNER.sub("", verb.__qualname__).lower()
        error.message = _RPC.sub(f"{name} at ", error.message)
        error.args = (error.message,)
    return error if isinstance(error, InternalError) else error.with_traceback(None)
