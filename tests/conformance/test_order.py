"""The judge of the order per key: first copies only, by the first records of their halves."""

from __future__ import annotations

import pytest
from txcore_conformance.crash import main
from txcore_conformance.order import Copy, disorder, first_records
from txcore_conformance.owners import name_of

from txcore.records import Half

LINE = ("t", 0)


def half(number, order_key=b"k"):
    """Return a half record."""
    fields = (0, 0, 0, 0, 0, 0, False, "p", [])
    return Half(2, name_of(number), "g", *fields, release=1, order_key=order_key)


def wrong(records, *copies):
    """Return the numbers of the transactions that came too early; copies are (number, index, place), perhaps a line."""
    found = [Copy(name_of(number), index, *(line or [LINE]), place) for number, index, place, *line in copies]
    return [int.from_bytes(identity, "big") for identity, _ in disorder(records, found)]


@pytest.fixture
def records():
    """Return the first records of three halves of one key, a half without a key, and a late copy of the first half."""
    log = [(1, half(1)), (2, half(2)), (3, half(9, b"")), (4, half(3)), (5, half(1))]
    found = first_records(0, log)
    assert [1, 2, 4] == [record.position for record in found.values()]
    return found


def test_copies_in_the_order_of_their_halves_are_right(records):
    """Nothing is wrong with them, nor with a repeat that comes late, nor with a half that was never published."""
    assert [] == wrong(records, (1, 0, 10), (1, 1, 11), (3, 0, 12), (1, 0, 13), (9, 0, 1))


def test_a_first_copy_before_one_of_an_earlier_half_is_wrong(records):
    """The later half is named, by its text too; each message of a transaction counts."""
    assert [2] == wrong(records, (2, 0, 10), (1, 0, 11))
    assert [3] == wrong(records, (1, 0, 10), (3, 0, 11), (1, 1, 12))
    (found,) = disorder(records, [Copy(name_of(2), 0, LINE, 10), Copy(name_of(1), 0, LINE, 11)])
    assert "published in t before 00000000-0000-0000-0000-000000000001" in found[1]


def test_topics_and_their_partitions_have_orders_of_their_own(records):
    """Places in different topics, or parts of one, say nothing about each other."""
    assert [] == wrong(records, (1, 0, 10, ("t", 1)), (2, 0, 9, ("t", 2)), (3, 0, 1, ("u", 1)))


def test_the_crash_kit_orders_only_what_owners_release(capsys):
    """A producer that releases by itself keeps no order."""
    with pytest.raises(SystemExit):
        main(["--harness", "txcore_sqlite.testing:SqliteHarness", "--ordered"])
    assert "--ordered needs --release owner" in capsys.readouterr().err
