"""`docs/operating.md` shows the real output of its commands, run in their order. TXCORE_WRITE=1 rewrites it."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from txcore_conformance.kit import Kit

GUIDE = Path(__file__).parents[3] / "docs" / "operating.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
IDS = re.compile(r"\n<!-- ids: (.*) -->\n$")
GROUP = "orders"


class OnePartition(Kit):
    """A group with one partition, so that tables do not depend on chance."""

    def open(self):
        backend = self.harness.open()
        self._backends.append(backend)
        self.wait(backend.ensure_group(self.group, 1))
        return backend


@pytest.fixture
def kit(operating_harness):
    made = OnePartition(operating_harness, GROUP)
    yield made
    made.close()


@pytest.fixture
def names(world, monkeypatch):
    """Make the transactions of the guide, and return their ids by name; the environment names the broker and group."""
    for topic in ("orders.created", "invoices"):
        world.kit.harness.create_topic(topic)
    world.topic = "orders.created"
    made = {
        "exhausted": world.parked(),
        "undelivered": world.undeliverable("invoices"),
        "poison": world.poison(),
        "committed": world.fenced("commit"),
        "absent": world.fenced("rollback"),
        "waiting": world.pending(),
    }
    monkeypatch.setenv("TXCORE_BROKER", world.broker_url)
    monkeypatch.setenv("TXCORE_GROUP", GROUP)
    monkeypatch.setenv("TXCORE_DATABASE", world.database_url)
    monkeypatch.setattr("txcore.cli.operating.place.acting_name", lambda place: place.by or "anna")
    return made


def plain(text: str, ids: dict[str, str]) -> str:
    """Return *text* on one line, without the parts that differ from run to run."""
    for name, identity in ids.items():
        text = text.replace(identity, f"<{name}>").replace(short(identity), f"<{name}>")
    for pattern, word in (
        (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>"),
        (r"c:checker-[0-9a-f]{12}", "<checker>"),
        (r"p:[0-9a-f]{12}", "<producer>"),
        (r"\b(\d+[smhd])+\b", "<age>"),
        (r"position \d+", "position <n>"),
    ):
        text = re.sub(pattern, word, text)
    return " ".join(text.split())


def short(identity: str) -> str:
    """Return the short name of a transaction in tables."""
    return identity.replace("-", "")[-8:]


def test_guide_shows_the_printed_output(world, names):
    """The guide shows the output of each command on a group with one transaction of each kind."""
    guide = GUIDE.read_text(encoding="utf-8")
    listed = IDS.search(guide)
    known = dict(pair.split("=") for pair in listed[1].split()) if listed else {}
    body = IDS.sub("", guide)
    blocks = []

    def run(block: re.Match[str]) -> str:
        shown = []
        for command in re.findall(r"^\$ (txcore .*)$", block[1], re.MULTILINE):
            line = command
            for name, identity in names.items():
                line = line.replace(short(known[name]) if name in known else f"{{{name}}}", short(identity))
            ran = world.here(*shlex.split(line)[1:])
            text = "\n".join(each.rstrip() for each in (ran.output + ran.errors).splitlines())
            shown.append(f"$ {line}\n{text}")
        made = "\n".join(shown) + "\n"
        blocks.append((block[1], made))
        return f"```console\n{made}```"

    anew = BLOCK.sub(run, body) + f"\n<!-- ids: {' '.join(f'{n}={i}' for n, i in names.items())} -->\n"
    assert len(blocks) > 15
    if os.environ.get("TXCORE_WRITE"):
        GUIDE.write_text(anew, encoding="utf-8")
        return
    for shown, made in blocks:
        assert plain(shown, known) == plain(made, names)
