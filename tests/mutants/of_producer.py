"""Rules of the producer for many transactions at once, switched off one by one."""

from __future__ import annotations

from mutant import Mutant, replaced

STYLE = "txcore.producer.listener_style"
TEST = "tests/core/producer/test_mixed_batch.py::test_each_has_its_own_end"


def give_the_error_to_the_neighbour(failed):
    """Set an error as the result of the transaction before."""
    return lambda self, index, error: failed(self, index - 1, error)


def take_the_answer_of_the_neighbour(run_some):
    """End each transaction as the listener answered for the one that ran after it."""

    def ran(sendings, left, listener):
        count, found = yield from run_some(sendings, left, listener)
        answers = list(found.states.values())
        found.states = dict(zip(found.states, answers[1:] + answers[:1], strict=True))
        return count, found

    return ran


def publish_the_half_of_the_neighbour(choose_end):
    """Release the half of another transaction."""
    kept = []

    def chosen(transaction, kind, now_s, wall_ms):
        kept.append(transaction)
        return choose_end(kept[-2] if len(kept) > 1 else transaction, kind, now_s, wall_ms)

    return chosen


MUTANTS = [
    Mutant(
        "batch-error-exchanged",
        "An error is the result of the transaction that it is about.",
        replaced(STYLE + ":Sendings", "failed", give_the_error_to_the_neighbour),
        TEST,
    ),
    Mutant(
        "batch-answer-exchanged",
        "A transaction ends as the listener answered for it.",
        replaced(STYLE, "_run_some", take_the_answer_of_the_neighbour),
        TEST,
    ),
    Mutant(
        "batch-half-exchanged",
        "A release publishes the messages of its own half.",
        replaced("txcore.producer.finish", "choose_end", publish_the_half_of_the_neighbour),
        TEST,
    ),
    Mutant(
        "refused-outweighs-unknown",
        "A release with a refused and an unknown target is unknown, as it may be published.",
        replaced("txcore.backends.batch_progress", "worse", lambda _: lambda known, outcome: known or outcome),
        "tests/core/backends/test_batch_progress.py::test_records_that_end_one_by_one_end_their_item[order2]",
    ),
]
