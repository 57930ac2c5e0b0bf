"""Delivery reports of one poll, each for the record that it is about."""

from __future__ import annotations

from confluent_kafka import KafkaError
from txcore_kafka.reports import Records


class Noted(Records):
    """Records that note their fates."""

    def __init__(self):
        self.producing = self
        self.reports, self.acked, self.nacked, self.alone = [], [], [], frozenset()
        self.fates, self.sent_alone = {}, []

    def stored(self, numbers):
        self.fates |= dict.fromkeys(numbers)

    def failed(self, number, error):
        self.fates[number] = error.code()

    def record(self, number):
        return number

    def send(self, _on_report, record, *, is_alone=False):
        assert is_alone
        self.sent_alone.append(record)


def test_each_report_of_a_poll_ends_its_own_record():
    """One poll brings acknowledgements, a refusal and one record too large for its batch; each meets its record."""
    records = Noted()
    for number, code in enumerate([None, KafkaError.TOPIC_AUTHORIZATION_FAILED, None, KafkaError.MSG_SIZE_TOO_LARGE]):
        records.report(number, None if code is None else KafkaError(code), None)
    assert [records] == records.reports, "the poll handles them once"
    records.reported()
    assert records.fates == {0: None, 1: KafkaError.TOPIC_AUTHORIZATION_FAILED, 2: None}
    assert records.sent_alone == [3]
    records.report(3, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None)
    records.reported()
    assert records.fates[3] == KafkaError.MSG_SIZE_TOO_LARGE
