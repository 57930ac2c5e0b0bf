"""The versions that a caller may ask for, and the fallback for an unavailable one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from txcore_conformance import broker_warnings, brokers
from txcore_conformance.brokers import debian, nats_programs, rabbitmq_programs

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "version", "begin"), [("nats", "2.9", "2.9."), ("nats", "newest", "2."), ("kafka", "3.9", "3.9.")]
)
def test_version_that_was_asked_for_runs(started, name, version, begin):
    """The server reports the version that the caller asked for."""
    broker = started(name, version)
    try:
        assert broker.version.startswith(begin)
    finally:
        broker.remove()


@pytest.mark.heavy
def test_environment_says_the_version(started, monkeypatch):
    """The variable chooses the version if the caller names none."""
    monkeypatch.setenv("TXCORE_NATS_VERSION", "2.9")
    broker = started("nats")
    try:
        assert broker.version.startswith("2.9.")
    finally:
        broker.remove()


@pytest.fixture
def texts(monkeypatch):
    """The list of this test's warnings."""
    kept: list[str] = []
    monkeypatch.setattr(broker_warnings, "_texts", kept)
    monkeypatch.delenv("TXCORE_BROKER_WARNINGS", raising=False)
    return kept


@pytest.mark.heavy
@pytest.mark.skipif(not debian.codename() or os.geteuid() != 0, reason="needs root on Debian")
def test_rabbitmq_falls_back_to_the_distributions_own(texts):
    """The warning names the suite that does not exist."""
    with pytest.warns(brokers.BrokerFallbackWarning, match="no-such-suite is not available"):
        found = rabbitmq_programs.rabbitmq_installation("no-such-suite")
    assert () == found.prefix
    assert texts == brokers.warnings()
    assert 1 == len(texts)


@pytest.mark.skipif(not debian.codename(), reason="needs Debian")
def test_nats_falls_back_to_the_distributions_own(texts):
    """A version that was never released leads to the distribution's own, with one warning."""
    with pytest.warns(brokers.BrokerFallbackWarning, match=r"NATS 2\.9\.999 cannot be built, nats-server: v2\."):
        found = nats_programs.nats_server("2.9.999")
    assert debian.codename() in str(found)
    assert 1 == len(texts)


def test_kafka_that_does_not_exist_is_unavailable(available):
    """Kafka has no fallback."""
    available("kafka")
    with pytest.raises(brokers.ServerUnavailableError, match=r"0\.0\.1"):
        brokers.kafka("0.0.1")


def test_warning_is_given_once_and_shown_with_those_of_the_runner(texts, monkeypatch):
    """A text is warned about once, although the runner's environment has it already."""
    monkeypatch.setenv("TXCORE_BROKER_WARNINGS", "from the runner\nours")
    with pytest.warns(brokers.BrokerFallbackWarning) as caught:
        [broker_warnings.warn(text) for text in ("ours", "ours")]
    assert 1 == len(caught)
    assert ["from the runner", "ours"] == brokers.warnings()


def test_pytest_shows_a_fallback_and_continues(tmp_path, outside):
    """Pytest shows the warning in its first lines and in its summary, even where every other warning is an error."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_it.py").write_text(
        "from txcore_conformance import broker_warnings\ndef test_it(): broker_warnings.warn('another version')\n"
    )
    plugin = "txcore_conformance.pytest_plugin"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", plugin, str(tmp_path)],
        env=outside | {"TXCORE_BROKER_WARNINGS": "from the runner"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stdout
    assert "\ntxcore broker: from the runner\n" in done.stdout
    assert "\nWARNING from the runner\nWARNING another version\n" in done.stdout
