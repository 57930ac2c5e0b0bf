"""Rules of the NATS plugin, switched off one by one. The patches import the driver, this list does not."""

from __future__ import annotations

import contextlib
from importlib import import_module
from unittest import mock

from mutant import Mutant

from txcore.records import Status

TESTS = "plugins/nats/tests/test_data_path.py::"


def replaced(name, make):
    """Return a patch of one method of `Release`; *make* gets the original."""

    @contextlib.contextmanager
    def patch():
        release = import_module("txcore_nats.releasing").Release
        with mock.patch.object(release, name, make(getattr(release, name))):
            yield

    return patch


def go_after_whatever_is_there(self, found):
    """Take the place although another op holds it."""
    self._expected = 0 if found is None else found.sequence
    return False


MUTANTS = [
    Mutant(
        "nats-commit-without-look",
        "A commit looks whether its place is free before its targets go out.",
        replaced("looks_first", lambda _: property(lambda self: False)),
        TESTS + "test_a_commit_looks_before_its_targets_go_out",
        "nats",
    ),
    Mutant(
        "nats-final-of-one-generation",
        "A final op holds the place of every generation.",
        replaced("_is_superseded", lambda _: go_after_whatever_is_there),
        TESTS + "test_the_first_final_op_holds_for_every_generation",
        "nats",
    ),
    Mutant(
        "nats-refused-is-stored",
        "A target that its stream refused is missing, and no op is written.",
        replaced("_note", lambda note: lambda self, index, *_: note(self, index, Status.DURABLE, None)),
        TESTS + "test_a_target_whose_stream_was_deleted_meanwhile_is_refused",
        "nats",
    ),
]
