"""`with` and `async with` for the objects that are open for a time: backends, checkers and relays.

One rule for all of them, and for the producers: `with` in blocking code, `async with` in a coroutine. Both open and
close the same things in the same order; `async with` does not block the event loop. An error of closing is raised,
unless the block itself has raised one: then it becomes a note on that error, which is never hidden.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, Self

from txcore.errors import BackendTimeoutError

CLOSE_TIMEOUT_S: Final = 10.0
"""Seconds within which a backend or a producer closes at the end of its block."""
CLOSE_SPARE_S: Final = 5.0
"""Further seconds after which the end of the block gives a backend's closing up."""


class ClosedAtExit(ABC):
    """`with` and `async with` of a backend: its block ends with `close`, and waits for it."""

    @abstractmethod
    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> Future[None]:
        """See `Backend.close`."""

    def __enter__(self) -> Self:
        """Return this object, which is open already."""
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Close, and wait until it is closed.

        Raises:
            BackendTimeoutError: it was not closed within 15 s; any other error is that of the closing.
        """
        with _noted_on(error), _in_time():
            self.close(CLOSE_TIMEOUT_S).result(CLOSE_TIMEOUT_S + CLOSE_SPARE_S)

    async def __aenter__(self) -> Self:
        """Return this object, which is open already."""
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Close as `__exit__` does, without blocking the event loop. A cancelled wait does not end the closing."""
        with _noted_on(error), _in_time():
            closing = asyncio.wrap_future(self.close(CLOSE_TIMEOUT_S))
            await asyncio.wait_for(closing, CLOSE_TIMEOUT_S + CLOSE_SPARE_S)


class RunningInside(ABC):
    """`with` and `async with` of a checker or relay: it runs in a thread inside the block."""

    @abstractmethod
    def start(self) -> None:
        """Start the thread."""

    @abstractmethod
    def stop(self, timeout_s: float = ...) -> bool | None:
        """End the thread; returns False if it still runs."""

    def __enter__(self) -> Self:
        """Start; raises what `start` raises."""
        self.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Stop, and wait for it.

        Raises:
            BackendTimeoutError: its thread still runs after the timeout of `stop`.
        """
        with _noted_on(error):
            self._end()

    async def __aenter__(self) -> Self:
        """Start in a thread, as this may wait for the broker. A cancelled start is undone."""
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait((starting,))
            if not starting.cancelled() and starting.exception() is None:
                await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Stop as `__exit__` does, without blocking the event loop, which may have calls to answer until then."""
        with _noted_on(error):
            await asyncio.to_thread(self._end)

    def _end(self) -> None:
        if self.stop() is False:
            name = type(self).__name__.lower()
            raise BackendTimeoutError(f"the {name} has not stopped in time; it ends after the call that it waits for")


@contextmanager
def _noted_on(error: BaseException | None) -> Iterator[None]:
    """Raise a failure of closing; as a note on *error*, if the block has raised that."""
    try:
        yield
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"closing failed, too: {failure!r}")


@contextmanager
def _in_time() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        limit_s = CLOSE_TIMEOUT_S + CLOSE_SPARE_S
        raise BackendTimeoutError(
            f"the backend was not closed within {limit_s:g} s; a checker finishes the transactions that are left open"
        ) from None
