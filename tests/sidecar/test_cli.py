"""`txcore config`, and the output of `txcore checker` when a package is not installed."""

from __future__ import annotations

import stat
import subprocess
import sys
import tomllib

import pytest

from txcore.config.reference import markdown

LISTENER = "class Never:\n    def check_local_transaction(self, half):\n        return None\n"
CONFIG = '[backends.main]\nurl = "sqlite:///b.db"\n[groups.orders]\n{source}\n[http]\nport = 0\n'


@pytest.fixture
def run(tmp_path):
    """Run `txcore` in an empty folder; *hidden* modules are as if they were not installed."""

    def run(*arguments, hidden=()):
        hide = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in hidden)
        return subprocess.run(
            [sys.executable, "-c", f"{hide}from txcore.cli import main\nmain()", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    run.folder = tmp_path
    return run


def test_config_init_writes_a_file_that_works_once_edited(run):
    """The command prints the next step, and refuses to replace an existing file."""
    done = run("config", "init")
    assert (0, "") == (done.returncode, done.stderr)
    assert "edit the two URLs" in done.stdout
    written = (run.folder / "txcore.toml").read_text()
    assert {"backends", "databases", "groups"} <= set(tomllib.loads(written))
    again = run("config", "init")
    assert 2 == again.returncode
    assert "txcore: txcore.toml is there already; --force replaces it\n" == again.stderr
    (run.folder / "txcore.toml").write_text("x")
    assert 0 == run("config", "init", "--force").returncode
    assert written == (run.folder / "txcore.toml").read_text()
    assert 0 == run("config", "init", "other.toml").returncode
    assert "no mistake; groups: orders\n" == run("config", "check", "other.toml").stdout


def test_what_config_init_writes_is_private(run):
    """Other users of the machine cannot read the file, also where it replaces one that they could read."""
    file = run.folder / "txcore.toml"
    for arguments in ((), ("--force",)):
        assert 0 == run("config", "init", *arguments).returncode
        assert 0o600 == stat.S_IMODE(file.stat().st_mode)
        file.chmod(0o644)


def test_config_init_where_nothing_can_be_written_is_one_sentence(run):
    """The command prints one sentence without a traceback."""
    done = run("config", "init", "no/such/folder/txcore.toml")
    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert "cannot be written: No such file or directory" in done.stderr


def test_config_check_prints_every_mistake(run):
    """The command prints one line per mistake; a configuration for operators needs no group."""
    (run.folder / "txcore.toml").write_text("[http]\nport = -1\nprt = 1\n")
    done = run("config", "check")
    assert (2, 2) == (done.returncode, len(done.stderr.splitlines()))
    assert all(line.startswith("txcore: txcore.toml:") for line in done.stderr.splitlines())
    (run.folder / "txcore.toml").write_text('[backends.main]\nurl = "sqlite:///b.db"\n')
    assert "no mistake; groups: none\n" == run("config", "check").stdout


def test_config_reference_prints_every_key(run):
    """The command prints the same reference as the page."""
    assert markdown() == run("config", "reference").stdout


@pytest.mark.parametrize(
    ("hidden", "source", "sentence"),
    [
        ("starlette", 'listener = "never:Never"', "the HTTP endpoint' needs starlette"),
        ("prometheus_client", 'listener = "never:Never"', "the HTTP endpoint' needs prometheus_client"),
        ("httpx", 'callback.url = "http://127.0.0.1:1/"', "groups.orders: 'an HTTP callback' needs httpx"),
        ("sqlalchemy", 'database = "shop"\n[databases.shop]\nurl = "sqlite:///s.db"', "'a fence' needs SQLAlchemy"),
    ],
)
def test_missing_package_is_named_with_its_extra(run, hidden, source, sentence):
    """The command ends with exit code 2 and the extra to install."""
    (run.folder / "never.py").write_text(LISTENER)
    (run.folder / "txcore.toml").write_text(CONFIG.format(source=source))
    done = run("checker", hidden=[hidden])
    assert (2, 1) == (done.returncode, sum(line.startswith("txcore: ") for line in done.stderr.splitlines()))
    assert sentence in done.stderr
    assert 'pip install "txcore[' in done.stderr
    assert "Traceback" not in done.stderr


def test_checker_without_extras_runs_with_a_listener(run, wait_until):
    """Without endpoint, callback and fence the checker needs none of their packages."""
    (run.folder / "never.py").write_text(LISTENER)
    (run.folder / "txcore.toml").write_text(CONFIG.format(source='listener = "never:Never"'))
    code = (
        "import sys\n"
        "for name in ('starlette', 'uvicorn', 'prometheus_client', 'httpx', 'sqlalchemy', 'opentelemetry'):\n"
        "    sys.modules[name] = None\n"
        "from txcore.cli import main\nmain(['checker', '--set', 'http.enabled=false'])\n"
    )
    log = run.folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-c", code], cwd=run.folder, stderr=output)
    try:
        wait_until(lambda: "state=running" in log.read_text(), "a running group")
        process.terminate()
        assert 0 == process.wait(60)
    finally:
        process.kill()
        process.wait()
