"""The error tree: every error says what happened to the message and what to do next.

TxcoreError
├── UsageError                    a developer's or operator's mistake; nothing was sent
│   ├── ConfigError               a key or value of the configuration
│   ├── MessageRejectedError      a message no backend may take (reserved header, delay, oversize, topic)
│   ├── TransactionStateError     a handle used in the wrong state
│   ├── FenceMisuseError          autocommit, savepoint, foreign or ended transaction
│   ├── WrongDatabaseError        the fence uses another database than the one that decides
│   ├── InMessageTableError       the message table holds the messages; only its relay can hold them up
│   ├── UnknownSchemeError        no backend answers to the URL's scheme
│   ├── BackendNotInstalledError  the backend's driver is missing
│   ├── BackendConflictError      two distributions offer one scheme
│   └── ClosedError               used after close()
├── NotSentError                  certain: nothing was sent and nothing will be sent
│   ├── HalfRefusedError          the broker refused the half
│   ├── FencedError               the fence row could not be written: the id is already decided
│   ├── BusyError                 too much in flight; the caller was held back and gave up
│   └── NotJoinedError            a producer's broker did not answer at the start
├── OutcomeUnknownError           the effect is uncertain; the check decides, never the caller
│   ├── HalfUnknownError          no certain answer to the half; the local transaction must not commit
│   ├── CommitUnknownError        the database's commit failed in an unknown way
│   └── BackendTimeoutError       no answer from the backend in time
├── BackendUnavailableError       the backend cannot be reached
├── CheckPostponedError           a listener cannot answer now; it names a time to ask again
├── InboxHorizonError             a message older than the inbox remembers; it was not recorded
├── DataLossError                 a log no longer holds the requested start
└── WireFormatError               bytes that are not a txcore record
    ├── NewerRecordError          a record that a newer txcore wrote and this one cannot judge
    └── UnsignedRecordError       a record that no process with the group's keys has written
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from txcore.ids import TransactionId


class TxcoreError(Exception):
    """Base of every error that txcore raises itself."""


def sentence_of(error: BaseException) -> str:
    """Return an error for people: the sentence of an error of txcore, or the type and text of any other."""
    return str(error) if isinstance(error, TxcoreError) and str(error) else repr(error)


class UsageError(TxcoreError):
    """A mistake by the caller; nothing was sent."""


class ConfigError(UsageError):
    """A setting is unknown, of the wrong unit or out of range; `key` names it."""

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class MessageRejectedError(UsageError):
    """A message was refused before anything ran; `topic` is its target, `reason` the rule it breaks."""

    def __init__(self, message: str, *, topic: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.topic = topic
        self.reason = reason


class TransactionStateError(UsageError):
    """A transaction handle was used in a state that does not allow the call."""


class FenceMisuseError(UsageError):
    """The connection given to the fence cannot carry it; the transaction was rolled back or never touched."""


class WrongDatabaseError(UsageError):
    """The fence uses another database than the one in which the transaction was fenced; nothing was written."""


class InMessageTableError(UsageError):
    """The transaction's messages are in the message table, whose relay delivers them; nothing was written."""


class UnknownSchemeError(UsageError):
    """No installed backend has this scheme; `known` lists the schemes of those that are installed."""

    def __init__(self, scheme: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"unknown backend {scheme!r}; known backends: {', '.join(known) or 'none'}; a URL begins with one and ://"
        )
        self.scheme = scheme
        self.known = known


class BackendNotInstalledError(UsageError):
    """The driver of a known backend is not installed; the text says what to install.

    Attributes:
        extra: The extra of txcore that brings it; "" for a backend that is not part of txcore.
    """

    def __init__(self, name: str, driver: str, extra: str) -> None:
        wanted = f'"txcore[{extra}]"' if extra else f'"{driver}"'
        super().__init__(f"{name!r} needs {driver}; install it with: pip install {wanted}")
        self.name = name
        self.driver = driver
        self.extra = extra


class BackendConflictError(UsageError):
    """Two distributions offer one scheme; the text names both, and one of them must be uninstalled."""

    def __init__(self, scheme: str, distributions: tuple[str, ...]) -> None:
        super().__init__(f"backend {scheme!r} is offered by {' and '.join(distributions)}; uninstall one of them")
        self.scheme = scheme
        self.distributions = distributions


