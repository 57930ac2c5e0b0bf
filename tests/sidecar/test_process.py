"""`txcore checker` as a real process: signals, exit codes, failover, and the return of brokers and databases."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import ssl
import time
import urllib.error
import urllib.request
from collections import Counter

import pytest
from txcore_conformance.brokers.security import make_certificates

QUICK = (
    "partitions = 2\n"
    "limits = { idle_poll_s = 0.02, retry_s = 0.05, retry_max_s = 0.5, read_back_s = 1.0, check_deadline_s = 4.0 }\n"
)
LISTENERS = '''
import threading
import time

import txcore

STATES = txcore.LocalTransactionState


class Even:
    """Even bodies committed, odd ones did not."""

    def check_local_transaction(self, half):
        return STATES.ROLLBACK if int(half.messages[0].body) % 2 else STATES.COMMIT


class Asynchronous(Even):
    async def check_local_transaction(self, half):
        return super().check_local_transaction(half)


class Stuck:
    def check_local_transaction(self, half):
        threading.Event().wait()
'''


def configure(shop, text, *, lease_s=1.0):
    """Write `txcore.toml`: one backend, one database, and *text*."""
    (shop.folder / "answers.py").write_text(LISTENERS)
    (shop.folder / "txcore.toml").write_text(
        f'[backends.main]\nurl = "{shop.broker_url}?lease_s={lease_s}"\n'
        f'[databases.shop]\nurl = "{shop.database_url}"\n{text}'
    )


def fenced(name="orders"):
    return f'[groups.{name}]\ndatabase = "shop"\nbackend = "main"\n{QUICK}'


def all_decided(running, count):
    """Return whether at least *count* halves were finished."""
    return running.metric("txcore_ends_total") >= count


def events(running, name):
    """Return the facts of each JSON log line named *name*."""
    lines = [json.loads(line) for line in running.text.splitlines()]
    return [line for line in lines if line["event"] == name]


def test_orphans_are_resolved_and_sigterm_ends_it_well(shop, checkers, wait_until):
    """With the fence alone, only committed messages are delivered; the exit code is 0; each log line is JSON."""
    configure(shop, fenced() + '[log]\nformat = "json"\n')
    ids = shop.orphans(20)
    running = checkers("--set", "log.level=info")
    wait_until(lambda: '"checker.started"' in running.text, "the start")
    assert events(running, "checker.started")[0]["http"].startswith("http://127.0.0.1:")
    wait_until(lambda: len(shop.delivered()) == 10, "ten deliveries")
    assert 0 == running.stop()
    assert ids[True] == set(shop.delivered())
    assert [True] == [each["drained"] for each in events(running, "checker.stopped")]


def test_one_process_serves_groups_of_several_brokers_and_sources(
    shop, checkers, callback_server, tmp_path, wait_until
):
    """One process checks four groups on two brokers: with a fence, two listeners and a callback."""
    callback_server.answer = lambda asked: (200, {}, b'{"state": "COMMIT"}')
    callback_server.start()
    other = f"sqlite:///{tmp_path}/other.db"
    configure(
        shop,
        fenced()
        + f'[backends.other]\nurl = "{other}"\n'
        + f'[groups.even]\nbackend = "main"\nlistener = "answers:Even"\n{QUICK}'
        + f'[groups.later]\nbackend = "other"\nlistener = "answers:Asynchronous"\n{QUICK}'
        + f'[groups.asked]\nbackend = "other"\ncallback.url = "{callback_server.url}"\n{QUICK}',
    )
    running = checkers.ready()
    ids = shop.orphans(4)
    even = shop.orphans(4, group="even", fenced=False)
    elsewhere = type(shop).__new__(type(shop))
    elsewhere.__dict__ = {**shop.__dict__, "backend": __import__("txcore").connect(other)}
    elsewhere.broker_file = tmp_path / "other.db"
    later = elsewhere.orphans(4, group="later", fenced=False)
    asked = elsewhere.orphans(4, group="asked", fenced=False)
    wait_until(lambda: all_decided(running, 16), "sixteen ends")
    assert ids[True] | even[True] == set(shop.delivered())
    assert later[True] | asked[True] | asked[False] == set(elsewhere.delivered())
    assert asked[True] | asked[False] == {each.half["transaction_id"] for each in callback_server.asked}
    assert {"orders", "even", "later", "asked"} == {
        each["group"] for each in json.loads(running.get("/api/v1/groups")[1])["groups"]
    }
    elsewhere.backend.close().result(10)
    assert 0 == running.stop()


def test_one_group_needs_no_file(shop, checkers, wait_until):
    """Flags and environment variables alone describe a group."""
    ids = shop.orphans(4)
    running = checkers(
        "--broker", shop.broker_url, "--group", "orders", environment={"TXCORE_DATABASE": shop.database_url}
    )
    wait_until(lambda: len(shop.delivered()) == 2, "two deliveries")
    assert 0 == running.stop()
    assert ids[True] == set(shop.delivered())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_another_checker_takes_over(shop, checkers, wait_until, number):
    """The second checker delivers each message once after the first is killed or frozen, even if that one continues."""
    configure(shop, fenced())
    first = checkers.ready()
    wait_until(lambda: first.metric("txcore_partitions") == 2, "ownership")
    second = checkers.ready()
    wait_until(lambda: second.metric("txcore_partitions") == 1, "a shared group")
    ids = shop.orphans(30, immunity_s=0.3)
    first.signal(number)
    while number == signal.SIGSTOP and not shop.is_writable():
        # The process was frozen inside a transaction on a file: a server would break its lock, a file cannot.
        first.signal(signal.SIGCONT)
        first.signal(number)
    wait_until(lambda: second.metric("txcore_partitions") == 2, "the takeover")
    wait_until(lambda: len(shop.delivered()) >= 15, "fifteen deliveries")
    if number == signal.SIGSTOP:
        first.signal(signal.SIGCONT)
        wait_until(lambda: first.metric("txcore_partitions") == 1, "its share again")
        assert 0 == first.stop()
    assert 0 == second.stop()
    assert Counter(ids[True]) == Counter(shop.delivered())


def test_a_rolling_restart_leaves_no_gap(shop, checkers, wait_until):
    """A checker that stops hands over at once, long before its lease ends, and the other continues."""
    configure(shop, fenced(), lease_s=30.0)  # a takeover by time would take this long
    first = checkers.ready()
    wait_until(lambda: first.metric("txcore_partitions") == 2, "ownership")
    second = checkers.ready()
    wait_until(lambda: second.metric("txcore_partitions") == 1, "a shared group")
    assert 0 == first.stop()
    wait_until(lambda: second.metric("txcore_partitions") == 2, "the handover", 20)
    ids = shop.orphans(10)
    wait_until(lambda: len(shop.delivered()) == 5, "five deliveries")
    assert ids[True] == set(shop.delivered())
    assert 0 == second.stop()


def test_sighup_reloads_changed_groups(shop, checkers, wait_until):
    """A changed group restarts, a new one starts, the others continue; settings that need a restart are logged."""
    same = f'[groups.same]\nlistener = "answers:Even"\nbackend = "main"\n{QUICK}'
    configure(shop, fenced() + same + '[log]\nformat = "json"\nlevel = "info"\n')
    running = checkers("--set", "http.port=0")
    wait_until(lambda: len(events(running, "group.state")) >= 2, "both groups")
    changed = fenced().replace("retry_s = 0.05", "retry_s = 0.06")
    more = f'[groups.more]\nlistener = "answers:Even"\nbackend = "main"\n{QUICK}'
    configure(shop, changed + same + more + '[log]\nformat = "json"\nlevel = "debug"\n[http]\nhost = "localhost"\n')
    running.signal(signal.SIGHUP)
    (reloaded,) = wait_until(lambda: events(running, "config.reloaded"), "the reload")
    assert ("['orders']", "['http.host']") == (reloaded["restarted"], reloaded["needs_restart"])
    ids = shop.orphans(2, group="more", fenced=False)
    wait_until(lambda: set(shop.delivered()) == ids[True], "the new group's delivery")
    wait_until(lambda: events(running, "half.finished"), "debug lines from now on")
    states = [(each["group"], each["state"]) for each in events(running, "group.state")]
    assert ("same", "stopping") not in states
    assert states.count(("orders", "running")) == 2
    assert 0 == running.stop()


def test_sighup_with_a_mistake_changes_nothing(shop, checkers, wait_until):
    """The log reports the mistake's line, and the old configuration stays in force."""
    configure(shop, fenced() + '[log]\nformat = "json"\n')
    running = checkers()
    wait_until(lambda: "checker.started" in running.text, "the start")
    configure(shop, fenced() + "interval = 3\n")
    running.signal(signal.SIGHUP)
    (refused,) = wait_until(lambda: events(running, "config.refused"), "the refusal")
    assert re.search(r"txcore\.toml:\d+: groups\.orders\.interval: unknown key", refused["problem"])
    ids = shop.orphans(2)
    wait_until(lambda: set(shop.delivered()) == ids[True], "a delivery")
    assert 0 == running.stop()


