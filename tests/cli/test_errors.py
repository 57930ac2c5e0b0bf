"""An error is printed as one sentence, without a traceback, and sets the exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDE = "import sys; sys.modules[{name!r}] = None"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--broker", "memory://shop"], "memory:// lives inside one process"),
        (["--broker", "pigeon://loft"], "unknown backend 'pigeon'; known backends: kafka, memory"),
        (["--broker", "sqlite:///broker.db?nope=1"], "the sqlite backend has no option 'nope'"),
        (["--broker", "broker.db"], "a backend URL looks like scheme://…"),
        (["--database", "sqlite://"], "an SQLite database in memory cannot be shared by processes"),
        (["--database", "shop.db"], "SQLAlchemy does not know this database URL"),
        (["--database", "sqlite+aiosqlite:///shop.db"], "the demo needs a synchronous driver"),
        (["--database", "sqlite:///same.db", "--broker", "sqlite:///same.db"], "broker and database must be two files"),
        (
            ["--database", "sqlite+pysqlite:///same.db", "--broker", "sqlite:///same.db"],
            "broker and database must be two files",
        ),
    ],
)
def test_misuse_is_one_sentence(txcore, arguments, words):
    """The command runs nothing, and its exit code is that of a usage error."""
    ran = txcore("demo", "--orders", "1", "--kills", "0", *arguments)
    assert words in ran.sentence
    assert (ran.status, ran.output) == (2, "")


def test_permissions_of_a_broker_without_users_are_misuse(txcore):
    """A broker that has no users of its own has no permissions to print; nothing is opened."""
    ran = txcore("permissions", "sqlite", "--group", "orders", "--role", "checker")
    assert "sqlite has no users of its own" in ran.sentence
    assert (ran.status, ran.output) == (2, "")


def test_unreachable_database_is_one_sentence_without_its_password(txcore):
    """The sentence has the database's own reason, without the password."""
    ran = txcore("demo", "--database", "postgresql+psycopg://shop:hidden@127.0.0.1:1/shop")
    assert "the database cannot be used" in ran.sentence
    assert "hidden" not in ran.sentence
    assert ran.status == 1


def test_demo_without_sqlalchemy_names_the_extra(txcore):
    """Other commands work without SQLAlchemy."""
    ran = txcore("demo", before=HIDE.format(name="sqlalchemy"))
    assert ran.sentence == "'txcore demo' needs SQLAlchemy; install it with: pip install \"txcore[demo]\""
    assert ran.status == 2
    assert txcore("backends", before=HIDE.format(name="sqlalchemy")).status == 0


def test_demo_without_the_databases_driver_names_the_extra(txcore):
    """The demo names the extra of the missing PostgreSQL driver."""
    ran = txcore("demo", "--database", "postgresql+psycopg://127.0.0.1/x", before=HIDE.format(name="psycopg"))
    assert "txcore[postgresql]" in ran.sentence
    assert ran.status == 2


def test_plugin_without_a_consumer_is_said_so(txcore):
    """The demo refuses a plugin without a consumer."""
    spoil = """
import dataclasses, txcore_sqlite
txcore_sqlite.PLUGIN = dataclasses.replace(txcore_sqlite.PLUGIN, consumer=None)
"""
    ran = txcore("demo", "--broker", "sqlite:///b.db", before=spoil)
    assert ran.sentence == "the sqlite backend offers no consumer, so the demo could not read the messages"
    assert ran.status == 2


def test_unknown_option_is_a_usage_error(txcore):
    """A mistake on the command line is one sentence too, names the help that says what is right, and exits with 2."""
    for arguments, sentence in (
        (["demo", "--nope"], "no such option: --nope (txcore demo --help)"),
        (["demo", "--orders"], "option '--orders' requires an argument (txcore demo --help)"),
        (["show", "--group", "shop"], "missing argument 'ID' (txcore show --help)"),
        (["fence", "xyzzy"], "no such command 'xyzzy' (txcore fence --help)"),
    ):
        ran = txcore(*arguments)
        assert (ran.sentence, ran.status, ran.output) == (sentence, 2, "")


def test_version(txcore):
    """`--version` prints the version."""
    ran = txcore("--version")
    assert ran.output.startswith("txcore 0.")
    assert (ran.status, ran.errors) == (0, "")


def test_no_command_shows_help(txcore):
    """The help names the commands."""
    ran = txcore()
    assert "demo" in ran.errors
    assert "backends" in ran.errors
    assert (ran.status, ran.output) == (2, "")


def test_importing_the_command_line_imports_no_sqlalchemy():
    """The command line imports SQLAlchemy only for the demo."""
    program = "import sys, txcore.cli; txcore.cli.build_app(); print('sqlalchemy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
