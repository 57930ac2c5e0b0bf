"""The definition of a mutant, and the list of all: each file `of_*.py` beside this one holds a list `MUTANTS`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """One rule of the library, switched off.

    Attributes:
        name: Unique among all mutants; lower case and dashes.
        rule: What the library does without the mutant, as one sentence.
        patch: Returns the context in which the rule is off, such as `mock.patch.object(...)`. It imports what it
            patches by itself, as a list of mutants must load without the drivers.
        killed_by: The node id of a test that passes, and fails while the rule is off. Only the process that runs the
            test is patched, not the processes that the test starts.
        broker: The broker that the test needs: "kafka", "rabbitmq" or "nats"; "" for none.
    """

    name: str
    rule: str
    patch: Callable[[], AbstractContextManager[object]]
    killed_by: str
    broker: str = ""


def all_mutants() -> list[Mutant]:
    """Return the mutants of all files beside this one."""
    files = sorted(path.stem for path in FOLDER.glob("of_*.py"))
    return [mutant for file in files for mutant in importlib.import_module(file).MUTANTS]
