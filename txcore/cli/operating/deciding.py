"""`txcore resume`, `commit` and `rollback`: choose, ask the fence without writing, show, confirm, act, wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from txcore.cli.operating.listing import Key, OlderThan, Reason, Topic, filter_of, names_of, now_ms, parked_journeys
from txcore.cli.operating.place import Place, Session, at_place, opened
from txcore.cli.operating.screen import Screen
from txcore.clock import SystemClock
from txcore.errors import TxcoreError, UsageError
from txcore.fence import FenceReading
from txcore.history.force_rules import REASON_TEXT
from txcore.history.journey import Journey
from txcore.history.log_survey import Survey
from txcore.ids import TransactionId, id_text
from txcore.operator import formatting, selection, to_json
from txcore.operator.awaited import Awaited
from txcore.operator.lookup import find
from txcore.operator.plan import Plan, Step, Verb, is_doubtful, plan
from txcore.results import EndResult, EndState

DONE: Final = 0
FAILED: Final = 1
UNDECIDED: Final = 3
SHOWN_MAX: Final = 20
WAIT_S: Final = 10.0
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Transactions; first or last digits are enough.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking; needed with filters.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, kept in the log for ever.")]
Override = Annotated[
    bool, typer.Option("--override-fence", help="Decide against the database, or without it. Recorded as such.")
]
Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="Longest wait for the checker; 0 does not wait.")
]
Parked = Annotated[bool, typer.Option("--parked", help="With filters: only parked transactions.")]
Pending = Annotated[bool, typer.Option("--pending", help="With filters: only pending transactions.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of the command line."""

    verb: Verb
    ids: Sequence[str]
    chosen: selection.Filter
    why: str
    is_sure: bool
    override: bool
    wait_s: float
    has_parked: bool = True
    has_pending: bool = True


@at_place
def resume(
    place: Place,
    ids: Ids = None,
    older_than: OlderThan = "",
    topic: Topic = "",
    key: Key = "",
    reason: Reason = "",
    why: Why = "",
    wait: Wait = 0.0,
    *,
    is_all: All = False,
    yes: Yes = False,
) -> None:
    """Have parked transactions checked again, with a fresh budget of checks. Repeating it is harmless.

    Name transactions, or choose with --all, --older-than, --topic, --key, --reason. The second form needs --yes;
    without it, the plan is shown and nothing is done.

    Exit code: 0 done, 1 something was refused or failed, 2 misuse, 3 not decided within --wait.
    """
    chosen = filter_of(older_than, topic, reason, key=key, is_all=is_all)
    asked = Asked(Verb.RESUME, ids or (), chosen, why, yes, override=False, wait_s=wait, has_pending=False)
    _run(place, asked)


def _deciding(verb: Verb, effect: str) -> Callable[..., None]:
    """Return the command that asks for the decision of *verb*."""

    def decide(
        place: Place,
        ids: Ids = None,
        older_than: OlderThan = "",
        topic: Topic = "",
        key: Key = "",
        reason: Reason = "",
        why: Why = "",
        wait: Wait = WAIT_S,
        *,
        is_all: All = False,
        parked: Parked = False,
        pending: Pending = False,
        yes: Yes = False,
        override_fence: Override = False,
    ) -> None:
        chosen = filter_of(older_than, topic, reason, key=key, is_all=is_all)
        both = parked == pending
        _run(place, Asked(verb, ids or (), chosen, why, yes, override_fence, wait, both or parked, both or pending))

    decide.__name__ = verb.value
    decide.__doc__ = f"""Have pending or parked transactions {effect}.

    A request goes into the log; the checker that owns the partition executes it, after immunity, through the fence.

    Exit code: 0 done, 1 something was refused or failed, 2 misuse, 3 not decided within --wait.
    """
    return at_place(decide)


commit = _deciding(Verb.COMMIT, "committed: their messages are delivered")
rollback = _deciding(Verb.ROLLBACK, "rolled back: their messages are never delivered")


