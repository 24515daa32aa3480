"""Short tracebacks: a refused verb shows the frame of its caller and one or two of this package.

The frames between a verb and the place that finds an error tell callers nothing that the message does not say. Only an
InternalError keeps them: it reports a defect.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from dataplane_client.errors import DataPlaneError, InternalError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_SPECIAL = {"__aenter__", "__aexit__", "__enter__", "__exit__", "__next__"}


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
            raise _without_frames(error) from error.__cause__

    return call


def _called(verb: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        except DataPlaneError as error:
            raise _without_frames(error) from error.__cause__

    return call


def _without_frames(error: DataPlaneError) -> DataPlaneError:
    return error if isinstance(error, InternalError) else error.with_traceback(None)
