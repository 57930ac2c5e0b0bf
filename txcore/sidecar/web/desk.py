"""The operator's actions in the JSON API and the console: find a transaction, plan a decision, request it.

The same rules as on the command line (`txcore.operator`). A decision is a request in the op log, with the operator's
name, the time and the reason; the partition's owner executes it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from txcore.errors import TxcoreError, UsageError
from txcore.history.journey import Journey
from txcore.ids import TransactionId, id_text
from txcore.operator import selection
from txcore.operator.lookup import Asked, find
from txcore.operator.operator import Operator
from txcore.operator.plan import Plan, Step, Verb, plan
from txcore.operator.requests import Entry, read_decisions
from txcore.port import Backend
from txcore.records import REASON_SIZE_MAX
from txcore.results import EndState

if TYPE_CHECKING:
    from txcore.sidecar.group import GroupRunner
    from txcore.sidecar.process import Sidecar

LOG: Final = logging.getLogger("txcore.sidecar.web")
READS_MAX: Final = 4
READ_WAIT_S: Final = 10.0
OVERRIDE: Final = "override"
NO_FORM: Final = "this is not a form of this console"
BULK_MAX: Final = 1_000
"""Most transactions that are resumed together."""


class DeskError(Exception):
    """A request is refused or failed; `status` is the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Case:
    """One transaction as the logs and the fence show it now."""

    journey: Journey
    asked: Asked

    def plan(self, verb: Verb, *, override: bool = False) -> Plan:
        """Return the plan of a decision about it."""
        return plan(verb, self.journey, self.asked.reading, override=override)

    @property
    def mark(self) -> str:
        """The state that a decision is based on; a form sends it back, so that the desk refuses it after a change."""
        journey, reading = self.journey, self.asked.reading
        said = reading.answer.value if reading is not None else "-"
        return f"{journey.state} {journey.generation} {journey.discarded_generation} {said}".replace(" ", ".")


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of an operator.

    Attributes:
        confirmation: Typed by the operator, see `confirmation_of`.
        mark: The mark of the case, as it was shown; "" for none.
    """

    verb: Verb
    by: str
    reason: str
    confirmation: str
    override: bool = False
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Bulk:
    """The parked transactions that a filter chooses, each with the plan to resume it.

    Attributes:
        count: Number of all; `plans` has the oldest `BULK_MAX` of them.
        until_ms: Time up to which they were parked; later ones are not among them.
    """

    plans: Sequence[Plan]
    count: int
    until_ms: int

    @property
    def doable(self) -> list[Plan]:
        """The plans of those that can be resumed."""
        return [each for each in self.plans if each.step is Step.ACT]

    @property
    def refused(self) -> list[Plan]:
        """The plans of those that cannot be resumed, such as poison."""
        return [each for each in self.plans if each.step is not Step.ACT]

    @property
    def confirmation(self) -> str:
        """The confirmation to type."""
        return f"{Verb.RESUME.value} {len(self.doable)}"

    @property
    def mark(self) -> str:
        """The time and a digest of what is to be resumed; a form sends it back, so that the desk sees a change."""
        digest = hashlib.sha256()
        for each in self.doable:
            digest.update(
                each.journey.transaction_id + each.journey.discarded_generation.to_bytes(8, "big", signed=True)
            )
        return f"{self.until_ms}.{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class BulkDecision:
    """The decision of an operator to resume what a list shows; the fields are as in `Decision`."""

    by: str
    reason: str
    confirmation: str
    mark: str


def confirmation_of(transaction_id: bytes, *, override: bool) -> str:
    """Return the confirmation to type: the short id, after `override` for a decision against the fence."""
    short = selection.short_id(transaction_id)
    return f"{OVERRIDE} {short}" if override else short


class Desk:
    """See the module. Thread safe; calls block while they read."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._reads = threading.BoundedSemaphore(READS_MAX)
        self._acting = threading.Lock()

    def runner(self, group: str) -> GroupRunner:
        """Return the group's runner.

        Raises:
            DeskError: there is no such group here.
        """
        runner = self._sidecar.runners.get(group)
        if runner is None:
            raise DeskError(404, "this checker has no such group")
        return runner

    def case(self, group: str, text: str) -> Case:
        """Return one transaction, by its id or one end of it.

        Raises:
            DeskError: no transaction matches, or several do, or the logs cannot be read now.
        """
        runner = self.runner(group)
        wanted = _wanted(text)
        with self._reading(runner) as backend:
            try:
                return self._case(runner, find(Operator(backend, group, clock=self._sidecar.clock), group, wanted))
            except UsageError as error:
                raise DeskError(404, str(error)) from error

    def decisions(self, group: str) -> tuple[Sequence[Entry], int]:
        """Return the newest decisions of operators, newest first, and the number of all.

        Raises:
            DeskError: no such group, or the logs cannot be read now.
        """
        runner = self.runner(group)
        with self._reading(runner) as backend:
            return read_decisions(Operator(backend, group, clock=self._sidecar.clock))

    def bulk(self, group: str, chosen: selection.Filter) -> Bulk:
        """Return the *chosen* parked transactions, the oldest `BULK_MAX` of them, with the plan to resume each.

        Raises:
            DeskError: no such group, or the logs cannot be read now.
        """
        runner = self.runner(group)
        with self._reading(runner) as backend:
            operator = Operator(backend, group, clock=self._sidecar.clock)
            return self._bulk(operator, chosen, until_ms=self._sidecar.clock.wall_ms())

    def resume_all(self, group: str, chosen: selection.Filter, given: BulkDecision) -> int:
        """Resume the transactions that were shown, and return their number. Read and planned once more before.

        Those that were parked since then are left for another time.

        Raises:
            DeskError: not confirmed, or the list has become shorter, or the logs cannot be read or written now.
        """
        runner = self.runner(group)
        _require_reason(given.reason)
        until = given.mark.partition(".")[0]
        if not (until.isascii() and until.isdigit() and len(until) < 16):
            raise DeskError(400, NO_FORM)
        with self._reading(runner) as backend, self._acting:
            operator = Operator(backend, group, by=given.by, clock=self._sidecar.clock)
            bulk = self._bulk(operator, chosen, until_ms=int(until))
            if bulk.mark != given.mark:
                raise DeskError(409, "some of these are no longer parked; look at the list again")
            _require_confirmed(given.confirmation, bulk.confirmation)
            count = self._resume_all(operator, bulk, given.reason)
        runner.changed()
        facts = {"group": group, "verb": Verb.RESUME.value, "by": given.by, "reason": given.reason, "count": count}
        LOG.warning("operator.asked", extra={"txcore": facts})
        return count

    def _bulk(self, operator: Operator, chosen: selection.Filter, *, until_ms: int) -> Bulk:
        now_ms = self._sidecar.clock.wall_ms()
        with closing(operator.look()) as survey:
            entries = survey.open_entries()
        found = [
            each
            for each in selection.oldest_first(operator.still_parked(entries))
            if selection.since_ms(each) <= until_ms and chosen.accepts(each, now_ms)
        ]
        return Bulk([plan(Verb.RESUME, each, None, override=False) for each in found[:BULK_MAX]], len(found), until_ms)

    def _resume_all(self, operator: Operator, bulk: Bulk, reason: str) -> int:
        results = operator.resume_each([each.journey for each in bulk.doable], reason)
        for number, result in enumerate(results):
            if isinstance(result, TxcoreError):
                text = (
                    f"{number} of {len(bulk.doable)} are resumed; the next one was not: {result}; "
                    "look at the list again"
                )
                raise DeskError(503, text) from result
        return len(bulk.doable)

    def decide(self, group: str, text: str, decision: Decision) -> str:
        """Read and plan the decision once more, execute it, and return the result as text.

        Raises:
            DeskError: refused, or not confirmed, or the logs cannot be read or written now.
        """
        runner = self.runner(group)
        wanted = _wanted(text)
        if not wanted.is_whole:
            raise DeskError(400, "name the whole transaction id")
        _require_reason(decision.reason)
        identity = bytes.fromhex(wanted.digits)
        expected = confirmation_of(identity, override=decision.override)
        _require_confirmed(decision.confirmation, expected)
        facts = {"group": group, "transaction_id": identity, "verb": decision.verb.value, "by": decision.by}
        with self._reading(runner) as backend, self._acting:
            operator = Operator(backend, group, by=decision.by, clock=self._sidecar.clock)
            try:
                case = self._case(runner, operator.show(TransactionId.parse(wanted.digits)))
            except UsageError as error:
                raise DeskError(404, str(error)) from error
            text = self._act(operator, case, decision)
        runner.changed()
        LOG.warning("operator.asked", extra={"txcore": facts | {"reason": decision.reason, "result": text}})
        return text

    def _act(self, operator: Operator, case: Case, decision: Decision) -> str:
        if decision.mark and decision.mark != case.mark:
            raise DeskError(409, "the transaction has changed since it was shown; read it again")
        each = case.plan(decision.verb, override=decision.override)
        if each.step is Step.REFUSED:
            raise DeskError(409, each.text)
        if each.step is Step.ALREADY:
            return each.text
        if decision.verb is Verb.RESUME:
            return f"resumed as generation {operator.resume_journey(case.journey, decision.reason)}"
        result = operator.ask(case.journey, decision.verb.kind, decision.reason, override_fence=each.is_override)
        if result.error is not None:
            raise DeskError(503, f"the request may not be stored: {result.error}; look again before repeating it")
        if result.state is not EndState.UNKNOWN:
            return "taken off the list" if case.journey.is_dismissible else result.state.value
        return f"{decision.verb.value} is requested; the checker of its partition executes it"

    def _case(self, runner: GroupRunner, journey: Journey) -> Case:
        fence = None if runner.answers is None else runner.answers.fence
        return Case(journey, Asked() if fence is None else fence.look(journey))

    @contextmanager
    def _reading(self, runner: GroupRunner) -> Iterator[Backend]:
        """Yield the group's backend, for a few readers at a time, so that they never exhaust the checker's memory."""
        backend = runner.backend
        if backend is None:
            raise DeskError(503, f"the group is not running: {runner.status().reason}")
        if not self._reads.acquire(timeout=READ_WAIT_S):
            raise DeskError(503, "other requests are reading the logs; try again")
        try:
            yield backend
        except (TxcoreError, TimeoutError) as error:
            raise DeskError(503, str(error) or "the broker did not answer in time") from error
        finally:
            self._reads.release()


def _require_reason(reason: str) -> None:
    if not reason.strip():
        raise DeskError(400, "Give a reason: it is kept in the log")
    if len(reason) > REASON_SIZE_MAX:
        raise DeskError(400, f"The reason has more than {REASON_SIZE_MAX} characters")


def _require_confirmed(typed: str, expected: str) -> None:
    if " ".join(typed.split()).lower() != expected:
        raise DeskError(400, f"Not confirmed: type {expected}")


def _wanted(text: str) -> selection.Wanted:
    try:
        return selection.wanted(text)
    except UsageError as error:
        raise DeskError(400, str(error)) from error


def canonical(case: Case) -> str:
    """Return the whole id, as it is in URLs."""
    return id_text(case.journey.transaction_id)
