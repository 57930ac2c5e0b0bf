"""`txcore resume`, `commit` and `rollback`: output, confirmation, refusals, and ends."""

from __future__ import annotations

import pytest
from txcore_conformance.kit import Answers

from txcore import LocalTransactionState
from txcore.records import Forced, OpKind

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
WHY = ["--why", "the customer called"]
NOW = ["--wait", "0"]


def short(identity: str) -> str:
    """Return the short name of a transaction in tables."""
    return identity.replace("-", "")[-8:]


def squeezed(text: str) -> str:
    """Return the text on one line."""
    return " ".join(text.split())


def results(lines):
    """Return the result of each transaction."""
    return {line["transaction_id"]: line["result"] for line in lines}


def kinds(world, identity):
    """Return the kinds of a transaction's ops."""
    return [op.kind for _, op in world.journey(identity).ops]


class TestResume:
    def test_a_parked_half_is_asked_again(self, world):
        """The log has the operator and the reason, and the listener decides the next generation."""
        identity = world.parked()
        ran = world("resume", short(identity), "--yes", "--why", "it is back", "--by", "anna")
        assert (ran.status, ran.errors) == (0, "")
        assert f"{short(identity)}  done: resumed as generation 1" in ran.output
        assert "fence  no fence: the listener decides" in ran.output
        assert world.journey(identity).half.reason == "anna: it is back"
        world.decide(identity, COMMIT)
        assert world.bodies() == [b"parcel 1"]

    def test_repeating_it_is_harmless(self, world):
        """Repeated resumes write one copy and deliver one message; a pending or finished half is no failure."""
        identity = world.parked()
        assert [world("resume", short(identity), "--yes").status for _ in range(3)] == [0, 0, 0]
        assert len(world.journey(identity).halves) == 2
        world.decide(identity, COMMIT)
        for name in (identity, short(identity)):
            again = world("resume", name, "--yes")
            assert (again.status, "finished already: COMMIT" in again.output) == (0, True)
        assert len(world.journey(identity).halves) == 2
        assert world.bodies() == [b"parcel 1"]

    def test_an_undeliverable_half_is_published_without_asking(self, world):
        """The command says that COMMIT is decided and that the checker will publish the missing messages."""
        identity = world.undeliverable()
        ran = world("resume", short(identity), "--yes")
        assert "will publish what is missing; COMMIT is decided" in squeezed(ran.output)
        assert ran.status == 0

    def test_poison_is_refused(self, world):
        """A poison record has no transaction to ask about, so the command refuses it."""
        identity = world.poison()
        ran = world("resume", short(identity), "--yes")
        assert (ran.status, "REFUSED: it is poison" in ran.output) == (1, True)

    def test_waiting_shows_the_end(self, world):
        """The command reports that no checker answered in time, and exits with 3."""
        identity = world.parked()
        (line,) = world.json("resume", identity, "--yes", "--wait", "0.2", status=3)
        assert line["result"] == "undecided"
        assert line["text"].startswith("no checker answered within 0.2 s; the half stays in the log")


