"""The crash plugin reports every way in which a user's transaction can fail, and cases that it cannot judge."""

from __future__ import annotations

import asyncio
from pathlib import Path

import sqlalchemy
from txcore_conformance.crash_plugin import kill_at_every_step
from txcore_conformance.scenario import Scenario

import txcore

ORDERS = sqlalchemy.text("INSERT INTO orders VALUES (:name)")


def engine_of(place):
    """Return an engine that keeps no connection open."""
    return sqlalchemy.create_engine(place.database, poolclass=sqlalchemy.NullPool)


class Shop(Scenario):
    """Writes an order to the database, and its name to the message."""

    group = "shop"
    topics = ("orders",)
    preload = ("pytest",)

    def setup(self, place):
        engine = engine_of(place)
        txcore.SqlFence(engine).create()
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE orders (name TEXT)"))

    def run(self, place):
        self.backend = txcore.connect(place.broker)
        engine = engine_of(place)
        producer = txcore.TransactionProducer(self.backend, self.group, fence=txcore.SqlFence(engine))
        self.place_order(place, producer, engine)
        self.backend.close().result(10)

    def place_order(self, place, producer, engine):
        with producer.transaction(engine) as tx:
            tx.connection.execute(ORDERS, {"name": "one"})
            tx.publish(txcore.Message("orders", b"one"))

    def committed(self, place):
        with engine_of(place).connect() as connection:
            return list(connection.execute(sqlalchemy.text("SELECT name FROM orders")).scalars())

    def announced(self, message):
        return message.body.decode()


class Early(Shop):
    """Sends the message before the transaction."""

    def place_order(self, place, producer, engine):
        tx = producer.begin()
        tx.publish(txcore.Message("orders", b"one"))
        tx.prepare()
        tx.commit()
        with engine.begin() as connection:
            connection.execute(ORDERS, {"name": "one"})

    def listener(self, place):
        return Always()


PREPARE = "await tx.prepare()"
WRITE = "with engine.begin() as connection:"


class AsyncEarly(Early):
    """The same mistake in a coroutine."""

    def run(self, place):
        async def place_order():
            tx = producer.begin()
            tx.publish(txcore.Message("orders", b"one"))
            await tx.prepare()
            await tx.commit()
            with engine.begin() as connection:
                connection.execute(ORDERS, {"name": "one"})

        with txcore.connect(place.broker) as backend:
            producer, engine = txcore.AsyncTransactionProducer(backend, self.group), engine_of(place)
            asyncio.run(place_order())


class Always(txcore.TransactionListener):
    """Answers COMMIT for a half that never had a transaction."""

    def execute_local_transaction(self, message, arg):
        raise NotImplementedError

    def check_local_transaction(self, half):
        return txcore.LocalTransactionState.COMMIT


class Twice(Shop):
    """Announces one order in two transactions."""

    def place_order(self, place, producer, engine):
        super().place_order(place, producer, engine)
        with producer.transaction(engine) as tx:
            tx.publish(txcore.Message("orders", b"one"))


class Idle(Shop):
    """Does nothing."""

    def place_order(self, place, producer, engine):
        pass


class Failing(Shop):
    """Raises the user's own error."""

    def place_order(self, place, producer, engine):
        raise ValueError("no tea")


class Moody(Shop):
    """Takes a step whose name differs in each run."""

    def place_order(self, place, producer, engine):
        place.step(f"step {id(place)} {place.database}")
        super().place_order(place, producer, engine)


class Served(Shop):
    """Has its checker inside, as a service does."""

    def place_order(self, place, producer, engine):
        with txcore.Checker(self.backend, self.group, fence=txcore.SqlFence(engine)):
            super().place_order(place, producer, engine)


class Own(Shop):
    """Has its own step between its two transactions."""

    def place_order(self, place, producer, engine):
        with engine.begin() as connection:
            connection.execute(ORDERS, {"name": "one"})
        place.step("called the bank")
        with producer.transaction(engine) as tx:
            tx.publish(txcore.Message("orders", b"one"))


class Repeating(Shop):
    """Handles its message again after each kill, as if it had never handled it."""

    restart = Shop.run


class Unrestartable(Shop):
    """Cannot start again."""

    def restart(self, place):
        raise ValueError("no kettle")


def steps_of(verdict):
    return [finding.step for finding in verdict.findings]


