"""`txcore audit` where Spark, Java or the configuration is missing: one sentence, and exit code 4."""

from __future__ import annotations

import importlib
import sys

import pytest
from txcore_spark.engines.session import require_java

from txcore import cli
from txcore.audit.verdicts import SEVERITIES, Severity, Verdict, exit_code
from txcore.errors import ConfigError

CONFIG = """
[backends.main]
url = "sqlite:///broker.db"
[databases.main]
url = "sqlite:///shop.db"
[groups.orders]
database = "main"
"""


@pytest.fixture
def config(tmp_path):
    """A configuration without mistakes."""
    path = tmp_path / "txcore.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def run(*arguments):
    """Run the command and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", *map(str, arguments)])
    return ended.value.code


def test_without_an_engine_it_says_which_extras_bring_one(config, capsys, monkeypatch):
    """The command prints one sentence with the command to install it, and no traceback."""
    for name in [name for name in sys.modules if name.startswith(("txcore_spark", "pyspark", "pyarrow"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert 4 == run("--config", config)
    printed = capsys.readouterr().err
    assert 'pip install "txcore[audit]"' in printed
    assert '"txcore[spark]"' in printed
    assert 1 == len(printed.strip().splitlines())


def test_without_java_it_says_so_in_one_sentence(tmp_path):
    """Java is missing when it is neither on the PATH nor in JAVA_HOME."""
    with pytest.raises(ConfigError, match="needs Java 17") as raised:
        require_java({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)})
    assert "\n" not in str(raised.value)


def test_a_wrong_configuration_is_an_error_and_no_verdict(config, capsys):
    """The exit code is 4, because 2 means violations."""
    config.write_text(CONFIG + '[audit.rules.LATE]\nseverity = "info"\n', encoding="utf-8")
    assert 4 == run("--config", config)
    assert "audit.rules.LATE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("[audit.backends.other]\n", "audit.backends.other"),
        ('[audit.backends.main]\ntaps = ["queue"]\n', "audit.backends.main.taps"),
        ('[audit.groups.orders]\ndatabases = ["sohp"]\n', "audit.groups.orders.databases"),
        ("[audit]\nlate_s = -1\n", "audit.late_s"),
    ],
)
def test_each_mistake_under_audit_is_named(config, capsys, more, key):
    """The error names the mistake's key, as for the rest of the file."""
    config.write_text(CONFIG + more, encoding="utf-8")
    assert 4 == run("--config", config)
    assert key in capsys.readouterr().err


def test_an_unknown_mode_is_refused(config, capsys):
    """The error names the known modes."""
    assert 4 == run("--config", config, "--mode", "sometimes")
    assert "incremental" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--no-such-option"], "--no-such-option"),
        (["--mode"], "--mode"),
        (["nonsense"], "nonsense"),
        (["repair"], "RUN"),
        (["repair", "seven"], "RUN"),
        (["repair", "7", "--dry"], "--dry"),
        (["--mode", "once", "--since", "yesterday"], "yesterday"),
        (["--since", "2026-01-31"], "--mode once"),
        (["--set", "audit.late_s=soon"], "audit.late_s"),
        (["--config", "/nowhere/txcore.toml"], "/nowhere/txcore.toml"),
    ],
)
def test_mistyped_argument_is_an_error_and_no_verdict(config, capsys, arguments, named):
    """The exit code is 4, because 2 means violations, and one sentence names the argument."""
    pytest.importorskip("pyspark")
    own = [] if {"--config", "repair", "nonsense"} & set(arguments) else ["--config", config]
    assert 4 == run(*own, *arguments)
    printed = capsys.readouterr()
    assert named in printed.err
    assert 1 == len(printed.err.strip().splitlines())
    assert not printed.out


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["--mode", "sometimes"], ["--steps", "few"]])
def test_the_script_for_spark_submit_ends_with_the_same_code(capsys, arguments):
    """The script, which has its own parser, ends with the same code."""
    pytest.importorskip("pyspark")
    main = importlib.import_module("txcore_spark.command").main
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert 4 == ended.value.code
    assert 1 == len(capsys.readouterr().err.strip().splitlines())


def test_repairing_a_missing_run_names_the_finished_runs(config, capsys, tmp_path):
    """The error needs no Spark session."""
    pytest.importorskip("pyarrow")
    importlib.invalidate_caches()
    assert 4 == run("repair", "7", "--config", config, "--set", f"audit.store={tmp_path}/audit")
    assert "no finished run 7; it has none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("severities", "has_failed", "code"),
    [
        (set(), False, 0),
        ({Severity.INFO}, False, 0),
        ({Severity.WARNING, Severity.INFO}, False, 1),
        ({Severity.VIOLATION, Severity.INCONCLUSIVE, Severity.WARNING}, False, 2),
        ({Severity.INCONCLUSIVE, Severity.WARNING}, False, 3),
        ({Severity.VIOLATION}, True, 4),
    ],
)
def test_exit_codes_have_their_precedence(severities, has_failed, code):
    """The exit code 4 wins over 2, then 3, then 1, then 0."""
    assert code == exit_code(severities, has_failed=has_failed)


def test_every_verdict_has_a_severity():
    """Each verdict has a severity and its own sentence."""
    assert set(Verdict) == set(SEVERITIES)
    assert len(Verdict) == len({verdict.value for verdict in Verdict})