def test_a_rotated_secret_is_used_after_sighup(shop, checkers, callback_server, wait_until):
    """The checker uses the new token without a restart of the process."""
    callback_server.start()
    (shop.folder / "token").write_text("first")
    configure(
        shop,
        f'[groups.asked]\nbackend = "main"\n{QUICK}[groups.asked.callback]\nurl = "{callback_server.url}"\n'
        'token_file = "token"\n',
    )
    running = checkers.ready()
    shop.orphans(1, group="asked", fenced=False)
    wait_until(lambda: callback_server.asked, "the first question")
    (shop.folder / "token").write_text("second")
    running.signal(signal.SIGHUP)
    wait_until(lambda: "config.reloaded" in running.text, "the reload")
    shop.orphans(1, group="asked", fenced=False)
    wait_until(lambda: len(callback_server.asked) > 1, "the second question")
    assert ["Bearer first", "Bearer second"] == [each.headers["authorization"] for each in callback_server.asked]
    assert 0 == running.stop()
    assert not {"first", "second"} & set(re.findall(r"\w+", running.text))


def stuck(shop, shutdown_s):
    configure(
        shop,
        f'[checker]\nshutdown_s = {shutdown_s}\n[groups.stuck]\nbackend = "main"\nlistener = "answers:Stuck"\n'
        + QUICK.replace("check_deadline_s = 4.0", "check_deadline_s = 60"),
    )