class TestForce:
    @pytest.mark.parametrize(("verb", "state"), [("commit", OpKind.COMMIT), ("rollback", OpKind.ROLLBACK)])
    def test_a_request_stays_in_the_log_until_a_checker_executes_it(self, world, verb, state):
        """The log has the operator and the reason of the request, and later the end."""
        identity = world.pending()
        ran = world(verb, short(identity), "--yes", *WHY, "--by", "anna", *NOW)
        assert (ran.status, ran.errors) == (0, "")
        assert f"requested: {verb} requested; the checker executes it" in squeezed(ran.output)
        (line,) = world.json("pending")
        assert (line["request"]["by"], line["request"]["decision"]) == ("anna", state.name)
        assert "anna asks" in world("pending").output
        world.sweep(Answers(None), lambda: world.journey(identity).final)
        decided = next(op for _, op in world.journey(identity).ops if op.kind == OpKind.DECIDED)
        assert (decided.forced, decided.reason) == (Forced.YES, "anna: the customer called")
        assert world.journey(identity).final == state
        assert world.bodies() == ([b"parcel 1"] if state is OpKind.COMMIT else [])

    def test_no_running_checker_is_said_plainly(self, world):
        """The command exits with 3, and the request stays in the log."""
        identity = world.pending()
        ran = world("commit", short(identity), "--yes", *WHY, "--wait", "0.2")
        assert ran.status == 3
        assert "undecided: no checker answered within 0.2 s; the request stays in the log" in squeezed(ran.output)
        assert kinds(world, identity) == [OpKind.FORCE]

    def test_immunity_is_shown(self, world):
        """The command reports that a young half is immune."""
        identity = world.young()
        ran = world("rollback", identity, "--yes", *WHY, "--wait", "0.2")
        assert "(and the half is immune for" in squeezed(ran.output)

    def test_repeating_it_is_harmless(self, world):
        """The second request succeeds before and after the end; the opposite request is refused."""
        identity = world.pending()
        for _ in range(2):
            assert world("commit", identity, "--yes", *WHY, *NOW).status == 0
        world.sweep(Answers(None), lambda: world.journey(identity).final)
        ran = world("commit", identity, "--yes", *WHY)
        assert (ran.status, "finished already: COMMIT" in ran.output) == (0, True)
        other = world("rollback", identity, "--yes", *WHY)
        assert (other.status, "finished already, the other way: COMMIT" in squeezed(other.output)) == (1, True)
        assert world.bodies() == [b"parcel 1"]

    def test_a_reason_is_required(self, world):
        """The command refuses a decision without a reason, because the log keeps the reason for ever."""
        identity = world.pending()
        for arguments in (["commit", identity, "--yes"], ["rollback", identity, "--yes", "--why", "  "]):
            ran = world(*arguments)
            assert ran.sentence == "a forced decision needs a reason; it is kept in the op log: --why TEXT"
            assert ran.status == 2
        assert kinds(world, identity) == []

    def test_the_fence_is_obeyed(self, world):
        """The plan shows the fence's answer, and the command writes nothing against it."""
        committed, absent = world.fenced("commit"), world.fenced("rollback")
        ran = world("rollback", short(committed), "--yes", *WHY)
        assert "fence  COMMIT: the local transaction committed" in ran.output
        assert "REFUSED: the database says COMMIT; --override-fence goes against it" in squeezed(ran.output)
        assert ran.status == 1
        ran = world("commit", short(absent), "--yes", *WHY)
        assert "fence  ABSENT: no row; it was rolled back, or is still open" in ran.output
        assert ran.status == 1
        assert kinds(world, committed) == kinds(world, absent) == []
        assert world.fence.stats().states == {1: 1}, "asking leaves no tombstone"
        lines = world.json("rollback", committed, absent, "--yes", *WHY, *NOW, status=1)
        assert results(lines) == {committed: "refused", absent: "requested"}
        assert lines[0]["fence"]["answer"] in {"COMMIT", "ABSENT"}

    def test_an_override_is_recorded_as_such(self, world):
        """The row has state 4, and the log says that the decision was forced against the fence."""
        identity = world.fenced("rollback")
        ran = world("commit", identity, "--yes", *WHY, *NOW, "--override-fence")
        assert "AGAINST THE FENCE" in ran.output
        assert "should its database transaction still be open, it will fail to commit" in squeezed(ran.output)
        world.sweep_fenced(lambda: world.journey(identity).final)
        assert world.journey(identity).final == OpKind.COMMIT
        assert world.fence.stats().states == {4: 1}
        assert "forced against the fence" in squeezed(world("show", identity).output)

    def test_a_row_of_the_listener_style_stands_against_a_decision(self, world):
        """The plan refuses a decision against the row, as the checker does; without a row the operator decides."""
        with_row, without = world.listened(), world.listened(has_row=False)
        ran = world("rollback", with_row, "--yes", *WHY)
        assert "REFUSED: the database says COMMIT; --override-fence goes against it" in squeezed(ran.output)
        assert (ran.status, kinds(world, with_row)) == (1, [])
        ran = world("commit", without, "--yes", *WHY, *NOW)
        assert "will publish its messages, in the listener's place; the fence has no row" in squeezed(ran.output)
        assert world("rollback", with_row, "--yes", *WHY, *NOW, "--override-fence").status == 0
        world.sweep_fenced(lambda: world.journey(with_row).final and world.journey(without).final)
        assert world.journey(without).final == OpKind.COMMIT
        assert world.journey(with_row).final == OpKind.ROLLBACK
        assert world.journey(with_row).overrides, "the audit reports it as one"

    def test_without_a_database_only_an_override_goes_on(self, world):
        """A database that is unreachable or not given makes the command refuse, except with an override."""
        identity = world.fenced()
        place = world.place[:4]
        ran = world.here("commit", identity, "--yes", *WHY, *place)
        assert (ran.status, "the fence was not asked; give --database" in squeezed(ran.output)) == (1, True)
        gone = [*place, "--database", "postgresql+psycopg://shop:hidden@127.0.0.1:1/shop"]
        ran = world.here("commit", identity, "--yes", *WHY, *gone)
        assert (ran.status, "the database does not answer" in squeezed(ran.output)) == (1, True)
        assert kinds(world, identity) == []
        ran = world.here("commit", identity, "--yes", *WHY, *NOW, "--override-fence", *gone)
        assert ran.status == 0
        assert kinds(world, identity) == [OpKind.FORCE]

    def test_rollback_is_refused_when_messages_may_be_out(self, world):
        """If a COMMIT is journaled, the command writes neither a rollback nor an override, and resumes nothing."""
        identity = world.undeliverable()
        before = kinds(world, identity)
        for extra in ([], ["--override-fence"]):
            ran = world("rollback", identity, "--yes", *WHY, *extra)
            assert (ran.status, "messages may be out" in squeezed(ran.output)) == (1, True)
        assert kinds(world, identity) == before
        assert len(world.journey(identity).halves) == 1


