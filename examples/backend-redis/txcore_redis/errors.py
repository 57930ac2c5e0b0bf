"""What the driver's errors mean to txcore; no text of them has a password."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from redis import exceptions

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError, NotSentError, TxcoreError
from txcore.records import Status

LINK_ERRORS: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)
"""Errors after which nothing is known of the requests under way on a connection."""
_BEFORE_WRITES: Final = (
    exceptions.AuthenticationError,
    exceptions.BusyLoadingError,
    exceptions.NoPermissionError,
    exceptions.NoScriptError,
    exceptions.ReadOnlyError,
)
_WORDS_BEFORE_WRITES: Final = ("BUSY", "MASTERDOWN", "MISCONF", "NOAUTH", "NOREPLICAS")


class Failure(NamedTuple):
    """The answer to a command that failed: REFUSED if it certainly had no effect, else UNKNOWN."""

    status: Status
    error: TxcoreError


def failure_of(error: Exception) -> Failure:
    """Return the meaning of an error that the server answered."""
    if isinstance(error, exceptions.OutOfMemoryError):
        text = f"the server has reached its maxmemory, nothing was stored; make room first: {error}"
        return Failure(Status.REFUSED, NotSentError(text))
    if isinstance(error, _BEFORE_WRITES) or str(error).startswith(_WORDS_BEFORE_WRITES):
        return Failure(Status.REFUSED, unreachable(error))
    return Failure(Status.UNKNOWN, BackendUnavailableError(f"the server answered an error: {error}"))


def unreachable(error: Exception) -> TxcoreError:
    """Return the error of a request that was not sent, or that the server refused."""
    return BackendUnavailableError(f"Redis takes no request, nothing was stored: {error}")


def lost(error: Exception) -> Failure:
    """Return the answer to requests whose connection broke, or was silent for too long, while they were under way."""
    return Failure(Status.UNKNOWN, BackendTimeoutError(f"Redis gave no certain answer: {error}"))


def unknown_group(group: str, partition: int) -> ConfigError:
    """Return the error about a group, or a partition of it, that does not exist."""
    return ConfigError(f"group {group!r} has no partition {partition} here; call ensure_group first", key="group")


def require_group(answer: list[Any], group: str, partition: int) -> list[Any]:
    """Return a script's answer, unless it is that the partition does not exist; raises ConfigError."""
    if answer[0] == b"group":
        raise unknown_group(group, partition)
    return answer
