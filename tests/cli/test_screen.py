"""What the commands write to a terminal: progress on standard error, colours unless NO_COLOR is set, completions."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import socket
import subprocess
import sys
import time

import pytest

DEADLINE_S = 60
PROGRAM = [sys.executable, "-m", "txcore.cli"]
ID = "01a20f07-9681-7fbd-82f9-98a65aa3d8ed"
PLACE = "--broker {kafka} --group shop --database {postgresql}"


def seen(leader, text, deadline_s=DEADLINE_S):
    """Return what a terminal has shown once *text* is there, or all of it at its end."""
    shown, end_s = "", time.monotonic() + deadline_s
    while not re.search(text, shown) and time.monotonic() < end_s:
        if select.select([leader], [], [], 0.1)[0]:
            try:
                shown += os.read(leader, 65_536).decode(errors="replace")
            except OSError:  # the program has ended
                break
    return shown


@contextlib.contextmanager
def started(arguments, folder, *, is_result_shown=False, **environment):
    """Start a command with a terminal as standard error, and yield its process and the terminal."""
    leader, follower = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=folder,
        env={**plain, "COLUMNS": "80", "LINES": "40", "TERM": "xterm-256color", **environment},
        stdin=subprocess.DEVNULL,
        stdout=follower if is_result_shown else subprocess.PIPE,
        stderr=follower,
        text=True,
    )
    os.close(follower)
    try:
        yield process, leader
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        os.close(leader)


@pytest.fixture(scope="module")
def silent():
    """URLs of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = "{}:{}".format(*server.getsockname())
        yield {"kafka": f"kafka://{host}", "postgresql": f"postgresql+psycopg://x@{host}/x"}


@pytest.mark.parametrize(
    "command",
    [
        *(f"fence {each} {PLACE}" for each in ("create", "identity", "adopt --reason x", "stats")),
        f"fence prune --older-than 7d {PLACE}",
        *(f"table {each} {PLACE}" for each in ("stats", "parked", f"resume {ID}", f"drop {ID} --why x")),
        *(f"topics {each} {PLACE}" for each in ("create", "verify", "describe")),
        "topics create --target orders --broker {kafka}",
        *(f"{each} {PLACE}" for each in ("pending", "parked", f"show {ID}", "top --once", "relay --once")),
        *(f"{each} {ID} --why x {PLACE}" for each in ("resume", "commit")),
        "doctor {kafka} --group shop --database {postgresql}",
        f"checker --check-config {PLACE}",
    ],
    ids=lambda command: command.partition(" --")[0],
)
def test_a_command_that_waits_says_so_on_the_terminal(command, silent, tmp_path):
    """Broker and database keep the command waiting: standard error has its progress, standard output has nothing."""
    busy = "asking|reading|counting|sending|trying"
    with started(shlex.split(command.format(**silent)), tmp_path) as (process, leader):
        shown = seen(leader, f"{busy}|txcore:")
        assert re.search(busy, shown), shown
        assert "txcore:" not in shown
        assert process.poll() is None
        process.kill()
        assert process.stdout.read() == ""


def test_progress_is_not_written_to_a_pipe(txcore):
    """Without a terminal standard error is empty, and standard output has the result alone."""
    ran = txcore("demo", "--orders", "60", "--kills", "0")
    assert (ran.status, ran.errors) == (0, "")
    assert "in doubt" in ran.output
    assert not re.search(r"^ *[\d.]+ s |applied|\x1b", ran.output, re.MULTILINE)


def test_the_demo_shows_its_progress_on_standard_error(tmp_path):
    """Bars are on the terminal also where the result is JSON in a file."""
    with started(["demo", "--orders", "60", "--kills", "0", "--json"], tmp_path) as (process, leader):
        assert "orders committed" in seen(leader, "orders committed.*")
        assert process.poll() is None


@pytest.mark.parametrize(
    ("environment", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_no_color_turns_colours_off(environment, is_coloured, tmp_path):
    """A terminal has colours, unless NO_COLOR is set or the terminal has none."""
    arguments = ["doctor", "sqlite:///b.db", "--group", "shop"]
    subprocess.run(
        [*PROGRAM, "topics", "create", "--broker", "sqlite:///b.db", "--group", "shop"], cwd=tmp_path, check=True
    )
    with started(arguments, tmp_path, is_result_shown=True, **environment) as (_, leader):
        shown = seen(leader, r"of \d+ checks")
    assert "of" in shown
    assert is_coloured == bool(re.search(r"\x1b\[(\d+;)*3[0-7]m", shown)), shown


def test_bash_completes_a_command(tmp_path):
    """Tab in a bash that has read the script of `--show-completion` completes commands, subcommands and options."""
    program = tmp_path / "txcore"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TERM": "dumb",
        "PS1": "$ ",
        "INPUTRC": "/dev/null",
    }
    script = subprocess.run(
        [program, "--show-completion", "bash"], env=environment, capture_output=True, text=True, check=True
    )
    (tmp_path / "completion.sh").write_text(script.stdout, encoding="utf-8")
    leader, follower = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        cwd=tmp_path,
        env=environment,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    try:
        os.write(leader, b". ./completion.sh; echo re''ady\n")
        assert "ready" in seen(leader, r"ready\r\n")
        for typed, completed in (
            ("txcore permi", "permissions "),
            ("txcore topics desc", "describe "),
            ("txcore fence prune --older", "--older-than "),
        ):
            os.write(leader, f"{typed}\t".encode())
            assert completed in seen(leader, f"{completed}$", 20)
            os.write(leader, b"\x15")  # empties the line
    finally:
        bash.kill()
        bash.wait()
        os.close(leader)