def test_a_correct_transaction_is_atomic_at_every_step():
    """The transaction is killed before, during and after each command of txcore and each COMMIT."""
    verdict = kill_at_every_step(Shop)
    assert [] == verdict.wrong, str(verdict)
    expected = {"no kill", "before half:1", "during half:1", "after database COMMIT:1", "during release COMMIT:1"}
    assert expected <= set(steps_of(verdict))
    neither = [finding for finding in verdict.findings if not finding.both]
    assert neither
    assert len(neither) < len(verdict.findings)


def test_a_checker_inside_the_service_adds_no_steps():
    """The application is killed as it is: its steps are the same in each run."""
    verdict = kill_at_every_step(Served)
    assert [] == verdict.wrong, str(verdict)
    assert not [step for step in steps_of(verdict) if "checkpoint" in step or "mark" in step]


def test_a_message_before_the_transaction_is_leaked():
    """After a kill the announced order is missing."""
    wrong = kill_at_every_step(Early).wrong
    assert [("one",)] * len(wrong) == [tuple(finding.leaked) for finding in wrong]
    assert "before database COMMIT:1" in [finding.step for finding in wrong]


def test_the_report_names_the_users_lines_and_what_to_change():
    """Each step has the file and line of the user's code, in a coroutine too; the advice quotes both."""
    verdict = kill_at_every_step(AsyncEarly)
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    prepare, write = (source.index(f"            {line}") + 1 for line in (PREPARE, WRITE))
    halves = [verdict.steps[f"{when} half:1"].number for when in ("before", "during", "after")]
    assert [prepare] * 3 == halves
    assert write == verdict.steps["before database COMMIT:1"].number
    assert f"before half:1 {place_of(prepare)} " in " ".join(str(verdict).split())
    advice = " ".join(str(verdict).rpartition("\n\n")[2].split())
    assert advice.startswith("LEAKED: the message is stored or sent at ")
    assert f"test_crash_plugin.py:{prepare} (`{PREPARE}`)" in advice
    assert f"and its record is committed only later, at {place_of(write)} (`{WRITE}`). Do both in one tr" in advice


def place_of(number):
    """Return a line of this file as the report names it."""
    path = Path(__file__)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{number}"


def test_two_messages_with_ids_of_their_own_are_doubled():
    """The messages are doubled even without a kill, so no process is killed."""
    verdict = kill_at_every_step(Twice)
    assert ["no kill"] == steps_of(verdict)
    assert "DOUBLED one" in str(verdict)
    advice = " ".join(str(verdict).rpartition("\n\n")[2].split())
    assert advice.startswith("DOUBLED: the run publishes one record in several transactions, from ")
    assert 2 == advice.count("test_crash_plugin.py:")


def test_a_run_that_does_nothing_proves_nothing():
    """A run without records is an error."""
    text = str(kill_at_every_step(Idle))
    assert "the run left no records" in text
    assert "Let `run` commit a record and publish its message" in text


def test_an_error_of_the_users_own_is_shown():
    """The error is shown with its trace."""
    text = str(kill_at_every_step(Failing))
    assert "ValueError: no tea" in text
    assert "let it pass as an ordinary test first" in text


def test_a_step_that_does_not_come_again_is_reported():
    """The plugin reports the missing step, because a kill that never happened must not count as passed."""
    verdict = kill_at_every_step(Moody)
    wrong = verdict.wrong
    assert 1 == len(wrong)
    assert "did not come again in 3 runs" in str(wrong[0].problem)
    assert "the same steps each time" in wrong[0].cure
    assert " 0 broke atomicity, 1 gave no result\n" in str(verdict)


def test_a_step_of_the_users_own_is_killed_at_too():
    """The plugin kills at a step that the user defines, between two transactions."""
    wrong = {finding.step: finding for finding in kill_at_every_step(Own).wrong}
    assert ["one"] == list(wrong["called the bank:1"].lost)


def test_a_message_that_comes_again_is_handled_twice_without_an_inbox():
    """`restart` runs after each kill: the order that was committed before has a second announcement."""
    verdict = kill_at_every_step(Repeating)
    doubled = {finding.step for finding in verdict.findings if finding.doubled}
    assert {"after database COMMIT:1", "before release COMMIT:1"} <= doubled, str(verdict)
    assert not doubled & {"no kill", "before database COMMIT:1"}


def test_a_restart_that_fails_is_reported():
    """A service that cannot start again has no finding but its error."""
    verdict = kill_at_every_step(Unrestartable)
    assert {"no kill"} == {finding.step for finding in verdict.findings if not finding.is_wrong}
    assert "`restart` ended with an error of its own" in str(verdict)
    assert "no kettle" in str(verdict)