def test_the_end_comes_in_time_whatever_is_stuck(shop, checkers, wait_until):
    """A listener that never answers is abandoned; the exit code shows it."""
    stuck(shop, shutdown_s=0.5)
    running = checkers.ready()
    shop.orphans(1, group="stuck", fenced=False)
    wait_until(lambda: running.metric("txcore_in_hand_halves") == 1, "a half in hand")
    began_s = time.monotonic()
    assert 4 == running.stop()
    assert time.monotonic() - began_s < 10
    assert "drained=False" in running.text


def test_a_second_sigterm_ends_it_at_once(shop, checkers, wait_until):
    """The second signal ends the process at once, although a half is still in hand."""
    stuck(shop, shutdown_s=600)
    running = checkers.ready()
    shop.orphans(1, group="stuck", fenced=False)
    wait_until(lambda: running.metric("txcore_in_hand_halves") == 1, "a half in hand")
    running.signal(signal.SIGTERM)
    wait_until(lambda: "signal.received" in running.text, "the first signal")
    assert (503, "draining") == (running.get("/readyz")[0], json.loads(running.get("/readyz")[1])["reasons"][0])
    running.signal(signal.SIGINT)
    assert 128 + signal.SIGINT == running.wait(10)


def test_a_broker_that_is_down_at_the_start_is_waited_for(shop, checkers, wait_until):
    """The other groups work meanwhile; readiness names the missing group, and the checker retries it."""
    folder = shop.folder / "later"
    configure(
        shop,
        fenced()
        + f'[backends.later]\nurl = "sqlite:///{folder}/b.db"\n[groups.late]\nbackend = "later"\n'
        + f'listener = "answers:Even"\n{QUICK}[checker]\nrestart_s = 0.1\nrestart_max_s = 0.3\n',
    )
    running = checkers()
    ids = shop.orphans(4)
    wait_until(lambda: set(shop.delivered()) == ids[True], "deliveries of the other group")
    status, body = running.get("/readyz")
    assert 503 == status
    assert json.loads(body)["reasons"][0].startswith("group late: it is ")
    folder.mkdir()
    wait_until(running.is_ready, "readiness")
    assert 0 < running.metric("txcore_group_starts_failed_total", group="late")
    assert 0 == running.stop()


