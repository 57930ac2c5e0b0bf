"""Rules of the Kafka plugin, switched off one by one. The patches import the driver, this list does not."""

from __future__ import annotations

from mutant import Mutant, replaced

DATA_PATH = "plugins/kafka/tests/test_data_path.py::"
MISSING = "plugins/kafka/tests/test_missing_topics.py::"


def queue_the_op_first(send):
    """Queue the ops before their targets are handed over."""

    def sent(self, indices, *refusal):
        indices = list(indices)
        self.ops.put(self.items, indices, lambda *_: None)
        send(self, indices, *refusal)

    return sent


def queue_the_ops_of_commits_first(send_commits):
    """Queue the ops of commits before their targets are handed over."""

    def sent(self, commits):
        self.queue_ops(range(len(commits)))
        send_commits(self, commits)

    return sent


def take_a_refusal_for_stored(record_failed):
    """Count a record that the broker refused as stored."""

    def failed(self, number, outcome):
        if outcome.status.name == "REFUSED":
            self.records_stored([number])
        else:
            record_failed(self, number, outcome)

    return failed


def overtake(mark):
    """Send a mark at once, before the ops that wait to be merged."""

    def marked(self, group, partition, op, settle):
        self._record(self._queue(group, partition), [op], [settle]).send()

    return marked


def exchange_reports(reported):
    """Take each report of a poll for one of the record that was sent after it."""

    def taken(self):
        errors = dict(self.nacked)
        numbers = sorted([*self.acked, *errors])
        fates = [errors.get(number) for number in numbers]
        fates = list(zip(numbers, fates[1:] + fates[:1], strict=True))
        self.acked = [number for number, error in fates if error is None]
        self.nacked = [(number, error) for number, error in fates if error is not None]
        reported(self)

    return taken


def write_into_the_first_partition(make):
    """Send every op record to partition 0."""

    def made(self, *arguments):
        make(self, *arguments)
        self.partition = 0

    return made


def take_silence_for_no_topic(seek):
    """Refuse a topic although the broker gave no answer about it."""

    def sought(self):
        has_topic = self._has_topic

        def has(topic):
            try:
                return has_topic(topic)
            except Exception:  # noqa: BLE001 - that is the mutant
                return False

        self._has_topic = has
        try:
            seek(self)
        finally:
            self._has_topic = has_topic

    return sought


MUTANTS = [
    Mutant(
        "kafka-header-cut",
        "A header's value arrives whole, even with NUL in it.",
        replaced("txcore_kafka.reports", "as_sent", lambda _: lambda headers: headers),
        DATA_PATH + r"test_a_headers_value_arrives_whole[a\x00b0-kit]",
        "kafka",
    ),
    Mutant(
        "kafka-op-before-target",
        "An op is queued only when every target is confirmed.",
        replaced("txcore_kafka.sendings:Releases", "send", queue_the_op_first),
        MISSING + "test_every_try_for_a_topic_that_is_gone_is_refused[kit]",
        "kafka",
    ),
    Mutant(
        "kafka-ops-before-targets",
        "The ops of commits are written after their targets were confirmed.",
        replaced("txcore_kafka.sendings:Releases", "send_commits", queue_the_ops_of_commits_first),
        "plugins/kafka/tests/test_columns.py::test_the_ops_of_commits_come_after_their_messages",
    ),
    Mutant(
        "kafka-refused-is-durable",
        "A refused target is never settled as stored.",
        replaced("txcore_kafka.sendings:Releases", "record_failed", take_a_refusal_for_stored),
        DATA_PATH + "test_a_target_that_vanished_is_refused_and_writes_no_op",
        "kafka",
    ),
    Mutant(
        "kafka-mark-overtakes",
        "A mark comes after every op that was queued before it.",
        replaced("txcore_kafka.op_merging:OpMerger", "mark", overtake),
        DATA_PATH + "test_a_mark_comes_after_the_ops_that_were_queued_before_it",
        "kafka",
    ),
    Mutant(
        "kafka-reports-exchanged",
        "A delivery report ends the record that it is about.",
        replaced("txcore_kafka.reports:Records", "reported", exchange_reports),
        "plugins/kafka/tests/test_reports.py::test_each_report_of_a_poll_ends_its_own_record",
    ),
    Mutant(
        "kafka-ops-in-first-partition",
        "An op is written to the partition of its half.",
        replaced("txcore_kafka.op_merging:OpsRecord", "__init__", write_into_the_first_partition),
        DATA_PATH + "test_ops_are_in_the_partition_of_their_half",
        "kafka",
    ),
    Mutant(
        "kafka-gone-for-ever",
        "A topic that was gone is asked for again before the next release.",
        replaced("txcore_kafka.presence", "FRESH_S", lambda _: float("inf")),
        MISSING + "test_a_topic_that_is_made_again_is_found",
        "kafka",
    ),
    Mutant(
        "kafka-gone-is-unknown",
        "A topic that the broker says is gone is a refusal.",
        replaced("txcore_kafka.presence:Presence", "refusal", lambda _: lambda _self, _topic: None),
        MISSING + "test_a_topic_that_is_known_to_be_gone_is_not_sent_to",
        "kafka",
    ),
    Mutant(
        "kafka-older-claim-releases",
        "A release under an older CLAIM of the same process has no effect.",
        replaced("txcore_kafka.transactions:TransactionLane", "_is_newest", lambda _: lambda _self, _entry: True),
        "plugins/kafka/tests/test_transactions.py::test_an_older_claim_of_the_same_member_is_fenced",
        "kafka",
    ),
    Mutant(
        "kafka-silence-is-refusal",
        "Only the broker's answer says that a topic is gone.",
        replaced("txcore_kafka.presence:Presence", "_seek", take_silence_for_no_topic),
        MISSING + "test_an_outage_is_no_refusal_although_the_topic_was_gone_before",
        "kafka",
    ),
]
