"""The bound of a relay's transactions: a frozen relay must not keep what other relays, or a cancel, wait for."""

from __future__ import annotations

from txcore.sqlfence.border import MYSQL, POSTGRESQL, Border


def bound(border: Border, hold_s: float) -> str:
    """Let the server end this transaction, and its connection, when nothing is sent in it for *hold_s*.

    Returns the assignment that restores the connection's own setting, for a statement SET; "" for none. SQLite has no
    such bound.
    """
    if border.family == POSTGRESQL:
        milliseconds = round(hold_s * 1000)
        border.rows(f"SELECT set_config('idle_in_transaction_session_timeout', '{milliseconds}', true)", {})
    elif border.family == MYSQL:
        seconds = max(round(hold_s), 1)
        border.change(f"SET @txcore_wait = @@SESSION.wait_timeout, SESSION wait_timeout = {seconds}", {})
        return "SESSION wait_timeout = @txcore_wait"
    return ""