def test_a_callback_that_is_down_costs_no_check_and_no_cpu(shop, checkers, make_callback_server, wait_until):
    """Three hundred halves wait for one circuit; after the callback is back all are decided, and none was parked."""
    server = make_callback_server()
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    server.stop()
    configure(
        shop,
        f'[groups.asked]\nbackend = "main"\npolicy = {{ check_max = 1, interval_s = 0.5 }}\n{QUICK}'
        f'[groups.asked.callback]\nurl = "http://127.0.0.1:{port}/check"\n',
    )
    running = checkers.ready()
    ids = shop.orphans(300, group="asked", fenced=False)
    wait_until(lambda: running.metric("txcore_source_up") == 0, "the circuit to open")
    before_s, asked = running.cpu_s(), running.metric("txcore_callback_requests_total")
    began_s = time.monotonic()
    wait_until(lambda: time.monotonic() - began_s > 4, "four seconds")
    elapsed_s = time.monotonic() - began_s
    requests = running.metric("txcore_callback_requests_total") - asked
    share = (running.cpu_s() - before_s) / elapsed_s
    assert requests < 10 * elapsed_s, "one probe per pause, not one per half"
    assert share < 0.6, "with pauses of half a second, as set here"
    assert "degraded" == json.loads(running.get("/readyz")[1])["status"]
    server = make_callback_server(port=port)
    wait_until(lambda: all_decided(running, 300), "three hundred ends")
    assert (0, 0) == (running.metric("txcore_parked_total"), running.metric("txcore_checks_total", answer="UNKNOWN"))
    assert ids[True] | ids[False] == set(shop.delivered())
    assert 1 == running.metric("txcore_source_up")
    assert 0 == running.stop()


def test_a_wrong_configuration_ends_with_2_and_every_mistake(shop, checkers):
    """The process prints one line per mistake on standard error."""
    configure(shop, fenced() + 'listner = "x:y"\npolicy.check_max = 0\n')
    running = checkers()
    assert 2 == running.wait()
    lines = running.text.splitlines()
    assert 2 == len(lines)
    assert all(line.startswith("txcore: txcore.toml:") for line in lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[groups.g]\nbackend = "main"\nlistener = "nowhere:x"\n', "groups.g.listener: nowhere:x cannot be imported"),
        (
            '[backends.b]\nurl = "pigeon://loft"\n[groups.g]\nbackend = "b"\nlistener = "answers:Even"\n',
            "backends.b.url: unknown backend 'pigeon'",
        ),
        (
            '[backends.b]\nurl = "memory://x"\n[groups.g]\nbackend = "b"\nlistener = "answers:Even"\n',
            "backends.b.url: memory:// lives inside one process",
        ),
        (
            '[databases.d]\nurl = "nosuch://h/x"\n[groups.g]\nbackend = "main"\ndatabase = "d"\n',
            "databases.d.url: SQLAlchemy does not know this database URL",
        ),
        (
            '[groups.g]\nbackend = "main"\ndatabase = "shop"\nfence_table = "a b"\n',
            "groups.g.fence_table: table='a b' is not a plain table name",
        ),
    ],
)
def test_mistake_found_without_a_network_stops_the_start(shop, checkers, text, words):
    """The process ends with exit code 2 and the line of the setting."""
    configure(shop, text)
    running = checkers()
    assert 2 == running.wait()
    assert re.search(rf"^txcore: txcore\.toml:\d+: {re.escape(words)}", running.text, re.MULTILINE), running.text


def test_a_port_that_is_taken_ends_with_2(shop, checkers):
    """The process ends before any group has started."""
    configure(shop, fenced())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = checkers("--set", f"http.port={taken.getsockname()[1]}")
        assert 2 == running.wait()
    assert "cannot listen on 127.0.0.1" in running.text
    assert "group.state" not in running.text


