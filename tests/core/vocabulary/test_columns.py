"""Halves and releases in columns are the same records as one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txcore import wire
from txcore.columns import HalfColumns, ReleaseColumns, resolution
from txcore.ids import id_text, id_texts
from txcore.records import HalfRecord, OpKind, TargetMessage

identities = st.binary(min_size=16, max_size=16)
messages = st.builds(
    TargetMessage, st.sampled_from(["t", "u"]), st.none() | st.binary(max_size=3), st.binary(), st.just({})
)
rows = st.lists(st.tuples(st.integers(0, 3), identities, st.binary(), messages), min_size=1)
kinds = st.sampled_from([OpKind.COMMIT, OpKind.ROLLBACK, OpKind.COMMITTED])


def columns_of(found):
    """Return the halves of *found*: partition, id, body and message of each."""
    partitions, ids, bodies, some = zip(*found, strict=True)
    return HalfColumns("g", partitions, ids, bodies, some)


def records_of(found):
    """Return the same halves as records."""
    return [HalfRecord("g", partition, identity, 0, body, [message]) for partition, identity, body, message in found]


@given(rows, st.data())
def test_halves_are_those_of_their_columns(found, data):
    """Each half of the columns, and of some of them in another order, is the record of its row."""
    columns, records = columns_of(found), records_of(found)
    assert records == [*columns] == columns[:] == [columns[index] for index in range(len(columns))]
    indices = data.draw(st.lists(st.sampled_from(range(len(found))), unique=True))
    assert [records[index] for index in indices] == [*columns.take(indices)]
    assert records[1:] == [*columns.take(range(1, len(records)))]
    assert columns.topics == {record.messages[0].topic for record in records}


@given(rows, st.data())
def test_releases_are_those_of_their_columns(found, data):
    """Each release of the columns has the half, the op and the targets that it has by itself."""
    chosen = data.draw(st.lists(kinds, min_size=len(found), max_size=len(found)))
    columns = ReleaseColumns(columns_of(found), chosen, "me", 1_700_000_000_000)
    expected = [
        resolution(half, kind, "me", 1_700_000_000_000) for half, kind in zip(records_of(found), chosen, strict=True)
    ]
    assert expected == [*columns]
    assert columns.all_commit == all(each.targets for each in expected)
    assert [each.flush for each in columns] == [kind is OpKind.COMMITTED for kind in chosen]


@given(rows, st.data())
def test_ops_of_columns_are_those_of_their_releases(found, data):
    """The encoded ops of some commits are those of their releases, each in the partition of its half."""
    columns = ReleaseColumns(columns_of(found), [OpKind.COMMIT] * len(found), "me", 1_700_000_000_000)
    indices = data.draw(st.lists(st.sampled_from(range(len(found))), unique=True, min_size=1))
    expected: dict[int, list[bytes]] = {}
    for index in indices:
        expected.setdefault(found[index][0], []).append(wire.encode_op(columns[index].op))
    assert expected == columns.encoded_ops(indices)


@given(st.lists(identities))
def test_many_ids_have_their_own_texts(ids):
    """The texts of many ids are those of each."""
    assert [id_text(each) for each in ids] == [text.decode() for text in id_texts(ids)]


@given(st.lists(identities))
def test_headers_of_commits_are_those_of_their_targets(ids):
    """The headers of many targets are those of each, in the same order."""
    expected = [[*wire.target_headers("g", each, 0, TargetMessage("t", None, b"", {}), "me").items()] for each in ids]
    found = [[(name, as_text(value)) for name, value in own] for own in wire.commit_headers("g", ids, "me")]
    assert expected == found


def as_text(value):
    """Return a header's value as a text."""
    return value.decode() if isinstance(value, bytes) else value
