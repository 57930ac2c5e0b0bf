"""The output of a comparison of two sides: one heading, its findings by kind, and what could not be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from txcore.cli.operating.screen import Screen

SHOWN_MAX: Final = 20
"""Number of findings of each kind that are printed; `--json` has all."""
WORDS: Final[Mapping[int, str]] = {1: "warnings", 2: "violations", 3: "inconclusive"}
"""The result in words, by exit code."""


def show_findings(screen: Screen, findings: Sequence[Any]) -> None:
    """Print the first findings of each kind."""
    by_kind: dict[str, list[Any]] = {}
    for each in findings:
        by_kind.setdefault(each.verdict, []).append(each)
    for kind, found in by_kind.items():
        screen.say(f"\n{kind}: {len(found):,}")
        screen.table(("id", "topic", "what"), [(each.name, each.topic, each.what) for each in found[:SHOWN_MAX]])
        if len(found) > SHOWN_MAX:
            screen.say(f"{len(found) - SHOWN_MAX:,} more: --json lists all")