def test_poison_is_taken_off_the_list(world):
    """The rollback ends the record at once, without a checker, with operator and reason; a repetition is harmless."""
    identity = world.poison()
    refused = world("commit", short(identity), "--yes", *WHY)
    assert (refused.status, "REFUSED: it is poison" in refused.output) == (1, True)
    ran = world("rollback", short(identity), "--yes", "--why", "a stray script", "--by", "anna")
    assert (ran.status, f"{short(identity)}  done: off the list" in ran.output) == (0, True)
    assert world.json("parked") == []
    assert world("rollback", identity, "--yes", *WHY).status == 0
    shown = world.json("show", identity)
    assert shown["state"] == "rolled back"
    assert [(op["kind"], op["by"], op["reason"]) for op in shown["ops"]][1:] == [("ROLLBACK", "anna", "a stray script")]
    world.finished()
    assert world.kit.judge() == []


class TestBulk:
    def test_nothing_happens_without_yes(self, world):
        """A dry run shows the plan; with --yes the command executes it."""
        first, second = world.parked(), world.parked()
        pending = world.pending()
        ran = world("resume", "--all")
        assert (ran.status, ran.errors) == (0, "")
        assert "resume: 2 to do, 0 already done, 0 refused" in ran.output
        assert "dry run, nothing was done; add --yes to do it" in ran.output
        assert results(world.json("resume", "--all")) == {first: "would_do", second: "would_do"}
        assert {len(world.journey(each).halves) for each in (first, second)} == {1}
        assert results(world.json("resume", "--all", "--yes")) == {first: "done", second: "done"}
        assert {len(world.journey(each).halves) for each in (first, second)} == {2}
        assert results(world.json("resume", "--all", "--yes")) == {}
        assert len(world.journey(pending).halves) == 1

    def test_filters_choose(self, world):
        """The filters select by age, topic and reason for parking, and by pending or parked."""
        other = world.kit.topic("other")
        parked = world.parked()
        pending, elsewhere = world.pending(), world.pending(world.message(other))

        def would(*arguments):
            return set(results(world.json("rollback", *WHY, *arguments)))

        assert would("--all") == {parked, pending, elsewhere}
        assert would("--all", "--parked") == would("--reason", "CHECKS_EXHAUSTED") == {parked}
        assert would("--all", "--pending") == {pending, elsewhere}
        assert would("--topic", other) == {elsewhere}
        assert would("--older-than", "1h") == set()
        assert would("--older-than", "0s", "--topic", world.topic) == {parked, pending}

    def test_refused_transaction_does_not_stop_the_others(self, world):
        """A refused transaction also sets the exit code, in the dry run too."""
        poison, parked = world.poison(), world.parked()
        lines = world.json("resume", "--all", status=1)
        assert results(lines) == {poison: "refused", parked: "would_do"}
        assert results(world.json("resume", "--all", "--yes", status=1)) == {poison: "refused", parked: "done"}

    def test_many_are_shown_in_part(self, world):
        """The dry run prints twenty transactions and the number of the others."""
        identities = [world.pending() for _ in range(23)]
        ran = world("rollback", "--all", *WHY)
        assert "… and 3 more; --json shows all" in ran.output
        assert "rollback: 23 to do" in ran.output
        assert set(results(world.json("rollback", "--all", *WHY, "--yes", *NOW))) == set(identities)


