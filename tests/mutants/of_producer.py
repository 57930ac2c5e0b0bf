"""Rules of the producer for many transactions at once, switched off one by one."""

from __future__ import annotations

from mutant import Mutant, replaced

BATCH = "txcore.producer.listener_batch"
TEST = "tests/core/producer/test_mixed_batch.py::test_each_has_its_own_end"
LATE = "tests/core/producer/test_producer.py::TestSendMany::test_slow_local_transactions_let_none_publish_too_late"
KAFKA = "plugins/kafka/tests/test_columns.py::"


def give_the_error_to_the_neighbour(failed):
    """Set an error as the result of the transaction before."""
    return lambda self, index, error: failed(self, index - 1, error)


def take_the_answer_of_the_neighbour(run_some):
    """End each transaction as the listener answered for the one that ran after it."""

    def ran(*arguments):
        count, found = yield from run_some(*arguments)
        found.states = found.states[1:] + found.states[:1]
        return count, found

    return ran


def take_those_of_the_neighbours(take):
    """Release the halves of other transactions."""
    return lambda self, indices: take(self, [*indices[1:], *indices[:1]])


def publish_under_the_id_of_the_neighbour(headers):
    """Name another transaction in the headers of a message."""
    return lambda group, ids, by: headers(group, [*ids[1:], *ids[:1]], by)


def hand_over_with_the_first_policy(make_halves):
    """Take the check policy of the first transaction for all of a batch."""

    def made(transactions, messages):
        for transaction in transactions:
            transaction.policies = transactions[0].policies
        return make_halves(transactions, messages)

    return made


def release_by_the_time_of_the_last(opened):
    """Let a batch publish until the last of its transactions gives way to the checker."""

    def late(sendings, database):
        found = opened(sendings, database)
        if found is not None:
            found.give_way_s += 1_000.0
        return found

    return late


MUTANTS = [
    Mutant(
        "batch-error-exchanged",
        "An error is the result of the transaction that it is about.",
        replaced(BATCH + ":Sendings", "failed", give_the_error_to_the_neighbour),
        TEST + "[mixed]",
    ),
    Mutant(
        "batch-answer-exchanged",
        "A transaction ends as the listener answered for it.",
        replaced(BATCH, "_run_some", take_the_answer_of_the_neighbour),
        TEST + "[plain]",
    ),
    Mutant(
        "batch-half-exchanged",
        "A release publishes the messages of its own half.",
        replaced("txcore.columns:HalfColumns", "take", take_those_of_the_neighbours),
        TEST + "[plain]",
    ),
    Mutant(
        "batch-policy-of-the-first",
        "Each half of a batch has the check policy of its own message.",
        replaced(BATCH, "make_halves", hand_over_with_the_first_policy),
        TEST + "[mixed]",
    ),
    Mutant(
        "batch-gives-way-late",
        "A transaction of a batch gives way to the checker at its own time.",
        replaced(BATCH, "_opened", release_by_the_time_of_the_last),
        LATE,
    ),
    Mutant(
        "batch-id-exchanged",
        "A message that is published with others has the id of its own transaction.",
        replaced("txcore_kafka.reports", "commit_headers", publish_under_the_id_of_the_neighbour),
        KAFKA + "test_records_of_commits_are_those_of_each_release",
    ),
    Mutant(
        "refused-outweighs-unknown",
        "A release with a refused and an unknown target is unknown, as it may be published.",
        replaced("txcore.backends.batch_progress", "worse", lambda _: lambda known, outcome: known or outcome),
        "tests/core/backends/test_batch_progress.py::test_records_that_end_one_by_one_end_their_item[order2]",
    ),
]
