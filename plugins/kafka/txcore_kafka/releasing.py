"""Halves and releases as records: the targets first, each confirmed; then the op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from txcore.backends.batch_progress import record_counts
from txcore.clock import Clock
from txcore.columns import HalfColumns, ReleaseColumns
from txcore.errors import MessageRejectedError, TxcoreError
from txcore.port import Batch
from txcore.records import HalfRecord, Op, Outcome, Resolution
from txcore_kafka.control import Control
from txcore_kafka.entries import Entry
from txcore_kafka.lanes import Lanes
from txcore_kafka.lookups import LookUps
from txcore_kafka.op_merging import OpMerger
from txcore_kafka.options import Options
from txcore_kafka.ownership import KafkaClaim
from txcore_kafka.producing import Producing
from txcore_kafka.sendings import Halves, Marking, Releases
from txcore_kafka.transactions import TransactionLane

HALVES: Final = "halves"
RELEASES: Final = "releases"
MARKS: Final = "marks"
IN_TRANSACTIONS: Final = "in transactions"
Item = TypeVar("Item")
Question: TypeAlias = "tuple[str, tuple[str, ...]]"
"""A group and topics that the broker must be asked for."""
Unsure: TypeAlias = "list[tuple[Question, Item]]"
"""The items of a batch that cannot be sent before a question is answered; those with the same one share it."""


class Releaser:
    """The part of the backend that turns batches into records for the client."""

    def __init__(
        self,
        options: Options,
        producing: Producing,
        control: Control,
        look_ups: LookUps,
        clock: Clock,
    ) -> None:
        self._options = options
        self._producing = producing
        self._control = control
        self._look_ups = look_ups
        self._targets = look_ups.targets
        self._presence = look_ups.presence
        self._clock = clock
        self.ops = OpMerger(producing, clock)
        self.lanes: Lanes | None = None  #: publish releases and marks in transactions, unless it is None
        producing.on_turn = self.ops.flush_due
        producing.on_stop = self.ops.flush_all

    def append(self, batch: Batch[HalfRecord]) -> None:
        """Store halves, each after its group and targets are known."""
        now_s = self._clock.elapsed_s()
        halves = Halves(batch, batch.items, producing=self._producing)
        halves.send(self._sendable_halves(halves, now_s))
        self._producing.watch(HALVES, (halves,), now_s + self._options.delivery_timeout_s)

    def _sendable_halves(self, halves: Halves, now_s: float) -> Sequence[int]:
        """Return the indices of those that can be sent now; the others are refused, or sent later."""
        counts = self._control.partition_counts
        size_max = self._options.body_size_max
        items = halves.items
        if type(items) is HalfColumns and items.group in counts and self._targets.accept(items, size_max, now_s):
            return range(len(items))
        known: list[int] = []
        unsure: Unsure[int] = []
        limits: dict[str, int] = {}
        for index, half in enumerate(items):
            try:
                if len(half.body) > size_max:
                    raise _too_large(half, size_max)
                unknown = self._targets.examine(half, limits, now_s)
            except MessageRejectedError as error:
                halves.refuse(index, error)
                continue
            if unknown or half.group not in counts:
                unsure.append(((half.group, tuple(unknown)), index))
            else:
                known.append(index)
        if unsure:
            self._defer_halves(halves, unsure)
        return known

    def _defer_halves(self, halves: Halves, unsure: Unsure[int]) -> None:
        for (group, topics), indices in _by_question(unsure):
            halves.unsent.update(indices)
            send, refuse = partial(self._send_deferred, halves, indices), partial(_for_each, halves.refuse, indices)
            self._look_ups.defer(group, topics, send, refuse, count=len(indices))

    def release(self, batch: Batch[Resolution], claim: KafkaClaim | None) -> None:
        """Publish the targets of each item, or its parked record; its op comes after these, or in one transaction."""
        if self.lanes is not None:
            self._release_together(self.lanes, batch, claim)
            return
        deadline_s = self._clock.elapsed_s() + self._options.delivery_timeout_s
        items = batch.items
        commits = items if type(items) is ReleaseColumns and self._is_plain(items) else None
        releases = Releases(
            batch,
            items,
            left=record_counts(items) if commits is None else [1] * len(items),
            producing=self._producing,
            ops=self.ops,
            look_ups=self._look_ups,
        )
        if commits is None:
            releases.send(self._sendable_releases(releases))
        else:
            releases.send_commits(commits)
        self._producing.watch(RELEASES, (releases,), deadline_s)
        self.ops.flush_urgent()

    def _is_plain(self, releases: ReleaseColumns) -> bool:
        """Return whether all are commits that can be sent now, and share a batch."""
        halves, topics = releases.halves, releases.halves.topics
        if not releases.all_commit or halves.has_headers or halves.group not in self._control.partition_counts:
            return False
        return self._presence.present >= topics and self._targets.small.isdisjoint(topics)

    def _sendable_releases(self, releases: Releases) -> list[int]:
        """Return the indices of those that can be sent now; the others are sent later."""
        counts = self._control.partition_counts
        present = self._presence.present
        known: list[int] = []
        unsure: Unsure[int] = []
        for index, resolution in enumerate(releases.items):
            half = resolution.half
            targets = resolution.targets
            messages = half.messages
            for target in targets:
                if messages[target].topic not in present:
                    break
            else:
                if half.group in counts:
                    known.append(index)
                    continue
            sought = [messages[target].topic for target in targets if messages[target].topic not in present]
            unsure.append(((half.group, tuple(sought)), index))
        if unsure:
            self._defer_releases(releases, unsure)
        return known

    def _defer_releases(self, releases: Releases, unsure: Unsure[int]) -> None:
        for (group, sought), indices in _by_question(unsure):
            send = partial(releases.send, indices, self._presence.refusal)
            end = partial(_for_each, releases.not_found, indices)
            self._look_ups.defer(group, (), send, end, count=len(indices), sought=sought)

    def _release_together(self, lanes: Lanes, batch: Batch[Resolution], claim: KafkaClaim | None) -> None:
        entries: list[Entry] = []
        ready: defaultdict[TransactionLane, list[Entry]] = defaultdict(list)
        unsure: Unsure[Entry] = []
        for index, resolution in enumerate(batch.items):
            half = resolution.half
            entry = Entry(half, resolution.op, claim, partial(self._finish_together, batch, index), resolution)
            entries.append(entry)
            lane = lanes.of(half.group)
            topics = self._targets.unknown(half.messages[target].topic for target in resolution.targets)
            if topics or half.group not in self._control.partition_counts:
                unsure.append(((half.group, tuple(topics)), entry))
            else:
                ready[lane].append(entry)
        deadline_s = self._clock.elapsed_s() + self._options.release_timeout_s
        self._producing.watch(IN_TRANSACTIONS, entries, deadline_s)
        for lane, some in ready.items():
            lane.put(some)
        for (group, asked), some in _by_question(unsure):
            go, end = partial(lanes.of(group).put, some), partial(_for_each, Entry.not_found, some)
            self._look_ups.defer(group, asked, go, end, count=len(some))

    def _finish_together(self, batch: Batch[Resolution], index: int, outcome: Outcome) -> None:
        """Settle an item of a transaction; a missing topic is a refusal only if the broker itself reports it."""
        refusal = outcome.error
        if isinstance(refusal, MessageRejectedError) and refusal.reason == "topic":

            def take(answer: Outcome) -> None:
                batch.settle(index, msgspec.structs.replace(answer, missing=outcome.missing))

            self._look_ups.ask(refusal.topic, take)
        else:
            batch.settle(index, outcome)

    def mark(
        self, group: str, partition: int, op: Op, stored: Callable[[], None], claim: KafkaClaim | None = None
    ) -> Future[Outcome]:
        """Append a CLAIM or TICK after the ops queued so far; *stored* is called before the Future is resolved."""
        marking = Marking(stored)
        item = cast("Any", marking)
        if self.lanes is None:
            go = partial(self.ops.mark, group, partition, op, marking.settle)
        else:
            item = Entry((group, partition), op, claim, marking.settle)
            go = partial(self.lanes.of(group).put, [item])
        self._producing.watch(MARKS, [item], self._clock.elapsed_s() + self._options.release_timeout_s)
        if group in self._control.partition_counts:
            go()
        else:
            self._look_ups.defer(group, (), go, item.not_found, count=1)
        return marking.future

    def _send_deferred(self, halves: Halves, indices: Sequence[int]) -> None:
        """Send halves after their targets were asked for, unless they have expired; runs on the thread that polls."""
        if halves.is_done:
            return
        halves.unsent.difference_update(indices)
        known: list[int] = []
        limits: dict[str, int] = {}
        now_s = self._clock.elapsed_s()
        for index in indices:
            try:
                self._targets.examine(halves.items[index], limits, now_s)
            except MessageRejectedError as error:
                halves.refuse(index, error)
            else:
                known.append(index)
        halves.send(known)


def _by_question(unsure: Unsure[Item]) -> Iterable[tuple[Question, list[Item]]]:
    """Return each question with the items that wait for its answer."""
    items: defaultdict[Question, list[Item]] = defaultdict(list)
    for question, item in unsure:
        items[question].append(item)
    return items.items()


def _for_each(end: Callable[[Item, TxcoreError], None], items: Sequence[Item], error: TxcoreError) -> None:
    """End items with the same error."""
    for item in items:
        end(item, error)


def _too_large(half: HalfRecord, size_max: int) -> MessageRejectedError:
    return MessageRejectedError(
        f"the transaction's messages have {len(half.body)} bytes together; this backend takes {size_max}",
        topic=half.messages[0].topic if half.messages else "",
        reason="size",
    )
