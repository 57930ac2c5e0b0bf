"""What `txcore audit repair` prints, and when."""

from __future__ import annotations

import io
import json
import sys

import pytest

from txcore import cli
from txcore.audit.verdicts import Verdict
from txcore.ids import id_text

COUNT = 3
WIDTH = 80


class Watched(io.StringIO):
    """Notes with each text how many repairs the store has by then."""

    def __init__(self, done):
        super().__init__()
        self._done = done
        self.found = []

    def write(self, text):
        count = len(json.loads(self._done.read_text())) if self._done.exists() else 0
        self.found += [(count, line) for line in text.splitlines()]
        return super().write(text)


def test_each_repair_has_its_line_before_the_next_one_is_made(duck, bed, monkeypatch):
    """The first line is there before the second half is parked, and no line is wider than 80 columns."""
    written = bed.write(*[Verdict.STUCK] * COUNT)
    run = bed.audit(duck, grace_s=0).once()["number"]
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr(sys, "stdout", Watched(bed.folder / "audit" / "runs" / f"{run:06}" / "repaired.json"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", "repair", str(run), "--apply", "--config", str(bed.config(grace_s=0))])
    assert 0 == ended.value.code
    found, printed = sys.stdout.found, sys.stdout.getvalue()
    assert list(range(1, COUNT + 1)) == [count for count, line in found if line.endswith(" repaired")]
    planned = [count for count, line in found if "park it" in line]
    assert [0] * COUNT == planned
    assert all(printed.count(id_text(each.transaction_id)) == 2 for each in written)
    assert max(map(len, printed.splitlines())) <= WIDTH
