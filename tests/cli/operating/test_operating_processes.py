"""Operators against a running checker, each in a process of its own; and on a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from txcore_conformance.machine import wait_until_stopped

from txcore.errors import BusyError
from txcore.records import OpKind

WHY = ["--why", "the customer called"]
DEADLINE_S = 60


def short(identity: str) -> str:
    """Return the short name of a transaction in tables."""
    return identity.replace("-", "")[-8:]


def results_of(ran):
    """Return the result of each transaction."""
    return {line["transaction_id"]: line["result"] for line in json.loads(ran.output)}


def pending_beside_a_frozen(checker, world):
    """Freeze a checker and return a new half; a checker that held the broker file's lock just then is frozen again."""
    while True:
        checker.send_signal(signal.SIGSTOP)
        wait_until_stopped([checker.pid])
        try:
            return world.pending()
        except BusyError:
            checker.send_signal(signal.SIGCONT)


class TestRaces:
    def test_a_running_checker_executes_requests_and_the_command_reports_the_end(self, world):
        """A running checker commits and rolls back on request, with and without a fence."""
        unfenced, committed, absent = world.pending(), world.fenced("commit"), world.fenced("rollback")
        world.start_checker()
        ran = world.process("commit", unfenced, committed, "--yes", *WHY, "--wait", "30", "--json")
        assert ran.status == 0, ran
        # The checker may have asked the fence by itself, before the operator's request was read.
        assert results_of(ran)[unfenced] == "done"
        assert results_of(ran)[committed] in {"done", "already"}
        ran = world.process("rollback", absent, "--yes", *WHY, "--wait", "30")
        assert ran.status == 0, ran
        assert [world.journey(each).final for each in (unfenced, committed, absent)] == [
            OpKind.COMMIT,
            OpKind.COMMIT,
            OpKind.ROLLBACK,
        ]

    def test_the_owner_has_the_last_word(self, world):
        """If the fence's answer changes before the owner asks, the owner refuses and the command reports it."""
        identity = world.fenced("open")
        world.start_checker()
        command = world.start("rollback", identity, "--yes", *WHY, "--wait", "30", "--json")
        world.until(lambda: any(op.kind == OpKind.FORCE for _, op in world.journey(identity).ops))
        world.open_connection.commit()
        world.open_connection.close()
        output, errors = command.communicate(timeout=DEADLINE_S)
        (line,) = json.loads(output)
        assert errors == ""
        assert (command.returncode, line["result"]) == (1, "refused")
        assert re.search("the fence says COMMIT|the fence did not answer|the other end holds: COMMIT", line["text"])
        world.until(lambda: world.journey(identity).final == OpKind.COMMIT)

    def test_many_operators_resume_at_once_and_one_message_is_delivered(self, world):
        """All commands succeed while a checker runs; each half gets one new generation and is delivered once."""
        identities = [world.parked() for _ in range(2)]
        world.start_checker()
        with ThreadPoolExecutor(4) as threads:
            runs = list(threads.map(lambda _: world.process("resume", *identities, "--yes", "--json"), range(4)))
        assert [ran.status for ran in runs] == [0] * 4, runs
        assert {result for ran in runs for result in results_of(ran).values()} <= {"done", "already"}
        ran = world.process("commit", *identities, "--yes", *WHY, "--wait", "30")
        assert ran.status == 0, ran
        assert {world.journey(each).generation for each in identities} == {1}
        assert sorted(world.bodies()) == [b"parcel 1", b"parcel 2"]
        assert world.kit.judge() == []

    def test_opposite_requests_at_once_have_one_end(self, world):
        """One request is executed and the other is refused; the log holds one end."""
        identities = [world.pending() for _ in range(3)]
        world.start_checker()
        with ThreadPoolExecutor(2) as threads:
            runs = list(
                threads.map(
                    lambda verb: world.process(verb, *identities, "--yes", *WHY, "--wait", "30", "--json"),
                    ("commit", "rollback"),
                )
            )
        for identity in identities:
            assert {results_of(ran)[identity] for ran in runs} == {"done", "refused"}, runs
            finals = [op.kind for _, op in world.journey(identity).ops if op.kind in {OpKind.COMMIT, OpKind.ROLLBACK}]
            assert len(finals) == 1
        assert len(world.bodies()) == sum(world.journey(each).final == OpKind.COMMIT for each in identities)
        assert world.kit.judge() == []

    def test_a_request_outlives_its_operator_and_its_checker(self, world):
        """After both processes are killed, the next checker executes the request once."""
        checker = world.start_checker()
        world.until(lambda: world.json("top")[0]["partitions"][0]["owner"])
        identity = pending_beside_a_frozen(checker, world)
        command = world.start("commit", identity, "--yes", *WHY, "--wait", "60")
        world.until(lambda: any(op.kind == OpKind.FORCE for _, op in world.journey(identity).ops))
        for process in (command, checker):
            process.kill()
            process.wait()
        command.communicate()
        assert world.journey(identity).final == 0
        world.start_checker()
        world.until(lambda: world.journey(identity).final == OpKind.COMMIT)
        assert len(world.bodies()) == 1
        assert world.kit.judge() == []

    def test_a_bulk_of_hundreds(self, world):
        """One command decides three hundred halves, and reports each end."""
        identities = [world.pending() for _ in range(300)]
        world.start_checker()
        ran = world.process("rollback", "--all", "--yes", *WHY, "--wait", "60", "--json")
        assert ran.status == 0, ran
        assert results_of(ran) == dict.fromkeys(identities, "done")
        assert world.json("pending") == []
        assert world.bodies() == []


