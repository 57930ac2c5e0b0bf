"""The definition of a mutant, and the list of all: each file `of_*.py` beside this one holds a list `MUTANTS`."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

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


def replaced(place: str, name: str, make: Callable[[Any], Any]) -> Callable[[], AbstractContextManager[None]]:
    """Return a patch of a driver's module, which it imports only when it is applied.

    Args:
        place: A module, or a class of one as `module:Class`.
        name: The function or property to replace.
        make: Gets the original and returns its replacement.
    """

    @contextlib.contextmanager
    def patch() -> Iterator[None]:
        module, _, owner = place.partition(":")
        found = importlib.import_module(module)
        target = getattr(found, owner) if owner else found
        with mock.patch.object(target, name, make(getattr(target, name))):
            yield

    return patch


def all_mutants() -> list[Mutant]:
    """Return the mutants of all files beside this one."""
    files = sorted(path.stem for path in FOLDER.glob("of_*.py"))
    return [mutant for file in files for mutant in importlib.import_module(file).MUTANTS]
