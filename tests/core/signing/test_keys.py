"""Keys of signing groups: their file, the signatures they make, and those they believe."""

from __future__ import annotations

import base64

import msgspec
import pytest

from txcore import wire
from txcore.backends.options import given_options
from txcore.errors import ConfigError, NewerRecordError, UnsignedRecordError, WireFormatError
from txcore.records import Checkpoint, Half, LogKind, Op, OpKind, Parked, Position, TargetMessage
from txcore.registry import plugin_for
from txcore.signed_records import unsigned
from txcore.signing import GroupKeys, SigningKeys, keys_file_of

ID = b"i" * 16
OLD, NEW = bytes(range(32)), bytes(range(32, 64))
KEYS = GroupKeys(sign_with="old", keys={"old": OLD})
BOTH = GroupKeys(sign_with="new", keys={"old": OLD, "new": NEW})
LENIENT = GroupKeys(sign_with="old", keys={"old": OLD}, accepts_unsigned=True)
HALF = wire.encode_half(
    Half(1, ID, "g", 3, 0, 5, 100, 0, 3, fenced=True, by="p", messages=[TargetMessage("t", None, b"1", {})])
)
OP = Op(OpKind.COMMIT, ID, 0, "p", 7)


def refused(body):
    """Return the reason why *body* is refused, after each decoder refused it."""
    for decode in (wire.decode_half, wire.decode_head, wire.decode_ops, wire.decode_parked):
        with pytest.raises(UnsignedRecordError) as caught:
            decode(body)
    assert wire.half_or_none(body) is None
    return str(caught.value)


def test_signed_half_opens_in_its_own_place_only():
    """The record comes back byte for byte; in another group, partition or log it is refused."""
    signed = KEYS.sign("g", 3, LogKind.HALF, HALF)
    assert HALF == KEYS.opened("g", 3, LogKind.HALF, signed)
    for place in (("h", 3, LogKind.HALF), ("g", 4, LogKind.HALF), ("g", 3, LogKind.PARKED)):
        assert "wrong signature" in refused(KEYS.opened(*place, signed))


def test_place_is_not_ambiguous():
    """Two places whose names run together to the same text have different signatures."""
    assert KEYS.sign("g1", 1, LogKind.HALF, HALF) != KEYS.sign("g", 11, LogKind.HALF, HALF)


@pytest.mark.parametrize("changed", range(0, 200, 7))
def test_changed_byte_is_refused(changed):
    """A half of which one byte was changed is refused, or is no signed record any more."""
    signed = bytearray(KEYS.sign("g", 3, LogKind.HALF, HALF))
    signed[changed % len(signed)] ^= 1
    with pytest.raises(WireFormatError):
        wire.decode_half(KEYS.opened("g", 3, LogKind.HALF, bytes(signed)))


def test_unsigned_half_is_refused_unless_accepted():
    """A half without a signature is believed only while its group accepts such halves."""
    assert "no signature" in refused(KEYS.opened("g", 3, LogKind.HALF, HALF))
    assert HALF == LENIENT.opened("g", 3, LogKind.HALF, HALF)
    with pytest.raises(UnsignedRecordError) as caught:
        wire.decode_half(KEYS.opened("g", 3, LogKind.HALF, HALF))
    assert HALF == caught.value.body


def test_wrong_signature_is_refused_also_where_unsigned_records_are_accepted():
    """A wrong signature is worse than none."""
    forged = GroupKeys(sign_with="old", keys={"old": NEW}).sign("g", 3, LogKind.HALF, HALF)
    assert "wrong signature" in refused(LENIENT.opened("g", 3, LogKind.HALF, forged))


def test_rotation_believes_both_keys():
    """After a rotation the old key's records are believed; a key that a reader does not have yet is named."""
    old, new = KEYS.sign("g", 3, LogKind.HALF, HALF), BOTH.sign("g", 3, LogKind.HALF, HALF)
    assert HALF == BOTH.opened("g", 3, LogKind.HALF, old) == BOTH.opened("g", 3, LogKind.HALF, new)
    assert "key 'new'" in refused(KEYS.opened("g", 3, LogKind.HALF, new))


def test_op_carries_its_signature_through_a_merged_record():
    """Ops that a backend merges are still believed; a reader without keys reads them as they were."""
    ops = [KEYS.sign_op("g", 3, Op(kind, ID, by="p")) for kind in (OpKind.COMMIT, OpKind.NUDGE)]
    body = wire.encode_ops(ops)
    assert body is KEYS.opened("g", 3, LogKind.OP, body)
    assert [Op(OpKind.COMMIT, ID, by="p"), Op(OpKind.NUDGE, ID, by="p")] == [
        Op(*(getattr(op, name) for name in Op.__struct_fields__)) for op in wire.decode_ops(body)
    ]
    assert "wrong signature" in refused(KEYS.opened("g", 4, LogKind.OP, body))


