"""A Python listener by its name, `module:attribute`: imported from the installed packages or the working directory."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from txcore.clock import Clock
from txcore.errors import ConfigError
from txcore.listener import CheckListener, HalfView

METHOD = "check_local_transaction"


def load_listeners(name: str) -> tuple[CheckListener, ...]:
    """Import `module:attribute`: a listener, its class (made without arguments), or a list of them.

    Raises:
        ConfigError: it cannot be imported or made, or has no `check_local_transaction`.
    """
    module_name, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module may raise any exception
        raise ConfigError(f"{name} cannot be imported: {_text_of(error)}", key="listener") from error
    each = found if isinstance(found, Sequence) and not isinstance(found, str) else (found,)
    if not each:
        raise ConfigError(f"{name} is empty", key="listener")
    return tuple(_listener(name, one) for one in each)


def is_asynchronous(listener: CheckListener) -> bool:
    """Return whether the listener needs an event loop."""
    return inspect.iscoroutinefunction(listener.check_local_transaction)


def _listener(name: str, found: Any) -> CheckListener:
    if inspect.isclass(found):
        try:
            found = found()
        except Exception as error:  # the user's own code
            raise ConfigError(f"{name} cannot be made without arguments: {_text_of(error)}", key="listener") from error
    if not callable(getattr(found, METHOD, None)):
        raise ConfigError(f"{name} is of type {type(found).__name__} and has no {METHOD}(half)", key="listener")
    listener: CheckListener = found
    return listener


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class TimedListener:
    """A listener whose answers are timed; a call that raises is no answer, and is not timed."""

    def __init__(self, listener: CheckListener, clock: Clock, observe: Callable[[float], None]) -> None:
        self.topics = getattr(listener, "topics", None)
        self._listener = listener
        self._clock = clock
        self._observe = observe

    def check_local_transaction(self, half: HalfView) -> Any:
        """See `CheckListener.check_local_transaction`."""
        began_s = self._clock.elapsed_s()
        answer = self._listener.check_local_transaction(half)
        if inspect.iscoroutine(answer):
            return self._wait(answer, began_s)
        self._observe(self._clock.elapsed_s() - began_s)
        return answer

    async def _wait(self, answer: Coroutine[Any, Any, Any], began_s: float) -> Any:
        value = await answer
        self._observe(self._clock.elapsed_s() - began_s)
        return value
