"""Rules of the protocol that neither the simulator nor the model can switch off."""

from __future__ import annotations

from unittest import mock

from mutant import Mutant

from txcore import message
from txcore.ids import IdFactory

_new = IdFactory.new


def new_of_a_millisecond(self, partition_count=1):
    """Return the same id again within one millisecond."""
    kept = getattr(self, "kept", None)
    if kept is None or kept[:6] != self._clock.wall_ms().to_bytes(6, "big"):
        self.kept = _new(self, partition_count)
    return self.kept


MUTANTS = [
    Mutant(
        "identity-repeats",
        "Each transaction has an id of its own.",
        lambda: mock.patch.object(IdFactory, "new", new_of_a_millisecond),
        "tests/core/vocabulary/test_ids.py::test_ids_of_one_factory_ascend_within_a_millisecond",
    ),
    Mutant(
        "message-reserved-header-sent",
        "A header that txcore reserves is refused by name.",
        lambda: mock.patch.object(message, "_validate_headers"),
        "tests/core/vocabulary/test_message.py::test_a_message_is_rejected_with_the_rule_it_breaks",
    ),
]
