"""The checks on the port: each is broken on a real broker, which is the SQLite file unless its test says otherwise."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from txcore_conformance.kit import hasty, wait_until

import txcore
from txcore import CheckPolicy, LocalTransactionState, Message, TransactionListener, TransactionProducer, ids
from txcore.doctor import backend_checks as doctor_port
from txcore.doctor.backend_checks import port_examination
from txcore.findings import Level, Request, examine
from txcore.operator.operator import Operator
from txcore.records import LogKind

GROUP = "orders"
STATE = LocalTransactionState


class Listener(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return arg

    def check_local_transaction(self, half):
        return STATE.UNKNOWN


@pytest.fixture
def path(tmp_path, make_group):
    path = tmp_path / "broker.db"
    make_group(f"sqlite:///{path}", GROUP, 2)
    return path


@pytest.fixture
def opened(path):
    """Return a function that opens the backend on the file, with options."""
    backends = []

    def make(options=""):
        backends.append(txcore.connect(f"sqlite:///{path}{options}"))
        return backends[-1]

    yield make
    for backend in backends:
        backend.close().result(5)


@pytest.fixture
def port_line(request):
    """Return a function that makes the marked check through the port."""
    name = request.node.get_closest_marker("breaks").args[0]

    def make(backend, group=GROUP, clock=None, **options):
        def look(level, *words):
            # The first check finds the group's size.
            lines = examine(port_examination(backend, Request(group, **options), clock)).lines
            finding = next(line.finding for line in lines if line.name == name)
            said = f"{finding.text} -> {finding.change}"
            assert finding.level == level, said
            assert [word for word in words if word not in said] == [], said

        return look

    return make


def send(backend, state, count=1):
    """Send transactions whose listener returns *state*."""
    producer = TransactionProducer(backend, GROUP, listener=Listener(), policy=CheckPolicy(immunity_s=60))
    producer.send_many([(Message("mail", b"x"), state)] * count)
    producer.close()


def test_all_is_well(opened):
    """Each line is OK, and the doctor writes no half."""
    backend = opened()
    report = examine(port_examination(backend, Request(GROUP)))
    assert [line for line in report.lines if line.finding.level is not Level.OK] == []
    assert len(report.lines) == len(doctor_port.CHECKS)
    reader = backend.read(GROUP, LogKind.HALF, 0)
    assert list(reader.read(10)) == []
    reader.close()


@pytest.mark.breaks("port.group")
def test_missing_group_is_reported_and_not_made(opened, path, port_line):
    """The doctor skips the checks that need the group, and does not create it."""
    backend = opened()
    port_line(backend)("OK", "2 partitions")
    port_line(backend, "order")("FAIL", "'order' does not exist", "check the spelling")
    report = examine(port_examination(backend, Request("order")))
    assert [(name, needed) for name, needed in report.skipped if name == "port.probe"] == [("port.probe", "port.group")]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM producer_group").fetchall() == [(GROUP,)]


@pytest.mark.breaks("port.group")
def test_group_that_cannot_be_verified(opened, path, port_line):
    """The doctor fails if another connection holds the file's lock."""
    backend = opened("?busy_timeout_s=0.05")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        port_line(backend)("FAIL", "cannot be verified")


@pytest.mark.breaks("port.probe")
def test_refused_marks(opened, path, port_line):
    """The doctor fails if the store accepts no ops."""
    line = port_line(opened())
    line("OK", "100 marks: append p50")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON op BEGIN SELECT raise(ABORT, 'no room'); END")
    line("FAIL", "marks cannot be appended")


@pytest.mark.breaks("port.clock")
@pytest.mark.parametrize(("shift_s", "level"), [(0.2, "OK"), (5, "WARN"), (-5, "WARN"), (600, "FAIL")])
def test_clock(opened, port_line, wrong_clock, shift_s, level):
    """The doctor compares the broker's clock with its own, and accepts small differences."""
    port_line(opened(), clock=wrong_clock(shift_s))(level, "off this machine's")


