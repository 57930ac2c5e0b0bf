"""Packs of landed rows: a store of many runs has few files, and says the same as without packs."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds import Bed, found_in
from txcore_spark import packs
from txcore_spark.entries import COLUMNS

from txcore.audit.verdicts import Verdict

COMPARED = ("counts", "severities", "exit_code", "topics")


@pytest.fixture
def bed(tmp_path, monkeypatch):
    """A new group, in whose store two runs make a pack."""
    monkeypatch.setattr(packs, "FAN", 2)
    made = Bed(tmp_path)
    yield made
    made.writer.close()


def facts_of(store, manifest):
    """Return the kept facts of a run and of all that it builds on."""
    buckets = [int(each) for each in manifest["buckets"]]
    rows = [row for table in store.rows(manifest, buckets, COLUMNS) for row in table.to_pylist()]
    return sorted(repr(sorted(row.items())) for row in rows if row["kind"] < packs.Kind.COVER)


def landed_in(store):
    """Return the numbers of the runs that have their rows in their own folder."""
    return [number for number in store.numbers() if store.has(number, "rows")]


def test_packed_rows_say_the_same_as_those_of_each_run(engine, bed, monkeypatch):
    """Steps end like one audit over everything, and an older run sees its own rows only."""
    audit, store, expected, kept = bed.audit(engine), bed.store(), {}, {}
    pack = packs.pack
    monkeypatch.setattr(packs, "pack", lambda store, manifest: None)
    for kind in (Verdict.LOST, Verdict.LEAK, None):
        (history,) = bed.write(kind)
        expected |= {history.transaction_id: {kind.name}} if kind else {}
        manifest = audit.incremental()
        kept[manifest["number"]] = facts_of(store, manifest)
    audit.once()  # its rows are its own
    monkeypatch.setattr(packs, "pack", pack)
    (history,) = bed.write(Verdict.CONFLICT)
    manifest = audit.incremental()
    assert ["000001-000005-2.parquet"] == [each.name for each in store.packs()]
    assert [4] == landed_in(store)
    assert kept == {number: facts_of(store, store.manifest(number)) for number in kept}
    bed.writer.write((history.partition, each) for each in history.records if each.log == "target")  # duplicates
    last = audit.incremental()
    expected[history.transaction_id] = set(found_in(store, last)[history.transaction_id])
    assert {"CONFLICT"} < expected[history.transaction_id]
    whole = audit.once()
    assert expected == found_in(store, last) == found_in(store, whole)
    assert [last[name] for name in COMPARED] == [whole[name] for name in COMPARED]


@pytest.mark.parametrize("left", ["rows", "packs"])
def test_what_a_killed_process_has_not_deleted_does_not_count(duck, bed, monkeypatch, left):
    """Rows that are in a pack, and packs that are in a larger one, are deleted by the next run."""
    audit, store = bed.audit(duck), bed.store()
    count = 2 if left == "rows" else 4
    clean = packs._clean
    for number in range(1, count + 1):
        bed.write(Verdict.LOST)
        if number == count:
            monkeypatch.setattr(packs, "_clean", lambda store, manifest: None)
            monkeypatch.setattr(packs, "_due", once(packs._due, 2 if left == "packs" else 1))
        manifest = audit.incremental()
    assert (2 if left == "rows" else 3) == len(store.all_packs()) + (left == "rows")
    facts = facts_of(store, manifest)
    assert len(set(facts)) == len(facts)
    assert count == manifest["counts"]["LOST"]
    monkeypatch.undo()
    monkeypatch.setattr(packs, "FAN", 2)
    assert clean == packs._clean
    assert count == audit.incremental()["counts"]["LOST"]
    assert 1 == len([each for each in store.all_packs() if each.first == 1])
    assert not [number for number in landed_in(store) if number <= count]


def once(function, count_max):
    """Return a function that answers as many times, and then nothing."""
    left = [count_max]

    def limited(*arguments):
        left[0] -= 1
        return function(*arguments) if left[0] >= 0 else ()

    return limited


def test_a_run_that_was_read_again_is_cut_in_its_pack(duck, bed, tmp_path):
    """The records after a gap, which a later run reads again, are not in the pack."""
    audit, store = bed.audit(duck), bed.store()
    bed.write(None, None)
    manifest = audit.incremental()
    (end,) = [each for each in manifest["ends"] if each["partition"] == 0 and each["source"] == 0]
    cut = {"run": 1, "source": 0, "partition": 0, "end": end["start"]}
    parts = store.parts({**manifest, "ragged": [cut]})
    before = {row["position"] for row in parts[0].data.to_table().to_pylist() if row["source"] == 0}
    packs.write(store, parts, 1)
    (packed,) = store.parts(manifest)
    assert 1 == packed.level
    after = [row for row in packed.data.to_table().to_pylist() if (row["source"], row["partition"]) == (0, 0)]
    assert before
    assert [] == after
    assert Path(tmp_path / "audit" / "packs" / "000001-000001-1.parquet").exists()