def test_check_config_tries_everything_and_runs_nothing(shop, checkers, callback_server):
    """The exit code is 0 if everything can be used, and 3 with the unusable parts; nothing is created."""
    callback_server.start()
    configure(
        shop,
        fenced() + f'[groups.asked]\nbackend = "main"\n{QUICK}[groups.asked.callback]\nurl = "{callback_server.url}"\n',
    )
    running = checkers("--check-config")
    assert 3 == running.wait()
    assert "FAIL groups.orders: backend main: this broker has no group 'orders'" in running.text
    for group in ("orders", "asked"):
        shop.backend.ensure_group(group, 2).result(10)
    running = checkers("--check-config")
    assert (0, "the configuration can be used") == (running.wait(), running.text.splitlines()[-1])
    assert 5 == running.text.count("ok  ")
    callback_server.stop()
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE txcore_tx")
    running = checkers("--check-config")
    assert 3 == running.wait()
    assert "FAIL groups.orders.database: database shop: the fence table is missing" in running.text
    assert "FAIL groups.asked.callback: ConnectError" in running.text


def test_check_config_changes_nothing(shop, checkers):
    """Files that are missing are not made, and those that exist keep every row."""
    configure(shop, fenced())
    shop.backend.ensure_group("orders", 2).result(10)
    before = [rows_of(shop.broker_file), rows_of(shop.database_file)]
    assert 0 == checkers("--check-config").wait()
    assert before == [rows_of(shop.broker_file), rows_of(shop.database_file)]

    missing = [shop.folder / "no-broker.db", shop.folder / "no-shop.db"]
    urls = [f"sqlite:///{each}" for each in missing]
    running = checkers(
        "--check-config", "--set", f"backends.main.url={urls[0]}", "--set", f"databases.shop.url={urls[1]}"
    )
    assert 3 == running.wait()
    assert f"FAIL groups.orders: backend main: there is no broker file {missing[0]}" in running.text
    assert f"FAIL groups.orders.database: database shop: there is no database file {missing[1]}" in running.text
    assert [False, False] == [each.exists() for each in missing]