class ClosedError(UsageError):
    """The object was used after its close()."""


class NotSentError(TxcoreError):
    """Nothing was sent, and txcore did not commit the local transaction; both are certain. Try again with a new one."""

    def __init__(self, message: str, *, transaction_id: TransactionId | None = None, topic: str = "") -> None:
        super().__init__(message)
        self.transaction_id = transaction_id
        self.topic = topic


class HalfRefusedError(NotSentError):
    """The broker certainly did not store the half."""


class FencedError(NotSentError):
    """The fence row was refused: the id was decided by a check, prepared twice, or lies below the horizon."""


class BusyError(NotSentError):
    """Too many transactions are in flight, so this one was not begun or not prepared; slow down and try again.

    Begun work is not refused: a block ends, and `commit` and `rollback` continue, at any number of transactions.
    """


class OutcomeUnknownError(TxcoreError):
    """The operation may or may not have taken effect. The check decides; the caller must assume neither."""

    def __init__(self, message: str, *, transaction_id: TransactionId | None = None) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class HalfUnknownError(OutcomeUnknownError):
    """The half may be stored. The local transaction was not committed, so the check will roll it back."""


class CommitUnknownError(OutcomeUnknownError):
    """The database's commit ended with an error and may have applied. The check decides, and delivers if it did."""


class BackendTimeoutError(OutcomeUnknownError):
    """The backend did not answer in time."""


class BackendUnavailableError(TxcoreError):
    """The backend cannot be reached; the outcome of operations in progress is unknown."""


class NotJoinedError(NotSentError, BackendUnavailableError):
    """The broker did not answer where a producer was made, or an asynchronous one first used; nothing was begun."""


class CheckPostponedError(TxcoreError):
    """A listener raises this when it cannot answer for `retry_after_s` seconds; nothing is counted (R10).

    A listener that raises it for every half keeps the checker from asking about each of them in vain.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InboxHorizonError(TxcoreError):
    """A message is older than the inbox remembers: it may have been recorded before, and was not recorded now.

    The caller's transaction records nothing of it, whether it rolls back or commits. A person, or the effect's own
    table, may know the answer.
    """

    def __init__(self, message: str, *, transaction_id: TransactionId | None = None) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class DataLossError(TxcoreError):
    """A log no longer holds the requested start position.

    `first` is the log's first position now, or None when no record is left.
    """

    def __init__(self, asked: int, first: int | None) -> None:
        super().__init__(f"the log was asked for position {asked} but now begins at {first}: records are gone")
        self.asked = asked
        self.first = first


class WireFormatError(TxcoreError):
    """Bytes in a txcore log are not a record this version can read."""


class NewerRecordError(WireFormatError):
    """A record was written by a newer txcore, and this one would judge it wrongly; an upgraded txcore reads it.

    The record stays in the log. Fields that all versions share are known; they are None, -1 or empty if missing.

    Attributes:
        version: The record's wire version; that of this txcore when only an op's kind is unknown.
        transaction_id: Of a half or a parked record.
        group: Of a half.
        partition: Of a half.
        generation: Of a half or a parked record.
    """

    def __init__(
        self,
        message: str,
        *,
        version: int,
        transaction_id: TransactionId | None = None,
        group: str = "",
        partition: int = -1,
        generation: int = -1,
    ) -> None:
        super().__init__(message)
        self.version = version
        self.transaction_id = transaction_id
        self.group = group
        self.partition = partition
        self.generation = generation


class UnsignedRecordError(WireFormatError):
    """A record of a group that signs has no signature, or a wrong one; `body` has its bytes as they are in the log."""

    def __init__(self, message: str, *, body: bytes) -> None:
        super().__init__(message)
        self.body = body


FULL: Final = "full"
"""The `reason` of a MessageRejectedError for lack of room: the message itself is valid."""


def is_outage(error: BaseException) -> bool:
    """Return whether the broker was down, slow or full, so that message, settings and caller are not at fault."""
    if isinstance(error, MessageRejectedError):
        return error.reason == FULL
    return not isinstance(error, UsageError) and not isinstance(error.__cause__, UsageError)
