"""`txcore doctor` as users run it: lines, exit codes, JSON, and one sentence for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from sqlalchemy import create_engine

import txcore
from txcore.doctor import backend_checks as doctor_port
from txcore.findings import (
    Check,
    Examination,
    Level,
    Request,
    UntoldError,
    duration,
    examine,
    fail,
    ok,
    size,
    version_of,
    warn,
)
from txcore.registry import open_doctor

GROUP = "orders"


@pytest.fixture
def url(tmp_path, make_group):
    url = f"sqlite:///{tmp_path}/broker.db"
    make_group(url, GROUP, 2)
    backend = txcore.connect(url)
    backend.create_topic("mail")
    backend.close().result(5)
    return url


@pytest.fixture
def fence_url(tmp_path):
    url = f"sqlite:///{tmp_path}/shop.db"
    engine = create_engine(url)
    txcore.SqlFence(engine).create()
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    engine.dispose()
    return url


def test_all_ok(command, url, fence_url):
    """The exit code is 0, and each check has a line, within 80 columns."""
    ran = command(url, "--group", GROUP, "--target", "mail", "--database", fence_url, "--mode", "auto")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert max(len(line) for line in ran.stdout.splitlines()) <= 80
    assert {line[:6] for line in ran.stdout.splitlines()} == {"OK    ", "      ", "0 FAIL"}
    assert ran.stdout.splitlines()[-1] == "0 FAIL, 0 WARN, 28 OK of 28 checks"


def test_undecided_half_of_another_database_is_a_failure(command, url, fence_url, tmp_path):
    """The checker with that database would leave the half undecided for ever; the line names the remedy."""
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    fence = txcore.SqlFence(other)
    fence.create()
    backend = txcore.connect(url)
    transaction = txcore.TransactionProducer(backend, GROUP, fence=fence).begin()
    transaction.publish(txcore.Message("mail", b"hello"))
    with other.connect() as connection:
        transaction.prepare(connection)
        connection.commit()
    backend.close().result(5)
    ran = command(url, "--group", GROUP, "--target", "mail", "--database", fence_url, "--json")
    (line,) = (each for each in json.loads(ran.stdout)["checks"] if each["check"] == "sqlite-fence.tables")
    assert (ran.returncode, line["level"]) == (1, "FAIL")
    assert fence.identity().current.hex() in line["text"]
    assert "name the producers' database" in line["change"]
    ran = command(url, "--group", GROUP, "--target", "mail", "--database", f"sqlite:///{tmp_path}/other.db", "--json")
    assert "FAIL" not in {each["level"] for each in json.loads(ran.stdout)["checks"]}, ran.stdout
    other.dispose()


def test_warning(command, url):
    """The exit code is 3, and the remedy has its own line."""
    ran = command(url, "--group", GROUP)
    assert ran.returncode == 3
    assert (
        "\nWARN  sqlite.targets: not known whether targets exist: no target was named\n      -> --target TOPIC"
        in ran.stdout
    )


def test_failure(command, url):
    """The exit code is 1, and the skipped checks are named."""
    ran = command(url, "--group", "order", "--target", "mail")
    assert ran.returncode == 1
    assert "\nFAIL  port.group: group 'order' does not exist yet" in ran.stdout
    assert "not checked, because of port.group: port.probe, port.clock" in ran.stdout
    assert max(len(line) for line in ran.stdout.splitlines()) <= 80


def test_json(command, url):
    """The JSON has the same levels, remedies and skipped checks."""
    ran = command(url, "--group", "order", "--json", "--max-body", "3000000")
    assert ran.returncode == 1
    report = json.loads(ran.stdout)
    assert report["level"] == "FAIL"
    lines = {line["check"]: line for line in report["checks"]}
    assert lines["port.body-size"]["level"] == "FAIL"
    assert "body_size_max=3004096" in lines["port.body-size"]["change"]
    assert {"check": "port.clock", "needs": "port.group"} in report["skipped"]
    assert set(lines) | {line["check"] for line in report["skipped"]} >= {check.name for check in doctor_port.CHECKS}


@pytest.mark.parametrize(
    ("arguments", "words", "status"),
    [
        (["--group", "g"], "say where: give URL and --group, or --config FILE", 2),
        (["pigeon://loft", "--group", "g"], "unknown backend 'pigeon'", 2),
        (["broker.db", "--group", "g"], "a backend URL looks like scheme://…", 2),
        (["kafka://me:hidden[@h", "--group", "g"], "the URL has brackets or characters", 2),
        (["kafka://me:1/hidden@h", "--group", "g"], "the URL has an @ after its servers", 2),
        (["{url}", "--group", "g", "--monitor", "http://me:1/hidden@h"], "the URL has an @ after its servers", 2),
        (["memory://x", "--group", "g"], "memory:// lives inside one process", 2),
        (["sqlite:///no-such.db", "--group", "g"], "there is no broker file", 2),
        (["{url}?nope=1", "--group", "g"], "no option 'nope'", 2),
        (["{url}", "--group", "g", "--database", "shop.db"], "SQLAlchemy does not know this database URL", 2),
        (["{url}", "--group", "g", "--database", "sqlite:///no.db"], "there is no file no.db; nothing was created", 2),
        (["{url}", "--group", "g", "--database", "sqlite://"], "in memory cannot carry a fence", 2),
        (["{url}", "--group", "g", "--database", "sqlite+aiosqlite:///x"], "needs a synchronous driver", 2),
        (["{url}", "--group", "g", "--database", "{fence}", "--table", "a b"], "is not a plain table name", 2),
    ],
)
def test_mistakes_are_one_sentence(command, url, fence_url, arguments, words, status):
    """The doctor runs no check, and shows no password."""
    ran = command(*(argument.format(url=url, fence=fence_url) for argument in arguments))
    assert words in ran.stderr
    assert ran.stderr.startswith("txcore: ")
    assert len(ran.stderr.splitlines()) == 1
    assert "hidden" not in ran.stderr
    assert (ran.returncode, ran.stdout) == (status, "")


@pytest.mark.parametrize("database", ["postgresql+psycopg", "mysql+pymysql"])
def test_database_that_is_down_hides_no_broker(command, url, database):
    """Its reason is a FAIL line, without the password, and the broker's checks are made."""
    ran = command(url, "--group", GROUP, "--target", "mail", "--database", f"{database}://shop:hidden@127.0.0.1:1/shop")
    first = " ".join(line.strip() for line in ran.stdout.partition("OK  ")[0].splitlines())
    assert first.startswith("FAIL  database: the database cannot be used: the connection was lost or could not be made")
    assert (ran.returncode, "hidden" in ran.stdout + ran.stderr) == (1, False)
    assert "\nOK    port.group: " in ran.stdout


