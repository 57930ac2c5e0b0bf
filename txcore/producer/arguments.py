"""The checks of a producer's arguments that depend on each other; each mistake is one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from txcore import arguments, ranges
from txcore.errors import ConfigError
from txcore.fence import AnyFence
from txcore.message_table import Mode, ModeName
from txcore.records import ReleaseBy

ReleaseName = Literal["producer", "owner"]
"""Name of a `ReleaseBy`."""
HALF_DEADLINE_MIN_S: Final = 0.001
HALF_DEADLINE_MAX_S: Final = 60.0


def mode_of(mode: ModeName, fence: AnyFence | None) -> Mode:
    """Return the mode of that name.

    Raises:
        ConfigError: there is none, or it needs a fence.
    """
    try:
        chosen = Mode(mode)
    except ValueError:
        raise ConfigError(f"mode is one of {', '.join(Mode)}, not {mode!r}", key="mode") from None
    if chosen is not Mode.HALF and fence is None:
        raise ConfigError(f"mode {mode!r} needs a fence: the message table is in its database", key="mode")
    return chosen


def release_of(release: ReleaseName) -> ReleaseBy:
    """Return the process that releases, by this name.

    Raises:
        ConfigError: it is no such name.
    """
    known = {each.name.lower(): each for each in ReleaseBy}
    if not isinstance(release, str) or release not in known:
        raise ConfigError(f"release is one of {', '.join(known)}, not {release!r}", key="release")
    return known[release]


def require_half_deadline(half_deadline_s: object) -> None:
    """Require a time that an open database transaction may wait for its half's ack.

    Raises:
        ConfigError: it is no number of seconds, or out of range.
    """
    ranges.require("half_deadline_s", half_deadline_s, float, HALF_DEADLINE_MIN_S, HALF_DEADLINE_MAX_S)


def require_kinds(
    producer: str, listener: object, listener_type: type, fence: AnyFence | None, *, is_async: bool
) -> None:
    """Refuse a listener that is none, or a fence of the other kind than the *producer*, the name of a class.

    Raises:
        ConfigError: there is one.
    """
    if listener is not None:
        arguments.require_listener(listener, listener_type, producer)
    if fence is not None and fence.is_async is not is_async:
        needed = "AsyncSqlFence, on an AsyncEngine" if is_async else "SqlFence, on a blocking Engine"
        raise ConfigError(f"{producer} needs {needed}; this is {type(fence).__name__}", key="fence")


class BlockOnly:
    """What `producer.transaction(…)` returns: it has nothing of a transaction before its block is entered."""

    if not TYPE_CHECKING:  # a type checker reports the name itself

        def __getattr__(self, name: str) -> Any:
            """Say which word is missing, where Python names a class that its reader has never seen."""
            word = "async with" if hasattr(type(self), "__aenter__") else "with"
            raise AttributeError(
                f"producer.transaction(…) has no {name!r} before its block is entered: write "
                f"`{word} producer.transaction(…) as tx:` and use tx; nothing was begun",
                name=name,
                obj=self,
            )
