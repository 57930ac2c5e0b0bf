"""`txcore show`: the whole journey of one transaction."""

from __future__ import annotations

import base64

from txcore_conformance import raw
from txcore_conformance.kit import Answers

from txcore import wire
from txcore.ids import id_text
from txcore.records import Half, HalfRecord, TargetMessage


def short(identity: str) -> str:
    """Return the short name of a transaction in tables."""
    return identity.replace("-", "")[-8:]


def squeezed(text: str) -> str:
    """Return the text on one line."""
    return " ".join(text.split())


def test_a_pending_half_with_its_fence_row(world):
    """The page has topic, key, size and headers of each message, and the row; it shows bodies only with `--bodies`."""
    identity = world.fenced()
    ran = world("show", short(identity))
    assert (ran.status, ran.errors) == (0, "")
    assert ran.output.startswith(f"{identity}  PENDING\n")
    text = squeezed(ran.output)
    assert f"[0] {world.topic} key 42 8 B kind: order" in text
    assert "fence COMMIT: the local transaction committed" in text
    assert f"row: state 1, group {world.kit.group}, made 20" in text
    assert "read by 0 checks" in text
    assert "next the checker asks the fence" in text
    assert "parcel" not in text
    assert ran.width <= 80
    assert "body: parcel 1" in world("show", short(identity), "--bodies").output


def test_a_database_that_is_down_is_said_once(world):
    """The reason is in the fence's answer, and not again beside it."""
    identity = world.fenced()
    down = "postgresql+psycopg://shop@127.0.0.1:1/shop"
    ran = world.here("show", identity, "--broker", world.broker_url, "--group", world.kit.group, "--database", down)
    assert (ran.status, squeezed(ran.output).count("Connection refused")) == (0, 1)
    assert "fence no answer: the connection was lost or could not be made" in squeezed(ran.output)


def test_a_half_of_the_listener_style_is_shown_with_its_row(world):
    """The row decides the half; the listener decides only if there is no row."""
    with_row, without = world.listened(), world.listened(has_row=False)
    text = squeezed(world("show", with_row).output)
    assert "generation 0, the fence, or without a row the listener decides" in text
    assert "fence COMMIT: the local transaction committed" in text
    assert f"row: state 1, group {world.kit.group}" in text
    assert "next the checker asks the fence, or without a row the listener" in text
    text = squeezed(world("show", without).output)
    assert "fence ABSENT: no row yet; without one the listener decides" in text
    assert [line["asks_fence"] for line in world.json("pending")] == [True, True]
    assert "fence, listener" in world("pending").output


def test_looking_leaves_no_tombstone(world):
    """An open producer still commits after `show` has looked for its row twice."""
    identity = world.fenced("open")
    for _ in range(2):
        assert "ABSENT: no row" in world("show", short(identity)).output
    world.open_connection.commit()
    world.open_connection.close()
    assert "fence   COMMIT" in world("show", short(identity)).output
    assert world.fence.stats().states == {1: 1}


def test_a_resume_without_a_reason_ends_with_the_name(world):
    """Nothing follows the operator's name, not even a colon."""
    identity = world.parked()
    assert world("resume", identity, "--yes", "--by", "anna").status == 0
    assert "generation 1: resumed, anna\n" in world("show", identity).output


def test_the_whole_journey_in_order(world):
    """The page has each record from the half to the end, with writer, time and reason."""
    identity = world.parked()
    assert world("resume", short(identity), "--yes", "--why", "the listener is back", "--by", "anna").status == 0
    assert world("commit", short(identity), "--yes", "--why", "paid", "--by", "bert", "--wait", "0").status == 0
    world.sweep(Answers(None), lambda: world.journey(identity).final)
    ran = world("show", identity)
    assert ran.output.startswith(f"{identity}  COMMITTED\n")
    lines = [line.split(maxsplit=1) for line in ran.output.splitlines() if line.startswith("  20")]
    assert [rest.split()[0] for _, rest in lines] == [
        "half",
        "checked",
        "checked",
        "parked",
        "discard",
        "half",
        "force",
        "decided",
        "commit",
    ]
    text = squeezed(ran.output)
    assert "generation 1: resumed, anna: the listener is back" in text
    assert "bert asks for COMMIT, paid" in text
    assert "forced, bert: paid" in text
    assert "answered UNKNOWN, 2 times now" in text
    assert "next nothing: it is finished" in text
    assert world.bodies() == [b"parcel 1"]