def rows_of(file):
    """Return the whole contents of a database as statements of SQL."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return list(connection.iterdump())


@pytest.mark.parametrize(
    ("module", "setting", "extra"),
    [("jinja2", "", "checker"), ("uvicorn", "", "checker"), ("opentelemetry", "checker.tracing=true", "otel")],
)
def test_check_config_names_the_extra_that_the_process_needs(shop, checkers, tmp_path, module, setting, extra):
    """What `--check-config` calls usable does not fail at the start because of a missing package."""
    configure(shop, fenced())
    shop.backend.ensure_group("orders", 2).result(10)
    (tmp_path / "without" / module).mkdir(parents=True)
    (tmp_path / "without" / module / "__init__.py").write_text(f"raise ModuleNotFoundError(name={module!r})")
    path = os.pathsep.join([str(tmp_path / "without"), os.environ.get("PYTHONPATH", "")])
    settings = ("--set", setting) if setting else ()
    running = checkers("--check-config", *settings, environment={"PYTHONPATH": path})
    assert 3 == running.wait()
    assert re.search(rf"FAIL .*{module}.*txcore\[{extra}\]", running.text)


def test_checker_without_http_listens_on_no_port(shop, checkers, wait_until):
    """A checker without the endpoint still finishes halves."""
    configure(shop, fenced() + "[http]\nenabled = false\n")
    ids = shop.orphans(2)
    running = checkers()
    wait_until(lambda: set(shop.delivered()) == ids[True], "a delivery")
    assert "http=None" in running.text
    assert 0 == running.stop()


def test_systemd_is_notified(shop, checkers, tmp_path):
    """The checker reports ready, reloading and stopping, as `Type=notify-reload` requires."""
    configure(shop, fenced())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        running = checkers(environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert b"READY=1" == listening.recv(1_000)
        running.signal(signal.SIGHUP)
        assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", listening.recv(1_000))
        assert b"READY=1" == listening.recv(1_000)
        running.signal(signal.SIGTERM)
        assert b"STOPPING=1" == listening.recv(1_000)
    assert 0 == running.wait()


def test_nothing_secret_is_logged(shop, checkers, wait_until):
    """The log has no password of the database, even at the level `debug`."""
    configure(shop, "")
    text = (
        (shop.folder / "txcore.toml")
        .read_text()
        .replace("[databases.shop]", "[databases.shop]\n")
        .replace(shop.database_url, "postgresql+psycopg://anna:hidden@127.0.0.1:1/shop")
    )
    (shop.folder / "txcore.toml").write_text(text + fenced() + '[log]\nlevel = "debug"\nformat = "json"\n')
    running = checkers()
    wait_until(lambda: "checker.started" in running.text, "the start")
    shop.orphans(2)
    wait_until(lambda: events(running, "database.down"), "the database to be missed")
    assert 0 == running.stop()
    assert "hidden" not in running.text


def test_a_database_that_is_down_costs_no_cpu_and_loses_nothing(shop, checkers, postgresql, wait_until):
    """After a real server is killed and started again, every half ends as its transaction did, and none was parked."""
    if not postgresql.can_be_killed:
        pytest.skip("a foreign server is not killed")
    url = postgresql.fresh_database()
    shop.use_database(url)
    text = f'[databases.real]\nurl = "{url}"\nconnect_timeout_s = 1\n[groups.orders]\nbackend = "main"\n'
    configure(shop, f'{text}database = "real"\n{QUICK}')
    running = checkers.ready()
    ids = shop.orphans(100, immunity_s=5.0)
    postgresql.kill()
    wait_until(lambda: running.metric("txcore_source_up") == 0, "the circuit to open")
    before_s, began_s, ended = running.cpu_s(), time.monotonic(), running.metric("txcore_ends_total")
    wait_until(lambda: time.monotonic() - began_s > 3, "three seconds")
    assert (running.cpu_s() - before_s) / (time.monotonic() - began_s) < 0.6
    assert ended == running.metric("txcore_ends_total") < 100
    assert "database real: " in json.loads(running.get("/readyz")[1])["reasons"][0]
    postgresql.start()
    wait_until(lambda: all_decided(running, 100), "a hundred ends")
    assert 0 == running.metric("txcore_parked_total")
    assert ids[True] == set(shop.delivered())
    assert 0 == running.stop()


def test_https_is_served_with_a_certificate_of_ones_own(tmp_path, shop, checkers, wait_until):
    """A client that trusts its authority gets an answer; the console can be disabled."""
    certificates = make_certificates(tmp_path / "certificates")
    (tmp_path / "txcore.toml").write_text(
        f'[http]\ncertificate_file = "{certificates.cert_file("server")}"\n'
        f'key_file = "{certificates.key_file("server")}"\nconsole = false\n'
        f'[backends.main]\nurl = "{shop.broker_url}"\n[databases.shop]\nurl = "{shop.database_url}"\n'
        '[groups.orders]\ndatabase = "shop"\npartitions = 2\n'
    )
    running = checkers()
    url = wait_until(lambda: re.search(r"http=(https://\S+)", running.text), "the address").group(1)
    context = ssl.create_default_context(cafile=str(certificates.ca_file))
    with urllib.request.urlopen(f"{url}/healthz", timeout=10, context=context) as answer:
        assert 200 == answer.status
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}/console", timeout=10, context=context)
    assert 0 == running.stop()


def test_a_certificate_that_cannot_be_used_stops_the_start(tmp_path, shop, checkers):
    """The error says that the certificate cannot be used, and the exit code is 2."""
    (tmp_path / "wrong.pem").write_text("no certificate")
    (tmp_path / "txcore.toml").write_text(
        '[http]\ncertificate_file = "wrong.pem"\n'
        f'[backends.main]\nurl = "{shop.broker_url}"\n[databases.shop]\nurl = "{shop.database_url}"\n'
        '[groups.orders]\ndatabase = "shop"\n'
    )
    running = checkers()
    assert 2 == running.wait()
    assert "the certificate cannot be used" in running.text