def _run(place: Place, asked: Asked) -> None:
    if bool(asked.ids) == bool(asked.chosen):
        both = "; not both" if asked.ids else ""
        raise UsageError(
            f"name transactions, or choose them with --all, --older-than, --topic, --key or --reason{both}"
        )
    if asked.verb is not Verb.RESUME and not asked.why.strip():
        raise UsageError(f"{REASON_TEXT}: --why TEXT")
    parsed = [selection.wanted(text) for text in asked.ids]
    screen = Screen(as_json=place.as_json)
    with opened(place, screen) as session:
        status = _Decision(session, asked).run(parsed)
    raise typer.Exit(status)


class _Decision:
    """One run of a state-changing command."""

    def __init__(self, session: Session, asked: Asked) -> None:
        self._session = session
        self._asked = asked
        self._screen = session.screen
        self._names: dict[bytes, str] = {}
        self._results: list[dict[str, Any]] = []

    def run(self, parsed: Sequence[selection.Wanted]) -> int:
        with self._screen.busy():
            journeys = self._chosen() if self._asked.chosen else self._named(parsed)
        if not journeys:
            self._screen.say(f"no transaction in group {self._session.address.group} matches; nothing was done")
            if self._screen.as_json:
                self._screen.json([])
            return DONE
        self._names = names_of(journeys)
        plans = self._plans(journeys)
        if not self._screen.as_json:
            self._show(plans)
        doable = [each for each in plans if each.step is Step.ACT]
        if doable and not self._is_confirmed(doable):
            return self._not_done(plans)
        return self._act(plans)

    # -- selecting ---------------------------------------------------------------------------------------------------

    def _chosen(self) -> Sequence[Journey]:
        asked, now = self._asked, now_ms()
        found: list[Journey] = []
        if asked.has_pending and not asked.chosen.reason:
            with closing(self._session.operator.look()) as survey:
                found += [each for each in survey.journeys() if each.is_pending and asked.chosen.accepts(each, now)]
        if asked.has_parked:
            found += [each for each in parked_journeys(self._session) if asked.chosen.accepts(each, now)]
        return selection.oldest_first(found)

    def _named(self, parsed: Sequence[selection.Wanted]) -> Sequence[Journey]:
        """Return the named transactions, once each, in the order in which they were named."""
        operator = self._session.operator
        identities = [bytes.fromhex(each.digits) for each in parsed if each.is_whole]
        if len(identities) < len(parsed):
            with closing(operator.look()) as survey:
                known = [each.transaction_id for each in survey.journeys() if each.is_pending or each.parked]
            identities = [self._meant(each, known) for each in parsed]
        identities = list(dict.fromkeys(identities))
        with closing(operator.watch(identities, from_checkpoint=True)) as survey:
            found = [survey.find(identity) for identity in identities]
        if any(each is None or not each.has_beginning for each in found):
            with closing(operator.watch(identities, from_checkpoint=False)) as survey:
                found = [survey.find(identity) for identity in identities]
        for identity, journey in zip(identities, found, strict=True):
            if journey is None:
                raise UsageError(f"group {self._session.address.group!r} knows no transaction {id_text(identity)}")
        return [each for each in found if each is not None]

    def _meant(self, wanted: selection.Wanted, known: Sequence[bytes]) -> bytes:
        if wanted.is_whole:
            return bytes.fromhex(wanted.digits)
        identity = selection.the_one(wanted, known)
        if identity is None:  # finished perhaps, so that a repeated command says so
            return find(self._session.operator, self._session.address.group, wanted).transaction_id
        return identity

    # -- planning ----------------------------------------------------------------------------------------------------

    def _plans(self, journeys: Sequence[Journey]) -> list[Plan]:
        readings = self._readings(journeys)
        return [
            plan(self._asked.verb, journey, readings.get(journey.transaction_id), override=self._asked.override)
            for journey in journeys
        ]

    def _readings(self, journeys: Sequence[Journey]) -> Mapping[bytes, FenceReading]:
        asked = [each.transaction_id for each in journeys if (half := each.any_half) and half.asks_fence]
        if self._session.fence is None or not asked:
            return {}
        with self._screen.busy("asking the fence, without writing"):
            readings: Mapping[bytes, FenceReading] = self._session.fence.peek(asked)
        return readings

    def _show(self, plans: Sequence[Plan]) -> None:
        for each in plans[:SHOWN_MAX]:
            journey = each.journey
            state = journey.state
            code = f" {journey.parked_as.code}" if journey.parked_as is not None else ""
            old = formatting.age(selection.age_s(journey, now_ms()))
            topics = " ".join(selection.topics_in(journey)) or "-"
            self._screen.say(f"{self._names[journey.transaction_id]}  {state}{code} for {old}, to {topics}", "bold")
            self._screen.hang("  fence  ", each.fence_text)
            self._screen.hang("  plan   ", f"{'REFUSED: ' if each.step is Step.REFUSED else ''}{each.text}")
            if each.step is Step.ACT and is_doubtful(each):
                self._screen.hang("  note   ", is_doubtful(each))
        if len(plans) > SHOWN_MAX:
            self._screen.say(f"… and {len(plans) - SHOWN_MAX:,} more; --json shows all")
        counts = {step: sum(each.step is step for each in plans) for step in Step}
        self._screen.say(
            f"{self._asked.verb.value}: {counts[Step.ACT]:,} to do, {counts[Step.ALREADY]:,} already done, "
            f"{counts[Step.REFUSED]:,} refused"
        )

    # -- confirming --------------------------------------------------------------------------------------------------

    def _is_confirmed(self, plans: Sequence[Plan]) -> bool:
        asked, screen = self._asked, self._screen
        if asked.is_sure:
            return True
        if asked.chosen:
            return False
        if not screen.can_ask:
            raise UsageError("nothing was done: add --yes, as there is no terminal to confirm on")
        word = self._names[plans[0].journey.transaction_id] if len(plans) == 1 else asked.verb.value
        try:
            return bool(screen.err.input(f"type {word} to {asked.verb.value}: ").strip() == word)
        except EOFError:
            return False

    def _not_done(self, plans: Sequence[Plan]) -> int:
        is_dry = bool(self._asked.chosen)
        if self._screen.as_json:
            self._screen.json([self._row_of(each, "would_do" if each.step is Step.ACT else "") for each in plans])
        elif is_dry:
            self._screen.say("dry run, nothing was done; add --yes to do it")
        else:
            self._screen.say("not confirmed, nothing was done")
        return DONE if is_dry and all(each.step is not Step.REFUSED for each in plans) else FAILED

    # -- acting ------------------------------------------------------------------------------------------------------

    def _act(self, plans: Sequence[Plan]) -> int:
        """Read once more, act on the transactions that still need it, and wait for their ends."""
        doable = {each.journey.transaction_id for each in plans if each.step is Step.ACT}
        for each in plans:
            if each.step is not Step.ACT:
                self._report(each, "")
        if doable:
            from_checkpoint = not any(
                each.journey.is_parked or not each.journey.has_beginning for each in plans if each.step is Step.ACT
            )
            with self._screen.busy():
                survey = self._session.operator.watch(doable, from_checkpoint=from_checkpoint)
            with closing(survey):
                found = [survey.find(each.journey.transaction_id) for each in plans if each.step is Step.ACT]
                self._execute(survey, self._plans([each for each in found if each is not None]))
        if self._screen.as_json:
            self._screen.json(self._results)
        results = {each["result"] for each in self._results}
        if results & {"refused", "failed"}:
            return FAILED
        return UNDECIDED if "undecided" in results else DONE

    def _execute(self, survey: Survey, plans: Sequence[Plan]) -> None:
        asked = self._asked
        waiting: list[tuple[Plan, Awaited]] = []
        since_s = SystemClock().elapsed_s()
        doable = [each.journey for each in plans if each.step is Step.ACT]
        resumed = self._session.operator.resume_each(doable, asked.why) if asked.verb is Verb.RESUME else iter(())
        for each in self._screen.steps(plans, asked.verb.value):
            if each.step is not Step.ACT:
                self._report(each, "")
                continue
            awaited = Awaited.after(each.journey, None if asked.verb is Verb.RESUME else asked.verb.kind)
            try:
                result, text = self._resumed(resumed) if asked.verb is Verb.RESUME else self._write(each)
            except TxcoreError as error:
                self._report(each, "failed", str(error))
                continue
            if asked.wait_s > 0 and not (each.journey.is_poison or each.journey.is_dismissible):
                waiting.append((each, awaited))
            else:
                self._report(each, result, text)
        if waiting:
            self._wait(survey, waiting, since_s)

    @staticmethod
    def _resumed(results: Iterator[int | TxcoreError]) -> tuple[str, str]:
        result = next(results)
        if isinstance(result, TxcoreError):
            raise result
        return "done", f"resumed as generation {result}"

    def _write(self, each: Plan) -> tuple[str, str]:
        operator, asked = self._session.operator, self._asked
        result = operator.ask(each.journey, asked.verb.kind, asked.why, override_fence=each.is_override)
        if result.error is not None:
            raise TxcoreError(f"the request may not be stored: {result.error}; look again before repeating it")
        if result.state is not EndState.UNKNOWN:
            return "done", "off the list" if each.journey.is_dismissible else result.state.value
        return "requested", f"{asked.verb.value} requested; the checker executes it"

    def _wait(self, survey: Survey, waiting: Sequence[tuple[Plan, Awaited]], since_s: float) -> None:
        plans = {each.journey.transaction_id: each for each, _ in waiting}
        ends = self._session.operator.follow(survey, [awaited for _, awaited in waiting], self._asked.wait_s)
        try:
            self._report_ends(survey, plans, ends, since_s)
        except KeyboardInterrupt:
            self._screen.note("interrupted: the requests stay in the log, and are executed")
            raise

    def _report_ends(
        self, survey: Survey, plans: Mapping[TransactionId, Plan], ends: Iterator[EndResult], since_s: float
    ) -> None:
        with self._screen.bar(len(plans), "waiting for the checker") as advance:
            for end in ends:
                each, journey = plans[end.transaction_id], survey.find(end.transaction_id)
                if end.state is EndState.ACCEPTED:
                    self._report(each, "done", to_json.kind_name(journey.final if journey else 0) or "")
                elif end.state is EndState.CONFLICT:
                    self._report(each, "refused", str(end.error))
                else:
                    self._report(each, "undecided", self._unanswered(survey, each.journey, since_s))
                advance()

    def _unanswered(self, survey: Survey, journey: Journey, since_s: float) -> str:
        wait_s, group = f"{self._asked.wait_s:g} s", self._session.address.group
        kept = "the half" if self._asked.verb is Verb.RESUME else "the request"
        owner = survey.owners.get(journey.partition)
        if owner is not None and owner.seen_s >= since_s:
            text = f"checker {owner.by} is at work but has not decided within {wait_s}; {kept} stays in the log"
        else:
            text = f"no checker answered within {wait_s}; {kept} stays in the log for the next checker of group {group}"
        half = journey.half
        immune_s = (half.born_ms + half.immunity_ms - now_ms()) / 1000 if half is not None else 0
        return f"{text} (and the half is immune for {formatting.age(immune_s + 1)} more)" if immune_s > 0 else text

    def _report(self, each: Plan, result: str, text: str = "") -> None:
        shown = self._row_of(each, result, text)
        self._results.append(shown)
        if result:
            name = self._names.get(each.journey.transaction_id, shown["short_id"])
            self._screen.hang(f"{name}  ", f"{shown['result']}: {shown['text']}")

    def _row_of(self, each: Plan, result: str, text: str = "") -> dict[str, Any]:
        return {
            "transaction_id": id_text(each.journey.transaction_id),
            "short_id": selection.short_id(each.journey.transaction_id),
            "action": self._asked.verb.value,
            "state": each.journey.state,
            "fence": to_json.fence(each.reading),
            "result": result or each.step.value,
            "text": text or each.text,
        }
