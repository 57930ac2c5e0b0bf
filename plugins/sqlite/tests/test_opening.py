"""URLs, options, and files that are not ours."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from txcore_sqlite import PLUGIN, Options, SqliteBackend, parse_url
from txcore_sqlite.options import parse_path
from txcore_sqlite.testing import SqliteHarness

from txcore.errors import BackendUnavailableError, ConfigError


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////tmp/broker.db", "/tmp/broker.db"),
        ("sqlite:////tmp/broker.db?partitions=8", "/tmp/broker.db"),
        ("sqlite:////tmp/a%20%3F.db", "/tmp/a ?.db"),
    ],
)
def test_a_url_names_an_absolute_file(url, path):
    """Four slashes begin an absolute path; the query is not part of it."""
    assert path == str(parse_path(url))


def test_a_relative_file_is_resolved_once(tmp_path, monkeypatch):
    """Three slashes begin a path relative to the working directory at the time of the call."""
    monkeypatch.chdir(tmp_path)
    assert tmp_path / "broker.db" == parse_path("sqlite:///broker.db")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/file", "sqlite:///a/"])
def test_a_url_without_a_file_is_refused(url):
    """A URL that names no file is a ConfigError that shows how to write one."""
    with pytest.raises(ConfigError, match="sqlite:///relative"):
        parse_path(url)


def test_options_have_types_and_units():
    """Every option is read from the URL."""
    query = (
        "auto_create=false&synchronous=normal&partitions=8&busy_timeout_s=0.5&body_size_max=2000&queue_max=7&lease_s=2"
        "&page_count_max=100"
    )
    expected = Options(
        auto_create=False,
        synchronous="NORMAL",
        partitions=8,
        busy_timeout_s=0.5,
        body_size_max=2000,
        queue_max=7,
        lease_s=2.0,
        page_count_max=100,
    )
    assert expected == parse_url(f"sqlite:///b.db?{query}").options


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("unknown", "1"),
        ("auto_create", "perhaps"),
        ("synchronous", "OFF"),
        ("partitions", "0"),
        ("partitions", "4.5"),
        ("busy_timeout_s", "5s"),
        ("busy_timeout_s", "nan"),
        ("lease_s", "0"),
    ],
)
def test_a_wrong_option_is_named(key, value):
    """An unknown option or a value out of range is a ConfigError with its key."""
    with pytest.raises(ConfigError, match=key) as caught:
        parse_url(f"sqlite:///b.db?{key}={value}")
    assert key == caught.value.key


@pytest.mark.parametrize(("synchronous", "promise"), [("FULL", "yes"), ("NORMAL", "no")])
def test_capabilities_follow_the_options(opened, synchronous, promise):
    """The capabilities of a backend depend on the options that opened it."""
    capabilities = opened(synchronous=synchronous, body_size_max=5_000, busy_timeout_s=2.0).capabilities
    assert (promise, 5_000, 2.5) == (
        capabilities.fsync_before_ack,
        capabilities.body_size_max,
        capabilities.release_time_max_s,
    )


def test_the_application_s_own_database_is_refused(kit):
    """A file with other tables is refused with the reason; its tables and journal mode are not changed."""
    with closing(sqlite3.connect(kit.path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.commit()
        with pytest.raises(ConfigError, match="file of its own"):
            SqliteBackend(kit.path)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("orders",)]


def test_another_layout_is_refused(kit, backend):
    """A file of a later version is refused."""
    with closing(sqlite3.connect(kit.path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="layout 99"):
        SqliteBackend(kit.path)


def test_what_is_no_database_is_unavailable(kit, tmp_path):
    """Neither a folder, nor a missing folder, nor another kind of file can be opened."""
    kit.path.write_bytes(b"this is not a database" * 100)
    for path in (kit.path, tmp_path, tmp_path / "missing" / "broker.db"):
        with pytest.raises(BackendUnavailableError):
            SqliteBackend(path)


def test_a_locked_file_can_be_opened(kit, backend):
    """Opening a file that exists needs no write lock."""
    with kit.lock():
        SqliteBackend(kit.path).close().result(5)


def test_the_harness_offers_what_the_suite_asks_for(kit):
    """The harness offers a fresh file, its URL, topics of its own, and reading of the messages published there."""
    harness = SqliteHarness()
    harness.start()
    backend = harness.open()
    backend.ensure_group(kit.GROUP, 1).result(5)
    harness.create_topic("created")
    outcomes = kit.append(backend, kit.half(), kit.half(topics=(harness.missing_topic(),)))
    assert [outcome.status.value for outcome in outcomes] == ["durable", "refused"]
    reached = PLUGIN.connect(harness.url)
    kit.release(reached, kit.end(kit.half()))
    (delivered,) = harness.read_topic("created")
    assert (delivered.key, delivered.body, delivered.headers["txcore-group"]) == (b"k", b"payload", "orders")
    for each in (backend, reached):
        each.close().result(5)
    harness.stop()
    assert not reached.path.exists()