class TestMisuse:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["resume"], "name transactions, or choose them with --all, --older-than, --topic, --key or --reason"),
            (["resume", "abcd1234", "--all"], "not both"),
            (["resume", "abc", "--yes"], "'abc' is too short: give at least 4 digits of the id"),
            (["commit", "order-17", "--yes", *WHY], "'order-17' is not a transaction id"),
            (["resume", "abcd1234", "--yes"], "knows no transaction 'abcd1234'"),
            (["resume", "01a1feb1-d200-775f-9898-13a298331c24", "--yes"], "knows no transaction 01a1feb1-d200"),
            (["rollback", "--reason", "customer called", "--why", "x"], "--reason selects by the reason for parking"),
            (["resume", "--older-than", "tomorrow"], "--older-than takes a duration"),
        ],
    )
    def test_is_one_sentence(self, world, arguments, words):
        """The command prints one sentence and exits with 2."""
        ran = world(*arguments)
        assert words in ran.sentence
        assert (ran.status, ran.output) == (2, "")

    def test_without_a_terminal_yes_is_needed(self, world):
        """Without a terminal no user can confirm, so the command requires --yes."""
        identity = world.parked()
        ran = world("resume", identity)
        assert ran.sentence == "nothing was done: add --yes, as there is no terminal to confirm on"
        assert ran.status == 2
        assert len(world.journey(identity).halves) == 1

    def test_an_ambiguous_id_lists_the_candidates(self, world):
        """The error lists all transactions that the short id may mean."""
        first, second = world.pending(), world.pending()
        ran = world("rollback", first[:6], "--yes", *WHY)
        assert first in ran.sentence
        assert second in ran.sentence
        assert ran.status == 2

    def test_a_database_that_is_none_is_said(self, world):
        """The command checks the database's URL before anything else."""
        identity = world.fenced()
        for url, words in (
            ("sqlite:///nope.db", "there is no database file nope.db"),
            ("shop", "--database: SQLAlchemy does not know this database URL"),
            ("sqlite+aiosqlite:///x.db", "--database: sqlite+aiosqlite is an asynchronous driver"),
        ):
            ran = world.here("commit", identity, "--yes", *WHY, *world.place[:4], "--database", url)
            assert words in ran.sentence
            assert ran.status == 2

    def test_a_database_without_the_fence_is_no_answer(self, world):
        """A wrong database does not count as an answer that the transaction was rolled back."""
        identity = world.fenced("rollback")
        other = world.folder / "other.db"
        other.touch()
        ran = world.here("rollback", identity, "--yes", *WHY, *world.place[:4], "--database", f"sqlite:///{other}")
        assert ran.status == 1
        assert "run `txcore fence create`" in squeezed(ran.output)