def test_undeliverable_half_names_its_missing_messages(world):
    """The page marks the messages that are not delivered, and names the next step."""
    identity = world.undeliverable()
    ran = world("show", short(identity))
    assert f"{identity}  PARKED" in ran.output
    assert "MISSING" in ran.output
    assert "UNDELIVERABLE" in ran.output
    assert f"next repair the topic, then txcore resume {short(identity)}" in squeezed(ran.output)
    shown = world.json("show", short(identity))
    missing = [0, 1] if world.kit.promises.atomic_release else [1]
    assert (shown["state"], shown["decided"], shown["missing"]) == ("parked", "COMMIT", missing)


def test_poison_is_shown_with_its_bytes(world):
    """The page shows the bytes of the record and the next step."""
    identity = world.poison()
    ran = world("show", short(identity))
    assert "poison  0xc1206e6f2068616c66" in ran.output
    assert f"txcore rollback {short(identity)} --why TEXT takes it off the list" in squeezed(ran.output)
    (parked,) = world.json("show", short(identity))["parked"]
    assert base64.b64decode(parked["poison"]) == b"\xc1 no half"


def test_for_programs(world):
    """The JSON has every documented field; bodies are in base64, only with `--bodies`."""
    identity = world.fenced()
    shown = world.json("show", short(identity), "--bodies")
    assert set(shown) == {
        "transaction_id",
        "short_id",
        "group",
        "state",
        "partition",
        "generation",
        "age_s",
        "checks",
        "decided",
        "awaits_release",
        "order_key",
        "newer_version",
        "fenced",
        "asks_fence",
        "missing",
        "messages",
        "halves",
        "ops",
        "parked",
        "fence",
        "fence_row",
    }
    (message,) = shown["messages"]
    assert base64.b64decode(message.pop("body_base64")) == b"parcel 1"
    assert message == {"index": 0, "topic": world.topic, "key": "42", "size": 8, "headers": {"kind": "order"}}
    assert (shown["fence"]["answer"], shown["fence_row"]["state"]) == ("COMMIT", 1)
    assert (shown["state"], shown["fenced"], shown["ops"]) == ("pending", True, [])
    (message,) = world.json("show", short(identity))["messages"]
    assert "body_base64" not in message


def test_old_finished_transaction_is_found_by_a_short_id(world):
    """`show` searches the whole log, also before the checkpoint."""
    identity = world.finished()
    world.finished()
    assert world.json("show", short(identity))["state"] == "committed"
    assert world.json("show", identity[:18])["transaction_id"] == identity


def test_unknown_id_is_reported_as_unknown(world):
    """The command refuses an unknown whole id, an unknown short id, and a text that is not an id."""
    world.pending()
    ran = world("show", "01a1feb1-d200-775f-9898-13a298331c24")
    assert ran.sentence.endswith("knows no transaction 01a1feb1-d200-775f-9898-13a298331c24")
    assert ran.status == 2
    assert world("show", "ffff0000ffff").sentence.endswith("knows no transaction 'ffff0000ffff'")
    assert "is not a transaction id" in world("show", "order-17").sentence


def test_an_unreachable_database_hides_only_its_own_part(world):
    """The page shows the log, and the database's error without its password."""
    identity = world.fenced()
    place = [*world.place[:4], "--database", "postgresql+psycopg://shop:hidden@127.0.0.1:1/shop"]
    ran = world.here("show", identity, *place)
    assert ran.status == 0
    assert "fence   no answer: the connection was lost or could not be made" in ran.output
    assert "hidden" not in ran.output + ran.errors


def test_characters_that_a_terminal_obeys_are_escaped(world):
    """No command passes on ESC, a bell or a change of direction from a record that anyone may have written."""
    evil = "evil\x1b]0;owned\x07\x9b31m\u202e"
    kit, identity = world.kit, raw.half(world.kit).transaction_id
    message = TargetMessage(evil, evil.encode(), evil.encode(), {evil: evil})
    envelope = Half(wire.VERSION, identity, kit.group, 0, 0, 1, 0, 0, 0, fenced=False, by=evil, messages=[message])
    # As a copy, which is stored without a look at its targets.
    raw.append(kit, HalfRecord(kit.group, 0, identity, 0, wire.encode_half(envelope), ()))
    shown = id_text(identity)
    for arguments in (["pending"], ["show", shown], ["show", shown, "--bodies"], ["show", evil]):
        for as_json in ([], ["--json"]):
            ran = world(*arguments, *as_json)
            assert "evil" in ran.output + ran.errors
            assert not {each for each in ran.output + ran.errors if not each.isprintable()} - {"\n"}, ran
