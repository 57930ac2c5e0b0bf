"""The page about the audit agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

from txcore.audit.verdicts import SEVERITIES, Severity
from txcore.config import AuditSection

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
WORDS = {
    Severity.INFO: "information",
    Severity.WARNING: "warning",
    Severity.VIOLATION: "violation",
    Severity.INCONCLUSIVE: "inconclusive",
}


def test_every_verdict_is_listed_with_its_severity():
    """The table of the rules has every verdict with its severity."""
    listed = dict(re.findall(r"^\| ([A-Z_]+) \| (\w+) \|", PAGE, re.MULTILINE))
    assert {verdict.name: WORDS[severity] for verdict, severity in SEVERITIES.items()} == listed


def test_every_named_key_exists():
    """Each `audit.KEY` in the text is a key of the section."""
    named = {key for key in re.findall(r"`audit\.(\w+)", PAGE) if not key.endswith("py")}
    assert named <= set(AuditSection.__struct_fields__)