@pytest.mark.parametrize("changes", [{"kind": 2}, {"transaction_id": b"j" * 16}, {"decision": 2}, {"position": 5}])
def test_changed_op_spoils_its_record(changes):
    """One op that was changed is enough to refuse the record that holds it."""
    good, bad = KEYS.sign_op("g", 3, OP), KEYS.sign_op("g", 3, OP)
    for name, value in changes.items():
        setattr(bad, name, value)
    assert "wrong signature" in refused(KEYS.opened("g", 3, LogKind.OP, wire.encode_ops([good, bad])))
    assert "no signature" in refused(KEYS.opened("g", 3, LogKind.OP, wire.encode_ops([good, OP])))
    assert wire.decode_ops(LENIENT.opened("g", 3, LogKind.OP, wire.encode_ops([good, OP])))


FORGED_TAILS = ([], [[], -1, 5, b""], [[], -1, "", "mac"], [[], -1, None, None], [0, -1, "old", b"m" * 32])


@pytest.mark.parametrize("tail", FORGED_TAILS, ids=str)
@pytest.mark.parametrize("kind", [2, 100])
def test_op_with_a_strange_signature_is_refused(tail, kind):
    """Elements of another form than a signature's are none, although other readers ignore them."""
    op = [kind, ID, 0, "p", 7, b"", 0, 0, 0, "", *tail]
    body = msgspec.msgpack.encode(["txo", 1, [op]])
    assert refused(KEYS.opened("g", 3, LogKind.OP, body))


@pytest.mark.parametrize("body", [["txo", 2, []], ["txo", 1, []], ["txo", 9], ["txo"], [], "text", None], ids=str)
def test_op_record_without_a_signed_op_is_refused(body):
    """It would stop the partition as the work of a newer txcore, or prove nothing."""
    assert refused(KEYS.opened("g", 3, LogKind.OP, msgspec.msgpack.encode(body)))


def test_newer_op_that_is_signed_is_newer():
    """A reader stops at an op of a kind that it does not know, once the signature shows that it is genuine."""
    body = wire.encode_ops([KEYS.sign_op("g", 3, Op(100, ID))])
    with pytest.raises(NewerRecordError):
        wire.decode_ops(KEYS.opened("g", 3, LogKind.OP, body))


def test_checkpoint_is_signed_with_its_positions():
    """A checkpoint whose position was moved, or of another partition, is not believed."""
    checkpoint = Checkpoint(Position(4), Position(9), b"t" * 16, b"note")
    signed = Checkpoint(Position(4), Position(9), b"t" * 16, KEYS.sign_checkpoint("g", 3, checkpoint))
    assert checkpoint == KEYS.opened_checkpoint("g", 3, signed)
    moved = Checkpoint(Position(5), Position(9), b"t" * 16, signed.note)
    assert KEYS.opened_checkpoint("g", 3, moved) is None
    assert KEYS.opened_checkpoint("g", 4, signed) is None
    assert KEYS.opened_checkpoint("g", 3, checkpoint) is None
    assert checkpoint == LENIENT.opened_checkpoint("g", 3, checkpoint)


def test_reader_without_keys_stops_at_a_signed_half():
    """It is newer to such a reader, and the text says what is missing."""
    signed = KEYS.sign("g", 3, LogKind.HALF, HALF)
    with pytest.raises(NewerRecordError, match="open the broker with the group's signing_keys") as caught:
        wire.decode_half(signed)
    error = caught.value
    assert (ID, "g", 3, 2) == (error.transaction_id, error.group, error.partition, error.version)


def test_parked_record_is_shown_without_keys():
    """An operator without keys sees what is parked."""
    parked = Parked(1, ID, 0, "POISON", "r", 0, "c", 0, b"", b"bytes")
    assert parked == wire.decode_parked(KEYS.sign("g", 3, LogKind.PARKED, wire.encode_parked(parked)))


IMITATIONS = [b"\xc1txu", b"\xc1txu\x92\xa1a", b"\xc1txu\xc0", b"\x95\xa3txs", b"\x95\xa3txs\x02\x00\x00\x00"]


@pytest.mark.parametrize("body", IMITATIONS)
def test_imitated_envelopes_are_only_strange_bytes(body):
    """Bytes that begin like one of the envelopes, and continue otherwise, are no record."""
    with pytest.raises(WireFormatError):
        wire.decode_half(body)
    assert unsigned(body) == body


