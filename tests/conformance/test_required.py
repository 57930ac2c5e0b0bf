"""A missing server skips a test, unless TXCORE_REQUIRE names it."""

from __future__ import annotations

import pytest
from txcore_conformance.required import obtained
from txcore_conformance.server_packages import ServerUnavailableError


def missing():
    raise ServerUnavailableError("no such program")


def test_a_server_without_a_name_is_never_required(monkeypatch):
    """A third party's harness may have no name for its server; then a missing one skips, whatever is required."""
    monkeypatch.delenv("TXCORE_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception):
        obtained("", missing)


def test_server_that_starts_is_returned():
    """The result of the start is returned unchanged."""
    assert obtained("kafka", lambda: 7) == 7


@pytest.mark.parametrize(
    ("required", "outcome"), [("nats", pytest.skip.Exception), ("nats, kafka", pytest.fail.Exception)]
)
def test_missing_server_skips_or_fails(monkeypatch, required, outcome):
    """Without the server the test is skipped, or fails if the server is required; both name the server and why."""
    monkeypatch.setenv("TXCORE_REQUIRE", required)
    with pytest.raises(outcome, match=r"kafka.*no such program"):
        obtained("kafka", missing)
