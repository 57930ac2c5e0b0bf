"""One transaction, found by a whole or shortened id, and what the fence says of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txcore.errors import TxcoreError, UsageError
from txcore.journey import Journey
from txcore.operating import choosing, telling
from txcore.operator import Operator

if TYPE_CHECKING:
    from txcore.fence import FenceReading
    from txcore.sqlfence import FenceRow


@dataclass(frozen=True, slots=True)
class Asked:
    """What the database says: the fence's reading and its row, where it was asked and has one."""

    reading: FenceReading | None = None
    row: FenceRow | None = None
    trouble: str = ""


def find(operator: Operator, group: str, wanted: choosing.Wanted) -> Journey:
    """Return the one transaction that is meant: looked for in what is open first, then in everything.

    Raises:
        UsageError: there is none, or there are several.
    """
    if wanted.is_whole:
        return operator.show(bytes.fromhex(wanted.digits))
    with closing(operator.search(wanted.matches, from_checkpoint=True)) as survey:
        found = {each.transaction_id: each for each in survey.journeys()}
    identity = choosing.the_one(wanted, found)
    if identity is None or not found[identity].has_beginning:
        with closing(operator.search(wanted.matches)) as survey:
            found = {each.transaction_id: each for each in survey.journeys()}
        identity = choosing.the_one(wanted, found)
    if identity is None:
        raise UsageError(f"group {group!r} knows no transaction {wanted.text!r}")
    return found[identity]


def ask_fence(fence: Any, journey: Journey) -> Asked:
    """Ask the fence about a transaction without leaving a tombstone.

    Args:
        fence: Has `peek` and `rows`, as `SqlFence`; None where there is none.
    """
    half = telling.any_half(journey)
    if fence is None or half is None or not half.asks_fence:
        return Asked()
    identity = journey.transaction_id
    reading = fence.peek([identity])[identity]
    try:
        return Asked(reading, fence.rows([identity]).get(identity))
    except TxcoreError as error:
        return Asked(reading, None, str(error))
