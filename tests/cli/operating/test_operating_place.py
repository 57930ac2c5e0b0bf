"""The broker, group and database of operators' commands: options, environment, and the checker's own file."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pending"], "say where: give --broker and --group, or --config FILE; there is no txcore.toml here"),
        (["pending", "--broker", "sqlite:///b.db"], "name the producer group with --group or TXCORE_GROUP"),
        (["pending", "--broker", "sqlite:///b.db", "--group", "g"], "there is no broker file b.db"),
        (["pending", "--broker", "memory://x", "--group", "g"], "memory:// lives inside one process"),
        (["pending", "--broker", "pigeon://x", "--group", "g"], "unknown backend 'pigeon'"),
        (["parked", "--broker", "x://", "--config", "f.toml"], "--broker and --config are given: use one of them"),
        (["pending", "--older-than", "1"], "--older-than takes a duration such as 90s, 15m, 1h30m or 2d, not '1'"),
        (["parked", "--reason", "customer"], "--reason selects by the reason for parking (CHECKS_EXHAUSTED,"),
        (["parked", "--config", "nope.toml"], "nope.toml: cannot be read: No such file or directory"),
    ],
)
def test_misuse_is_one_sentence(txcore, arguments, words):
    """The command opens nothing, and its exit code is that of a usage error."""
    ran = txcore(*arguments)
    assert words in ran.sentence
    assert (ran.status, ran.output) == (2, "")


def test_the_place_may_come_from_the_environment(world, monkeypatch):
    """The command reads the same environment variables as the checker."""
    identity = world.pending()
    monkeypatch.setenv("TXCORE_BROKER", world.broker_url)
    monkeypatch.setenv("TXCORE_GROUP", world.kit.group)
    ran = world.command("pending", "--json")
    assert [line["transaction_id"] for line in json.loads(ran.output)] == [identity]


def test_the_place_may_come_from_the_checkers_file(world):
    """An option names one of the file's groups."""
    identity = world.pending()
    (world.folder / "txcore.toml").write_text(
        f"""
[backends.main]
url = {world.broker_url!r}
[databases.shop]
url = {world.database_url!r}
[groups.{world.kit.group}]
database = "shop"
[groups.billing]
database = "shop"
"""
    )
    ran = world.command("pending", "--group", world.kit.group, "--json")
    assert [line["transaction_id"] for line in json.loads(ran.output)] == [identity], ran
    one = world.command("show", identity)
    assert one.sentence == f"which group? Name it with --group: {world.kit.group}, billing"
    unknown = world.command("pending", "--config", "txcore.toml", "--group", "nope")
    assert unknown.sentence == f"the configuration has no group 'nope', only {world.kit.group}, billing"
    assert unknown.status == 2
