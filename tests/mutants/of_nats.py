"""Rules of the NATS plugin, switched off one by one. The patches import the driver, this list does not."""

from __future__ import annotations

from mutant import Mutant, replaced

from txcore.records import Status

TESTS = "plugins/nats/tests/test_data_path.py::"
CLEANING = "plugins/nats/tests/test_housekeeping.py::"


def go_after_whatever_is_there(self, found):
    """Take the place although another op holds it."""
    self._expected = 0 if found is None else found.sequence
    return False


async def first_of_ops(self, names, partition, before):
    """Remove TICKs as other ops."""
    return before


MUTANTS = [
    Mutant(
        "nats-commit-without-look",
        "A commit looks whether its place is free before its targets go out.",
        replaced("txcore_nats.releasing:Release", "looks_first", lambda _: property(lambda self: False)),
        TESTS + "test_a_commit_looks_before_its_targets_go_out",
        "nats",
    ),
    Mutant(
        "nats-final-of-one-generation",
        "A final op holds the place of every generation.",
        replaced("txcore_nats.releasing:Release", "_is_superseded", lambda _: go_after_whatever_is_there),
        TESTS + "test_the_first_final_op_holds_for_every_generation",
        "nats",
    ),
    Mutant(
        "nats-refused-is-stored",
        "A target that its stream refused is missing, and no op is written.",
        replaced(
            "txcore_nats.releasing:Release",
            "_note",
            lambda note: lambda self, index, *_: note(self, index, Status.DURABLE, None),
        ),
        TESTS + "test_a_target_whose_stream_was_deleted_meanwhile_is_refused",
        "nats",
    ),
    Mutant(
        "nats-removes-unverified",
        "Where a group signs, only its own signed records have parked ones removed.",
        replaced("txcore_nats.backend:NatsBackend", "open_with", lambda _: lambda self, opened: None),
        CLEANING + "test_a_signing_groups_parked_record_is_not_removed_for_a_forged_end[CLOSED]",
        "nats",
    ),
    Mutant(
        "nats-proofs-removed",
        "A TICK stays as long as a copy that it may prove.",
        replaced("txcore_nats.housekeeping:Housekeeper", "_first_proof", lambda _: first_of_ops),
        CLEANING + "test_the_proof_of_a_copy_stays_as_long_as_the_copy",
        "nats",
    ),
]
