"""The checks of a producer's arguments that depend on each other; each mistake is one sentence."""

from __future__ import annotations

from txcore.errors import ConfigError
from txcore.fence import AnyFence
from txcore.message_table import Mode, ModeName


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


def require_fence_kind(producer: str, fence: AnyFence | None, *, is_async: bool) -> None:
    """Refuse a fence of the other kind than the *producer*, the name of a class.

    Raises:
        ConfigError: it is of the other kind.
    """
    if fence is not None and fence.is_async is not is_async:
        needed = "AsyncSqlFence, on an AsyncEngine" if is_async else "SqlFence, on a blocking Engine"
        raise ConfigError(f"{producer} needs {needed}; this is {type(fence).__name__}", key="fence")
