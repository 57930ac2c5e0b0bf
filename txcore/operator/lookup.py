"""One transaction, found by a whole or shortened id, and the fence's answer for it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txcore.errors import TxcoreError, UsageError
from txcore.fence import FenceAnswer
from txcore.history.journey import Journey
from txcore.ids import TransactionId
from txcore.operator import selection
from txcore.operator.operator import Operator

if TYPE_CHECKING:
    from txcore.fence import FenceReading
    from txcore.sqlfence import FenceRow, SqlFence


@dataclass(frozen=True, slots=True)
class Asked:
    """The database's answer: the fence's reading and its row, where it was asked and has one."""

    reading: FenceReading | None = None
    row: FenceRow | None = None
    trouble: str = ""


def find(operator: Operator, group: str, wanted: selection.Wanted) -> Journey:
    """Return the one transaction with that id: searched first in the open ones, then in all.

    Raises:
        UsageError: no transaction matches, or several do.
    """
    if wanted.is_whole:
        return operator.show(TransactionId.parse(wanted.digits))
    for from_checkpoint in (True, False):
        with closing(operator.search(wanted.matches, from_checkpoint=from_checkpoint)) as survey:
            found: dict[bytes, Journey] = {each.transaction_id: each for each in survey.journeys()}
        identity = selection.the_one(wanted, found)
        if identity is not None and (found[identity].has_beginning or not from_checkpoint):
            return found[identity]
    raise UsageError(f"group {group!r} knows no transaction {wanted.text!r}")


def ask_fence(fence: SqlFence | None, journey: Journey) -> Asked:
    """Ask the fence, if there is one, about a transaction without leaving a tombstone."""
    half = journey.any_half
    if fence is None or half is None or not half.asks_fence:
        return Asked()
    identity = journey.transaction_id
    reading = fence.peek([identity])[identity]
    if reading.answer is FenceAnswer.NO_ANSWER and not reading.is_foreign:
        return Asked(reading)  # the row would be asked for in vain
    try:
        return Asked(reading, fence.rows([identity]).get(identity))
    except TxcoreError as error:
        return Asked(reading, None, str(error))
