"""Halves and releases in columns become the same records as one by one; what the client does not take is named."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st
from txcore_kafka.options import Options
from txcore_kafka.producing import Producing
from txcore_kafka.reports import commit_records, half_record, half_records, target_record
from txcore_kafka.sendings import Releases

from txcore.backends.batch_progress import record_counts
from txcore.clock import SystemClock
from txcore.columns import HalfColumns, ReleaseColumns
from txcore.errors import BackendUnavailableError, BusyError
from txcore.records import OpKind, Status, TargetMessage

messages = st.builds(
    TargetMessage, st.sampled_from(["t", "u"]), st.none() | st.binary(max_size=3), st.binary(), st.just({})
)
rows = st.lists(
    st.tuples(st.integers(0, 3), st.binary(min_size=16, max_size=16), st.binary(), messages), min_size=1, max_size=20
)
COUNT = 60


def columns_of(found):
    """Return the halves of *found*: partition, id, body and message of each."""
    return HalfColumns("g", *zip(*found, strict=True))


@given(rows, st.data())
def test_records_of_columns_are_those_of_each_half(found, data):
    """The records of halves in columns are those of each half, for some of them too."""
    columns = columns_of(found)
    indices = data.draw(st.lists(st.sampled_from(range(len(found))), unique=True))
    for some in (range(len(found)), indices):
        assert [half_record(columns[index]) for index in some] == [*half_records(columns, some)]


@given(rows)
def test_records_of_commits_are_those_of_each_release(found):
    """The records that publish the messages of commits are those of each release."""
    commits = ReleaseColumns(columns_of(found), [OpKind.COMMIT] * len(found), "me", 1_700_000_000_000)
    expected = [target_record(each, 0) for each in commits]
    made = [
        (*record, {name: value.decode() if name == "txcore-id" else value for name, value in headers})
        for *record, headers in commit_records(commits)
    ]
    assert expected == made


class Driver:
    """A driver's producer that refuses some records."""

    def __init__(self, refused):
        self.refused = refused
        self.taken = []

    def produce(self, topic, value, key, partition, on_report, callback, timestamp, headers):
        assert (callback, timestamp) == (None, 0)
        error = self.refused.get(value)
        if error is not None:
            raise error
        on_report(None, None)
        self.taken.append((topic, value, key, partition, headers))


@pytest.mark.parametrize("count", [1, COUNT])
@given(data=st.data())
def test_each_record_that_the_client_refuses_is_named(count, data):
    """Each record is handed over once, in order, with its own number; those that were refused have their errors."""
    errors = [BufferError("full"), KafkaException(KafkaError(KafkaError._STATE))]
    records = [("t", b"%d" % number, None, number % 4, None) for number in range(count)]
    refused = data.draw(st.dictionaries(st.sampled_from([record[1] for record in records]), st.sampled_from(errors)))
    producing, driver, reported = Producing(Options(), SystemClock()), Driver(refused), []
    producing._producer = producing._many = driver
    numbers = data.draw(st.sampled_from([range(7, 7 + count), [number * 3 for number in range(count)]]))
    left_over = producing.send_all(lambda number, *_: reported.append(number), numbers, iter(records))
    taken = [record for record in records if record[1] not in refused]
    assert taken == driver.taken
    assert [number for number, record in zip(numbers, records, strict=True) if record in taken] == reported
    expected = [
        (number, BusyError if isinstance(refused[record[1]], BufferError) else BackendUnavailableError)
        for number, record in zip(numbers, records, strict=True)
        if record not in taken
    ]
    assert expected == [(number, type(error)) for number, error in left_over]
    assert all(error.__cause__ is not None for _, error in left_over)


def test_no_record_is_no_call():
    """Without records nothing is sent."""
    producing = Producing(Options(), SystemClock())
    producing._producer = Driver({})
    assert producing.send_all(lambda *_: None, [], []) == []


class Settled:
    """A batch that notes its outcomes."""

    def __init__(self, items):
        self.items = items
        self.outcomes = {}

    def settle_all(self, indices, outcome):
        self.outcomes |= dict.fromkeys(indices, outcome)


class Client:
    """The parts of the plugin beside a release: the client, the merging of ops, and the questions for topics."""

    def __init__(self):
        self.targets, self.sent, self.put_items = self, [], []
        self.forget = self.put_items.remove

    def send_all(self, report, numbers, records):
        self.sent += zip(numbers, records, strict=True)
        return []

    def put(self, items, indices, settle):
        self.put_items += [items[index] for index in indices]
        return indices


def test_the_ops_of_commits_come_after_their_messages():
    """An op is queued when its message is stored, and never where the broker does not know whether it is."""
    found = [(0, bytes([number]) * 16, b"", TargetMessage("t", None, b"", {})) for number in range(3)]
    commits = ReleaseColumns(columns_of(found), [OpKind.COMMIT] * 3, "me", 1_700_000_000_000)
    batch, client = Settled(commits), Client()
    releases = Releases(batch, commits, left=record_counts(commits), producing=client, ops=client, look_ups=client)
    releases.send_commits(commits)
    first, second, third = (number for number, _ in client.sent)
    assert (client.put_items, batch.outcomes) == ([], {})
    releases.stored([third, first])
    assert [commits[2], commits[0]] == client.put_items
    releases.failed(second, KafkaError(KafkaError._MSG_TIMED_OUT))
    assert [commits[2], commits[0]] == client.put_items
    assert {index: outcome.status for index, outcome in batch.outcomes.items()} == {
        0: Status.DURABLE,
        1: Status.UNKNOWN,
        2: Status.DURABLE,
    }
    assert batch.outcomes[1].missing == (0,)
