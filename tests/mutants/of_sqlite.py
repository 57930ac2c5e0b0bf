"""Rules of the SQLite plugin, switched off one by one."""

from __future__ import annotations

from unittest import mock

from mutant import Mutant
from txcore_sqlite.ledger import Ledger

RESOLUTIONS = "plugins/sqlite/tests/test_resolutions.py::"
_release, _publish = Ledger.release, Ledger._publish


def publish_what_is_known(self, resolution):
    """Continue with the op although a target was refused."""
    _publish(self, resolution)


MUTANTS = [
    Mutant(
        "sqlite-second-end-stored",
        "The first end of a transaction holds its place.",
        lambda: mock.patch.object(Ledger, "_holder", return_value=0),
        RESOLUTIONS + "test_a_final_after_a_resumed_discard_still_ends_everything",
    ),
    Mutant(
        "sqlite-old-claim-writes",
        "A checker whose claim is superseded writes nothing.",
        lambda: mock.patch.object(
            Ledger, "release", lambda self, resolutions, *, fenced: _release(self, resolutions, fenced=False)
        ),
        RESOLUTIONS + "test_a_superseded_claim_writes_nothing",
    ),
    Mutant(
        "sqlite-op-without-target",
        "A release that is refused has no effect at all.",
        lambda: mock.patch.object(Ledger, "_publish", publish_what_is_known),
        "plugins/sqlite/tests/test_data_path.py::test_a_release_to_an_unknown_topic_has_no_effect_at_all",
    ),
]