def file_of(tmp_path, text):
    """Return the path of a file of keys."""
    path = tmp_path / "keys.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_gives_the_keys_of_its_groups(tmp_path):
    """The file's keys sign and are believed; a group that it does not name has none."""
    text = f"""
        [groups.orders]
        sign_with = "2026-11"
        [groups.orders.keys]
        2026-11 = "{base64.b64encode(OLD).decode()}"
        [groups.mail]
        sign_with = "a"
        unsigned = "accept"
        keys = {{ a = "{base64.b64encode(NEW).decode()}" }}
    """
    keys = SigningKeys.from_file(file_of(tmp_path, text))
    assert GroupKeys(sign_with="2026-11", keys={"2026-11": OLD}) == keys.of("orders")
    assert GroupKeys(sign_with="a", keys={"a": NEW}, accepts_unsigned=True) == keys.of("mail")
    assert keys.of("billing") is None
    assert base64.b64encode(OLD).decode() not in repr(keys.of("orders"))
    assert repr(OLD) not in repr(keys.of("orders"))


SHORT = base64.b64encode(b"short").decode()
LONG = base64.b64encode(OLD).decode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no toml", "is no TOML"),
        ("", r"tables \[groups.NAME\] only"),
        ("other = 1\n[groups.g]", r"tables \[groups.NAME\] only"),
        ("groups = 1", r"tables \[groups.NAME\] only"),
        ("[groups.g]\nsign_with = 'a'", "has no table keys"),
        ("groups.g = 1", "has sign_with, unsigned and a table keys"),
        (f"[groups.g]\nsign_wiht = 'a'\nkeys = {{ a = '{LONG}' }}", "nothing else"),
        (f"[groups.g]\nkeys = {{ a = '{LONG}' }}", "sign_with is not the name of a key; the group's keys are a"),
        (f"[groups.g]\nsign_with = '{LONG}'\nkeys = {{ a = '{LONG}' }}", "sign_with is not the name of a key"),
        (f"[groups.g]\nsign_with = 'a'\nkeys = {{ '{LONG}' = '{LONG}' }}", "and one of 44 is none"),
        (f"[groups.g]\nsign_with = 'a'\nunsigned = ['accept']\nkeys = {{ a = '{LONG}' }}", '"accept" or "refuse"'),
        ("a = " + "[" * 5_000, "is no TOML"),
        (f"[groups.g]\nsign_with = 'a'\nkeys = {{ a = '{SHORT}' }}", "has 5 bytes; it needs 32"),
        ("[groups.g]\nsign_with = 'a'\nkeys = { a = '!!!' }", "is no base64"),
        ("[groups.g]\nsign_with = 'a'\nkeys = { a = 5 }", "is no base64"),
        (f"[groups.g]\nsign_with = 'a'\nunsigned = 'no'\nkeys = {{ a = '{LONG}' }}", '"accept" or "refuse"'),
        (f"[groups.g]\nsign_with = ''\nkeys = {{ '' = '{LONG}' }}", "1 to 32 ASCII characters"),
    ],
)
def test_file_with_a_mistake_is_refused_in_one_sentence(tmp_path, text, says):
    """The error names the place, and no key."""
    with pytest.raises(ConfigError, match=says) as caught:
        SigningKeys.from_file(file_of(tmp_path, text))
    assert LONG not in str(caught.value)
    assert caught.value.key == "signing_keys"


def test_missing_file_is_refused(tmp_path):
    """A file that is not there is a mistake of the configuration."""
    with pytest.raises(ConfigError, match="cannot be read"):
        SigningKeys.from_file(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="is no TOML"):
        SigningKeys.from_file("\0")


def test_url_names_the_file_and_no_backend_minds():
    """Every backend passes over the option, in whatever call it gets its URL, and over no other one."""
    url = "kafka://u:p%2F@h:1,i:2?linger_ms=1&signing_keys=%2Fk%2Fs.toml&tls_ca=%2Fa%20b"
    assert "/k/s.toml" == keys_file_of(url)
    for url in ("kafka://h?linger_ms=1", "kafka://h?other_signing_keys=1"):
        assert "" == keys_file_of(url)
    for bad in ("signing_keys=", "signing_keys=a&signing_keys=b"):
        with pytest.raises(ConfigError, match="one file"):
            keys_file_of(f"kafka://h?{bad}")
    assert [("a", "1"), ("b", "2")] == given_options("kafka://h?a=1&signing_keys=f&b=2")
    for scheme in ("memory", "sqlite", "kafka", "rabbitmq", "nats"):
        plugin = plugin_for(f"{scheme}://")
        plain = {"memory": "memory://m", "sqlite": "sqlite:///b.db"}.get(scheme, f"{scheme}://h")
        assert plugin.parse_url(plain) == plugin.parse_url(f"{plain}?signing_keys=f")