class Terminal:
    """A command on a pseudo-terminal of 80 columns."""

    def __init__(self, world, *arguments: str) -> None:
        self.leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "txcore.cli", *arguments, *world.place],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**os.environ, "COLUMNS": "80", "LINES": "40", "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(follower)
        self.output = ""

    def read_until(self, text: str) -> None:
        """Read until *text* was printed, or the command ended."""
        deadline_s = time.monotonic() + DEADLINE_S
        while text not in self.plain:
            assert time.monotonic() < deadline_s, self.output
            if select.select([self.leader], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.leader, 65_536).decode()
                except OSError:  # the other side is closed
                    break
        assert text in self.plain, self.output

    @property
    def plain(self) -> str:
        """The printed text, without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.output)

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self.leader, f"{text}\n".encode())

    def end(self) -> int:
        """Read to the end and return the exit status."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            try:
                if select.select([self.leader], [], [], 0.1)[0]:
                    self.output += os.read(self.leader, 65_536).decode()
                elif self.process.poll() is not None:
                    break
            except OSError:
                break
        os.close(self.leader)
        return self.process.wait(DEADLINE_S)


class TestTerminal:
    @pytest.mark.parametrize(
        ("typed", "status", "copies", "words"),
        [(short, 0, 2, "resumed as generation 1"), (lambda _: "yes", 1, 1, "not confirmed, nothing was done")],
    )
    def test_one_transaction_is_confirmed_by_its_short_id(self, world, typed, status, copies, words):
        """Any other text does not confirm; the command prints the fence's answer before the question."""
        identity = world.parked()
        terminal = Terminal(world, "resume", short(identity))
        terminal.read_until(f"type {short(identity)} to resume: ")
        assert "no fence: the listener decides" in terminal.plain
        terminal.type(typed(identity))
        assert terminal.end() == status
        assert words in terminal.plain
        assert len(world.journey(identity).halves) == copies

    def test_several_are_confirmed_by_the_word(self, world):
        """The operator confirms several transactions by the command's name."""
        identities = [world.pending(), world.pending()]
        terminal = Terminal(world, "rollback", *identities, *WHY, "--wait", "0")
        terminal.read_until("type rollback to rollback: ")
        terminal.type("rollback")
        assert terminal.end() == 0
        assert [[op.kind for _, op in world.journey(each).ops] for each in identities] == [[OpKind.FORCE]] * 2

    def test_a_filter_asks_nothing(self, world):
        """A command with a filter and without --yes is a dry run, on a terminal too."""
        identity = world.parked()
        terminal = Terminal(world, "resume", "--all")
        assert terminal.end() == 0
        assert "dry run, nothing was done" in terminal.plain
        assert len(world.journey(identity).halves) == 1

    def test_long_work_has_a_progress_bar(self, world):
        """A command on a terminal shows its progress while it waits for the checker."""
        for _ in range(25):
            world.pending()
        terminal = Terminal(world, "rollback", "--all", "--yes", *WHY, "--wait", "1")
        assert terminal.end() == 3
        assert "waiting for the checker" in terminal.plain
        assert "0/25" in terminal.plain

    def test_control_c_while_waiting_says_that_the_request_stays(self, world):
        """The request stays in the log after the command is interrupted."""
        identity = world.pending()
        terminal = Terminal(world, "commit", identity, "--yes", *WHY, "--wait", "60")
        world.until(lambda: world.journey(identity).request)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        assert "interrupted: the requests stay in the log" in terminal.plain
        assert world.journey(identity).request is not None

    def test_top_is_live_and_ends_with_control_c(self, world):
        """New transactions are shown while it runs, and the last screen stays after the end."""
        terminal = Terminal(world, "top", "--every", "0.2")
        terminal.read_until(world.kit.group)
        identity = world.pending()
        terminal.read_until(short(identity))
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert short(identity) in terminal.plain.split("\n")[-2]
