"""What to change in the user's program, from the lines of the steps at which its transaction broke."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from txcore_conformance.user_lines import Line

if TYPE_CHECKING:  # it makes the texts
    from txcore_conformance.scenario_crash import Finding

UNKILLED: Final = "no kill"
TOGETHER: Final = (
    "Do both in one transaction: write the record with tx.connection inside `with producer.transaction(engine) as "
    "tx:`, and call tx.publish there."
)
NAMES: Final = "let `committed` and `announced` of the scenario give a record and its message the same name"


def advice(findings: Sequence[Finding], steps: Mapping[str, Line]) -> list[str]:
    """Return what to change, once for each kind of finding.

    Args:
        findings: Of the run without a kill, and of the kills in the order of the steps.
        steps: The steps of the run without a kill, in order, with their lines.
    """
    lost = next((each.step for each in findings if each.lost), None)
    leaked = next((each.step for each in findings if each.leaked), None)
    lines = _Lines(steps)
    return [
        *([_of_lost(lost, lines)] if lost else []),
        *([_of_leaked(leaked, lines)] if leaked else []),
        *([_of_doubled(lines)] if any(each.doubled for each in findings) else []),
        *dict.fromkeys(each.cure for each in findings if each.cure),
    ]


class _Lines:
    """The user's lines of the run without a kill."""

    def __init__(self, steps: Mapping[str, Line]) -> None:
        self._steps = steps

    def of(self, command: str, *, after: str = "", up_to: str = "") -> Iterator[Line]:
        """Yield the lines of a command's steps: after a step, or up to a step and including it."""
        names = list(self._steps)
        since = names.index(after) + 1 if after in self._steps else 0
        until = names.index(up_to) + 1 if up_to in self._steps else len(names)
        for name in names[since:until]:
            if name.rpartition(":")[0].partition(" ")[2] == command and self._steps[name].file:
                yield self._steps[name]

    def last(self, command: str, up_to: str) -> Line | None:
        """Return the last line of a command up to a step."""
        return next(iter([*self.of(command, up_to=up_to)][::-1]), None)

    def first(self, command: str, after: str) -> Line | None:
        """Return the first line of a command after a step."""
        return next(self.of(command, after=after), None)


def _of_lost(step: str, lines: _Lines) -> str:
    commit = lines.last("database COMMIT", step)
    where = f"LOST: the record is committed at {_shown(commit)}" if commit else f"LOST at {step}: the record is there"
    half_before, half_after = lines.last("half", step), lines.first("half", step)
    if step == UNKILLED:
        return f"{where}, even without a kill, and no message announces it. {TOGETHER} If that is done, {NAMES}."
    if half_after and half_after != commit:
        return f"{where}, and its message is stored only later, at {_shown(half_after)}. {TOGETHER}"
    if half_before:
        return (
            f"{where}, its message is stored at {_shown(half_before)}, and the check decided ROLLBACK. Let `fence` and "
            "`listener` of the scenario use the database of `run`. A listener answers ROLLBACK only for what can never "
            "commit any more, else UNKNOWN."
        )
    return f"{where}, and no step stores a message for it. {TOGETHER}"


def _of_leaked(step: str, lines: _Lines) -> str:
    sent = lines.last("release COMMIT", step) or lines.last("half", step)
    where = f"LEAKED: the message is stored or sent at {_shown(sent)}" if sent else f"LEAKED at {step}"
    commit = lines.first("database COMMIT", step)
    if step == UNKILLED:
        return (
            f"{where}, and the run commits no record for it, even without a kill. {TOGETHER} If that is done, {NAMES}."
        )
    if commit and commit != sent:
        return f"{where}, and its record is committed only later, at {_shown(commit)}. {TOGETHER}"
    return (
        f"{where}, and its record is not part of that transaction. {TOGETHER} A listener answers COMMIT only for a "
        "record that it has found."
    )


def _of_doubled(lines: _Lines) -> str:
    stored = " and ".join(dict.fromkeys(map(_shown, lines.of("half"))))
    where = f", from {stored}" if stored else ""
    return (
        f"DOUBLED: the run publishes one record in several transactions{where}. Publish it once, in the transaction "
        "that writes it. If the run repeats a transaction, let it look for the record first."
    )


def _shown(line: Line) -> str:
    return f"{line} (`{line.text}`)"
