"""Runs the functions of an application within the span of the epoch that they are called with."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from epochal.client.subscriber.values import Epoch

P = ParamSpec("P")
R = TypeVar("R")


def traced(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function, or a coroutine function, run within `Epoch.processing()` of the epoch that it is called with.

    The first argument that is an `Epoch` counts; called with none, an `EpochAborted` for one, it runs as it is.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            epoch = _epoch_among(args, kwargs)
            if epoch is None:
                return await function(*args, **kwargs)
            with epoch.processing():
                return await function(*args, **kwargs)

        return awaited  # type: ignore[return-value]  # a coroutine function again

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        epoch = _epoch_among(args, kwargs)
        if epoch is None:
            return function(*args, **kwargs)
        with epoch.processing():
            return function(*args, **kwargs)

    return called


def _epoch_among(args: Iterable[Any], kwargs: dict[str, Any]) -> Epoch | None:
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Epoch)), None)
