"""`txcore pending` and `txcore parked`."""

from __future__ import annotations

import json


def short(identity: str) -> str:
    """Return the short name of a transaction in tables."""
    return identity.replace("-", "")[-8:]


def test_pending_lists_undecided_transactions_oldest_first(world):
    """A table of 80 columns has id, age, checks, decider and topics, and no finished transaction."""
    world.finished()
    first, second = world.pending(), world.fenced()
    ran = world("pending")
    assert (ran.status, ran.errors) == (0, "")
    lines = ran.output.splitlines()
    assert [line.split()[0] for line in lines] == ["id", short(first), short(second), "2"]
    assert "listener" in lines[1]
    assert "fence" in lines[2]
    assert world.topic in lines[1].replace("\n", "")
    assert lines[-1] == f"2 pending in group {world.kit.group}"
    assert ran.width <= 80


def test_pending_for_programs(world):
    """The JSON has every documented field, with whole ids and ISO times."""
    identity = world.pending(world.message(), world.message())
    (line,) = world.json("pending")
    assert line["transaction_id"] == identity
    assert line["short_id"] == short(identity)
    assert line["born"].endswith("Z")
    assert 0 <= line["age_s"] < 60
    assert set(line) == {
        "transaction_id",
        "short_id",
        "group",
        "partition",
        "generation",
        "born",
        "age_s",
        "checks",
        "checks_max",
        "fenced",
        "asks_fence",
        "decided",
        "awaits_release",
        "order_key",
        "newer_version",
        "topics",
        "messages",
        "by",
        "request",
    }
    assert (line["topics"], line["messages"], line["fenced"], line["checks"]) == ([world.topic], 2, False, 0)


def test_what_waits_for_its_owner_is_listed_as_committed(world):
    """A half that its producer has committed, and no owner has released, is pending and says so."""
    transaction = world.kit.producer(release="owner").begin()
    transaction.publish(world.message())
    transaction.prepare()
    transaction.commit()
    (line,) = world.json("pending")
    assert (line["decided"], line["awaits_release"]) == ("COMMIT", True)
    assert "committed, waits for release" in " ".join(world("pending").output.split())
    assert "the checker that owns its partition publishes it" in " ".join(
        world("show", line["transaction_id"]).output.split()
    )


def test_nothing_is_said_to_be_nothing(world):
    """An empty list is one sentence, not an empty table; in JSON it is an empty list."""
    assert world("pending").output == f"nothing is pending in group {world.kit.group}\n"
    assert world("parked").output == f"nothing is parked in group {world.kit.group}\n"
    assert world.json("pending") == world.json("parked") == []


def test_parked_lists_each_with_its_reason(world):
    """The list shows the code, the reason and the number of checks."""
    identity, poison = world.parked(), world.poison()
    ran = world("parked")
    assert (ran.status, ran.errors) == (0, "")
    assert f"\n{short(identity)} " in ran.output
    assert "CHECKS_EXHAUSTED" in ran.output
    assert "2 checks were" in ran.output
    assert f"\n{short(poison)} " in ran.output
    assert f"2 parked in group {world.kit.group}" in ran.output
    assert ran.width <= 80
    first, second = world.json("parked")
    assert (first["transaction_id"], first["code"], first["checks"]) == (identity, "CHECKS_EXHAUSTED", 2)
    assert (second["code"], second["born"], second["messages"]) == ("POISON", None, 0)
    assert set(first) == set(second)


def test_filters_choose(world):
    """The filters select by age, topic and code; a transaction must match all of them."""
    other = world.kit.topic("other")
    exhausted = world.parked()
    mine, elsewhere = world.pending(), world.pending(world.message(other, key=b"7"))
    strange = world.pending(world.message(key=b"\xff\x00"))
    assert [line["transaction_id"] for line in world.json("pending", "--key", "7")] == [elsewhere]
    assert [line["transaction_id"] for line in world.json("pending", "--key", "0xff00")] == [strange]
    assert [line["transaction_id"] for line in world.json("parked", "--key", "42")] == [exhausted]
    assert world.json("pending", "--key", "7", "--topic", world.topic) == world.json("pending", "--key", "4") == []
    assert [line["transaction_id"] for line in world.json("pending", "--topic", other)] == [elsewhere]
    assert {line["transaction_id"] for line in world.json("pending", "--older-than", "0s")} == {
        mine,
        elsewhere,
        strange,
    }
    assert world.json("pending", "--older-than", "1h") == []
    assert [line["transaction_id"] for line in world.json("parked", "--reason", "checks-exhausted")] == [exhausted]
    assert world.json("parked", "--reason", "POISON") == []
    assert world.json("parked", "--reason", "CHECKS_EXHAUSTED", "--topic", other) == []


def test_lists_show_every_group_of_the_file(world):
    """Each group has its own table, empty ones a sentence; one that cannot be read hides no other."""
    there = world.kit.open()
    identity, parked = world.pending(), world.parked()
    there.ensure_group("quiet", 1).result(10)
    groups = "".join(f"[groups.{name}]\n" for name in (world.kit.group, "missing", "quiet"))
    callback = 'callback.url = "http://127.0.0.1:9/"\n'
    (world.folder / "all.toml").write_text(
        f"[backends.main]\nurl = {world.broker_url!r}\n" + groups.replace("]\n", f"]\n{callback}")
    )
    file = ["--config", str(world.folder / "all.toml")]
    pending = world.here("pending", *file)
    assert f"1 pending in group {world.kit.group}\nnothing is pending in group quiet\n" in pending.output
    assert (pending.status, pending.width <= 80) == (1, True)
    assert "group missing: this broker has no group 'missing'" in " ".join(pending.errors.split())
    listed = json.loads(world.here("parked", "--json", *file).output)
    assert [(each["group"], each["transaction_id"]) for each in listed] == [(world.kit.group, parked)]
    listed = json.loads(world.here("pending", "--json", *file, "--group", world.kit.group).output)
    assert [each["transaction_id"] for each in listed] == [identity]


def test_long_lists_are_cut_and_say_so(world):
    """The command shows the oldest ones; `--limit 0` shows all."""
    identities = [world.pending() for _ in range(4)]
    ran = world("pending", "--limit", "2", "--long")
    assert ran.output.count("listener") == 2
    assert identities[0] in ran.output
    assert "4 pending" in ran.output
    assert "the oldest 2 are shown" in " ".join(ran.output.split())
    assert len(world.json("pending", "--limit", "0")) == 4


def test_a_misspelt_group_is_not_created(world):
    """The command refuses a group that does not exist, and does not create it."""
    for _ in range(2):
        ran = world.here("pending", "--broker", world.broker_url, "--group", "ordres")
        assert ran.sentence == "this broker has no group 'ordres'; `txcore topics create --group ordres` creates it"
        assert ran.status == 2
