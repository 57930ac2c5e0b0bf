"""The rules of delayed messages, switched off one by one."""

from __future__ import annotations

from unittest import mock

from mutant import Mutant

TESTS = "tests/fence/test_later.py::"


def never_wait():
    """Turn every row at once."""
    from txcore.sqlfence import later  # noqa: PLC0415 - it needs SQLAlchemy

    return mock.patch.multiple(later, NOW_MS=later.NOW_MS | {"sqlite": "9e15"}, now_ms=lambda *_: 1)


def statement_without(part):
    """Return a patch under which the statements of `later` lack *part*."""

    def patch():
        from txcore.sqlfence import later  # noqa: PLC0415 - it needs SQLAlchemy

        class Border:
            def __init__(self, border):
                self._border = border

            def __getattr__(self, name):
                return getattr(self._border, name)

            def rows(self, sql, values):
                return self._border.rows(sql.replace(part, ""), values)

        turn, cancel = later.turn, later.cancel
        return mock.patch.multiple(
            later,
            turn=lambda dialect, border, *rest: turn(dialect, Border(border), *rest),
            cancel=lambda dialect, border, *rest: cancel(dialect, Border(border), *rest),
        )

    return patch


MUTANTS = [
    Mutant(
        "turned-before-due",
        "A row is turned when it is due by the database's clock.",
        never_wait,
        TESTS + "test_delayed_message_waits_until_it_is_due_in_every_mode[sqlite-half]",
    ),
    Mutant(
        "turn-waits-for-cancel",
        "A transaction that turns rows passes over those that a cancel has locked.",
        statement_without(" SKIP LOCKED"),
        TESTS + "test_relay_passes_over_what_an_open_cancel_holds[postgresql]",
    ),
    Mutant(
        "cancel-without-lock",
        "A cancel locks the rows until its transaction ends.",
        statement_without(" FOR UPDATE"),
        TESTS + "test_cancel_waits_for_a_turn_that_is_under_way[postgresql]",
    ),
]