@pytest.mark.parametrize("broker", ["kafka", "rabbitmq", "nats"])
def test_broker_that_is_down_hides_no_database(command, broker, fence_url):
    """Its reason is a FAIL line, without the password, and the database's checks are made."""
    ran = command(f"{broker}://shop:hidden@127.0.0.1:1", "--group", GROUP, "--database", fence_url)
    assert ran.stdout.startswith("FAIL  broker: ")
    assert (ran.returncode, "hidden" in ran.stdout + ran.stderr) == (1, False)
    assert "\nOK    sqlite-fence.tables: " in ran.stdout


def test_a_file_names_broker_group_and_database(command, url, fence_url, tmp_path):
    """In a folder with `txcore.toml` the command needs no option, as the other commands; nor with the variables."""
    (tmp_path / "txcore.toml").write_text(
        f'[backends.main]\nurl = "{url}"\n[databases.main]\nurl = "{fence_url}"\n[groups.{GROUP}]\ndatabase = "main"\n'
    )
    ran = command("--config", f"{tmp_path}/txcore.toml", "--target", "mail", "--mode", "auto")
    assert ran.stdout.splitlines()[-1] == "0 FAIL, 0 WARN, 28 OK of 28 checks"


def test_missing_group_option_is_a_usage_error(command, url):
    """The command line itself reports the missing option."""
    ran = command(url)
    assert (ran.returncode, "--group" in ran.stderr) == (2, True)


def test_database_without_sqlalchemy_names_the_extra(url):
    """The error names the extra; without `--database` the doctor needs no SQLAlchemy."""
    hide = "import sys; sys.modules['sqlalchemy'] = None; from txcore.cli import main; main()"
    program = [sys.executable, "-c", hide, "doctor", url, "--group", GROUP]
    ran = subprocess.run([*program, "--database", "sqlite:///x"], capture_output=True, text=True, check=False)
    assert ran.stderr == (
        "txcore: 'txcore doctor --database' needs SQLAlchemy; install it with: pip install \"txcore[sql]\"\n"
    )
    assert subprocess.run(program, capture_output=True, check=False).returncode == 3


def test_exception_of_a_check_is_a_line():
    """The other checks still run, except those that need its answer."""

    def untold(_subject):
        raise UntoldError("no right", "GRANT it")

    def broken(_subject):
        raise ZeroDivisionError

    checks = (
        Check("a.untold", "it is so", untold),
        Check("a.needs", "it is so too", lambda _: ok("fine"), needs="a.untold"),
        Check("a.deep", "it is so too", lambda _: ok("fine"), needs="a.needs"),
        Check("a.broken", "it holds", broken),
        Check("a.warned", "it lasts", lambda _: warn("hm", "mend it")),
        Check("a.after", "it continues", lambda subject: fail(subject, "mend it"), needs="a.warned"),
    )
    report = examine(Examination(checks, "subject", lambda: None))
    said = [(line.name, line.finding.level.value, line.finding.text, line.finding.change) for line in report.lines]
    assert said == [
        ("a.untold", "WARN", "not known whether it is so: no right", "GRANT it"),
        ("a.broken", "WARN", "not known whether it holds: ZeroDivisionError", ""),
        ("a.warned", "WARN", "hm", "mend it"),
        ("a.after", "FAIL", "subject", "mend it"),
    ]
    assert report.skipped == (("a.needs", "a.untold"), ("a.deep", "a.untold"))
    assert report.level is Level.FAIL


def test_words_for_people():
    """Versions compare by their numbers; durations and sizes are short."""
    assert [version_of(text) for text in ("2.12.1", "v2.9", "2.12.0-rc.1", "15.18 (Debian)", "", "x")] == [
        (2, 12, 1),
        (2, 9),
        (2, 12, 0),
        (15, 18),
        (),
        (),
    ]
    assert version_of("10.11") > version_of("10.6")
    assert [duration(value) for value in (0.0042, 5, 600, 7_200, 604_800)] == [
        "4.2 ms",
        "5 s",
        "10 min",
        "2 h",
        "7 days",
    ]
    assert [size(value) for value in (0, 1_048_576, 25_000_000, 83_250_647_040)] == [
        "0 B",
        "1,048,576 B",
        "25 MB",
        "83.3 GB",
    ]


def test_a_backend_need_not_offer_checks():
    """A backend without an examination has no checks of its own."""
    assert open_doctor("memory://unused", Request("g")) is None
