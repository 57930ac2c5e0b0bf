"""The screen of every command: nothing is cut on 80 columns."""

from __future__ import annotations

import pytest

from txcore.cli.operating.screen import Screen

ID = "01a20f07-9681-7fbd-82f9-98a65aa3d8ed"
TOPIC = "shop.orders." + "x" * 237  # the longest name that Kafka takes


@pytest.mark.parametrize(
    ("headings", "row"),
    [
        (("id", "age", "checks", "partition", "decided by", "topics"), (ID, "23h59m", "10/100", "1000", TOPIC, TOPIC)),
        (
            ("id", "parked", "code", "topics", "reason"),
            (ID, "4d1h", "CHECKS_EXHAUSTED", f"{TOPIC} paid", "no such " * 9),
        ),
        (("transaction", "message", "topic", "tries", "reason"), (ID, "12", TOPIC, "1000", "no such topic")),
        (("group", "committed", "rolled back", "via table", "forced", "all"), (TOPIC, *["1,000,000,000"] * 5)),
    ],
)
def test_no_cell_is_cut_on_80_columns(headings, row, capsys, monkeypatch):
    """A table with the longest names has every character of each cell, and its whole ids on one line."""
    monkeypatch.setenv("COLUMNS", "80")
    Screen(as_json=False).table(headings, [row])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for text in (*headings, *row):
        squeezed = text.replace(" ", "")
        assert all(sum(line.count(each) for line in lines) >= squeezed.count(each) for each in set(squeezed)), text
    assert "…" not in "".join(lines)
    if ID in row:
        assert any(ID in line for line in lines)
