"""A process that dies in a test: no more of its code runs, and its database connection is gone.

The step is found in the drivers of flows, so this works for every producer on the kit's broker, blocking or asyncio.
The first transaction that comes to the step dies. `send_many` has a driver of its own and is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from txcore.errors import ConfigError
from txcore.memory import MemoryBroker
from txcore.op_rules import outcome_of
from txcore.records import HalfRecord, OpKind, Outcome, Resolution, Status
from txcore.runtime import drivers
from txcore.runtime.commands import Call, Timed

Step = Literal["half", "database commit", "publish"]
"""A step of a transaction: its half is stored; its database transaction commits; its messages are published."""
_STEPS = ("half", "database commit", "publish")


class ProcessDied(BaseException):
    """Ends the code of the process that a test lets die; `except Exception` does not catch it."""


class Death:
    """Waits for its step, and ends the process there: everything later that would reach the broker is refused.

    Args:
        step: One of `Step`.
        is_before: Whether the process dies before the step, or after it.
    """

    def __init__(self, step: Step, *, is_before: bool) -> None:
        if step not in _STEPS:
            raise ConfigError(f"a step is one of {', '.join(map(repr, _STEPS))}, not {step!r}", key="step")
        self._is_at = _BEFORE[step] if is_before else _AFTER[step]
        self._place = f"{'before' if is_before else 'after'} {step!r}"
        self.has_come = False

    def before(self, command: Any) -> Any:
        """Return the command to carry out for *command*, or die."""
        if self.has_come and isinstance(command, HalfRecord | Timed | Resolution):
            self.die()
        if self._is_at("before", command, None):
            self.die()
        if self._is_at("instead", command, None):
            # The targets go out, and the op that says so does not.
            return msgspec.structs.replace(command, op=None)
        return command

    def after(self, command: Any, value: Any) -> None:
        """Die if the step was *command*, with the result *value*."""
        if self._is_at("after", command, value) or self._is_at("instead", command, value):
            self.die()

    def die(self) -> None:
        """Raise ProcessDied."""
        self.has_come = True
        raise ProcessDied(f"the process died {self._place}, as the test says")


def _keeps_messages(command: Any) -> bool:
    """Return whether *command* stores the messages before the database's commit: a half, or rows in its table."""
    if isinstance(command, Call):
        name, rows = getattr(command.function, "__name__", ""), command.args[3:4]
        return name == "enqueue" or (name == "insert" and bool(rows and rows[0]))
    return isinstance(command, HalfRecord | Timed)


def _is_kept(moment: str, command: Any, value: Any) -> bool:
    is_certain = not isinstance(value, Outcome) or value.status is Status.DURABLE
    return moment == "after" and _keeps_messages(command) and is_certain


def _is_committed(moment: str, command: Any, _: Any) -> bool:
    """Return whether the database has committed, and nothing was published.

    In the database style its COMMIT was a command; in the others the producer now looks at the row, or publishes.
    """
    if isinstance(command, Call):
        return getattr(command.function, "__name__", "") == {"before": "settled", "after": "commit"}.get(moment)
    return _is_publishing(moment, command, None)


def _is_publishing(moment: str, command: Any, _: Any) -> bool:
    return moment == "before" and _commits(command)


def _commits(command: Any) -> bool:
    return isinstance(command, Resolution) and command.op is not None and outcome_of(command.op.kind) == OpKind.COMMIT


_BEFORE: dict[str, Callable[[str, Any, Any], bool]] = {
    "half": lambda moment, command, _: moment == "before" and _keeps_messages(command),
    "database commit": _is_kept,
    "publish": _is_publishing,
}
_AFTER: dict[str, Callable[[str, Any, Any], bool]] = {
    "half": _is_kept,
    "database commit": _is_committed,
    "publish": lambda moment, command, _: moment == "instead" and _commits(command),
}


@contextmanager
def dying(broker: MemoryBroker, death: Death) -> Iterator[None]:
    """Let the process die inside the block, at the step of *death*; the end of the process ends the block.

    Raises:
        AssertionError: no transaction came to the step.
    """
    carry_out, carry_out_async = drivers._carry_out, drivers._carry_out_async  # noqa: SLF001 - instrumentation

    def watched(command: Any, caller: Any) -> Any:
        if getattr(caller.bridge.backend, "broker", None) is not broker:
            return carry_out(command, caller)
        value = carry_out(death.before(command), caller)
        death.after(command, value)
        return value

    async def watched_async(command: Any, bridge: Any) -> Any:
        if getattr(bridge._backend, "broker", None) is not broker:  # noqa: SLF001
            return await carry_out_async(command, bridge)
        value = await carry_out_async(death.before(command), bridge)
        death.after(command, value)
        return value

    drivers._carry_out, drivers._carry_out_async = watched, watched_async  # noqa: SLF001
    try:
        yield
    except ProcessDied:
        pass
    finally:
        drivers._carry_out, drivers._carry_out_async = carry_out, carry_out_async  # noqa: SLF001
    if not death.has_come:
        raise AssertionError(
            f"the process did not die {death._place}: no transaction on this kit's broker came there inside the block"  # noqa: SLF001
        )