@pytest.mark.breaks("port.leader-clocks")
@pytest.mark.parametrize(("allowed_s", "level", "word"), [(0.0, "FAIL", "too early"), (60.0, "WARN", "allow for 60 s")])
def test_leader_whose_clock_is_ahead_is_found(opened, path, port_line, allowed_s, level, word):
    """The doctor compares the clocks that stamp the partitions' op logs with each other, not with its own alone."""
    backend = hasty(opened())
    backend.capabilities = replace(backend.capabilities, clock_skew_max_s=allowed_s)
    line = port_line(backend)
    line("OK", "the leaders of 2 op logs are 0.000 s apart", "not known for the half logs")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER ahead AFTER INSERT ON op WHEN NEW.partition = 1 BEGIN "
            "UPDATE op SET appended_ms = appended_ms + 15000 WHERE position = NEW.position; END"
        )
    line(level, "of 2 op logs are 1", word, "chronyd")


@pytest.mark.breaks("port.body-size")
def test_body_size(opened, port_line):
    """The doctor reports a size that the broker would refuse, with its envelope."""
    line = port_line(opened("?body_size_max=150000"))
    line("OK", "150,000 B")
    port_line(opened("?body_size_max=100000"))("FAIL", "100,000 B", "body_size_max=104096")
    port_line(opened(), body_size=2_000_000)("FAIL", "body_size_max=2004096")


@pytest.mark.breaks("port.checkpoint")
def test_checkpoint_without_a_checker(opened, port_line, monkeypatch, eventually):
    """The doctor warns about finished halves after the checkpoint, until a checker writes it."""
    monkeypatch.setattr(ids, "SHARE", 1)  # a producer's ids go to all partitions at once
    backend = opened()
    send(backend, STATE.COMMIT, 20)
    line = port_line(backend)
    line("OK", "0 of 2 partitions")
    monkeypatch.setattr(doctor_port, "STALE_S", 0.0)
    line("WARN", "no checkpoint has been written", "start a checker")
    checker = txcore.Checker(backend, GROUP, listener=Listener())
    checker.run_once()
    checker.stop()
    line("OK")
    send(backend, STATE.COMMIT, 20)
    line("WARN", "has not passed", "2 of 2 partitions")


@pytest.mark.breaks("port.pending")
def test_undecided_half(opened, port_line):
    """The doctor warns about a half that is older than the horizon."""
    backend = opened()
    port_line(backend)("OK", "no half is undecided")
    send(backend, STATE.UNKNOWN)
    port_line(backend)("OK", "1 undecided")
    port_line(backend, horizon_s=0.001)("WARN", "more than the check horizon", "start a checker")


@pytest.mark.breaks("port.unreleased")
def test_committed_half_without_an_owner(opened, port_line, monkeypatch):
    """The doctor warns about a committed half that no checker has released for long, and not after its release."""
    backend, line = opened(), port_line(opened())
    producer = TransactionProducer(backend, GROUP, listener=Listener(), release="owner")
    producer.send_message_in_transaction(Message("t", b""), STATE.COMMIT)
    line("OK", "1 committed halves wait")
    monkeypatch.setattr(doctor_port, "UNRELEASED_S", -1.0)
    line("WARN", "nothing of them is delivered", "start a checker")
    checker = txcore.Checker(backend, GROUP, listener=Listener())
    checker.run_once()
    checker.stop()
    line("OK", "0 committed halves wait")


@pytest.mark.breaks("port.unreleased")
def test_halves_that_wait_for_a_parked_one_of_their_order_key(opened, port_line, monkeypatch):
    """The parked half is named as what holds them up; neither checkpoint nor listener is at fault."""
    backend, line = opened(), port_line(opened())
    policy = CheckPolicy(immunity_s=0.01, check_max=1)
    producer = TransactionProducer(hasty(backend), GROUP, listener=Listener(), release="owner", policy=policy)
    for key, state in ((b"k", STATE.UNKNOWN), (b"k", STATE.COMMIT), (b"other", STATE.COMMIT)):
        producer.send_message_in_transaction(Message("t", b"", order_key=key), state)
    checker = txcore.Checker(backend, GROUP, listener=Listener(), policy=CheckPolicy(interval_s=0.001, check_max=1))
    operator = Operator(backend, GROUP)
    wait_until(lambda: checker.run_once() and operator.parked(), "a parked half")
    monkeypatch.setattr(doctor_port, "UNRELEASED_S", -1.0)
    monkeypatch.setattr(doctor_port, "STALE_S", -1.0)
    line("WARN", "1 committed halves wait for the end of a parked half of their order key", "txcore parked")
    lines = examine(port_examination(backend, Request(GROUP, horizon_s=0.001))).lines
    levels = {each.name: each.finding.level for each in lines}
    assert (Level.OK, Level.OK) == (levels["port.checkpoint"], levels["port.pending"])
    checker.stop()
