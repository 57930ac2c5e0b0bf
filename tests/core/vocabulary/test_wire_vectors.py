"""The published test vectors hold in both directions, so that other languages may rely on them."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path

import msgspec
import pytest

from txcore import wire
from txcore.backends.checkpoint_record import decode_checkpoint
from txcore.checker.checkpoint import NoteEntry
from txcore.digest import digest_of, message_digest
from txcore.errors import WireFormatError
from txcore.ids import id_text, partition_of
from txcore.op_rules import PlacedOp
from txcore.records import Half, LogKind, Op, OpKind, Parked, TargetMessage
from txcore.signed_records import content_of, decode_signed_ops
from txcore.signing import GroupKeys

VECTORS = json.loads((Path(__file__).parents[3] / "docs" / "wire-vectors.json").read_text(encoding="utf-8"))
ENCODE = {"half": wire.encode_half, "op": wire.encode_ops, "parked": wire.encode_parked}
DECODE = {"half": wire.decode_half, "op": wire.decode_ops, "parked": wire.decode_parked}


def raw(value):
    """Return JSON with `{"hex": …}` turned into bytes."""
    if isinstance(value, dict):
        return (
            bytes.fromhex(value["hex"]) if set(value) == {"hex"} else {name: raw(each) for name, each in value.items()}
        )
    return [raw(each) for each in value] if isinstance(value, list) else value


def record(kind, fields):
    """Return the record that *fields* describe; each field must be named."""
    fields = raw(fields)
    if kind == "op":
        return [op(each) for each in fields]
    made = {"half": Half, "parked": Parked}[kind]
    assert set(made.__struct_fields__) == set(fields)
    if kind == "half":
        fields["messages"] = [TargetMessage(**each) for each in fields["messages"]]
    return made(**fields)


def op(fields):
    """Return the op that *fields* describe; those after a COMMITTED name its place."""
    made = Op if "position" not in fields else PlacedOp
    assert set(made.__struct_fields__) == set(fields)
    return made(**fields)


def plain(record):
    """Return a record as it is decoded: no reader looks at the place that an op names."""
    if isinstance(record, list):
        return [Op(*(getattr(each, name) for name in Op.__struct_fields__)) for each in record]
    return record


def named(section):
    """Parametrise by the vectors of one section."""
    return pytest.mark.parametrize("vector", VECTORS[section], ids=lambda vector: f"{vector['kind']}: {vector['name']}")


@named("records")
def test_encoding_the_fields_gives_the_bytes(vector):
    """The bytes are exactly those of the vector."""
    assert vector["hex"] == ENCODE[vector["kind"]](record(vector["kind"], vector["fields"])).hex()


@named("records")
def test_decoding_the_bytes_gives_the_fields(vector):
    """Decoding the bytes of a vector gives each of its fields."""
    assert record(vector["kind"], vector["fields"]) == DECODE[vector["kind"]](bytes.fromhex(vector["hex"]))


@named("owner")
def test_records_of_an_owners_release(vector):
    """The records of an owner's release have exactly these bytes, and an op record the highest version in it."""
    made = record(vector["kind"], vector["fields"])
    assert vector["hex"] == ENCODE[vector["kind"]](made).hex()
    assert plain(made) == DECODE[vector["kind"]](bytes.fromhex(vector["hex"]))


@named("accepted")
def test_elements_of_a_later_version_are_ignored(vector):
    """Unknown elements at the end are ignored, and missing ones get their defaults."""
    assert record(vector["kind"], vector["fields"]) == DECODE[vector["kind"]](bytes.fromhex(vector["hex"]))


@named("refused")
def test_invalid_bytes_are_refused(vector):
    """Invalid bytes are refused, also those of other versions."""
    with pytest.raises(WireFormatError):
        DECODE[vector["kind"]](bytes.fromhex(vector["hex"]))


@pytest.mark.parametrize("vector", VECTORS["target_headers"], ids=lambda vector: vector["name"])
def test_target_headers(vector):
    """The target headers that an ordinary consumer sees are those of the vector."""
    half = record("half", VECTORS["records"][0]["fields"])
    made = wire.target_headers(
        vector["group"],
        raw(vector["transaction_id"]),
        vector["index"],
        half.messages[vector["index"]],
        vector["by"],
        key_as_header=vector["key_as_header"],
    )
    assert raw(vector["headers"]) == made


@pytest.mark.parametrize("vector", VECTORS["partitions"], ids=lambda vector: f"{vector['text']} of {vector['count']}")
def test_partitions_and_text_forms(vector):
    """An id's partition is the same in every process and language."""
    identity = raw(vector["transaction_id"])
    assert (vector["text"], vector["partition"]) == (id_text(identity), partition_of(identity, vector["count"]))


@pytest.mark.parametrize("vector", VECTORS["notes"], ids=lambda vector: vector["name"])
def test_checkpoint_notes(vector):
    """The notes of checkpoints are encoded and decoded as in the vectors."""
    entries = [NoteEntry(**each) for each in raw(vector["fields"])]
    assert vector["hex"] == msgspec.msgpack.encode(entries).hex()
    assert entries == msgspec.msgpack.decode(bytes.fromhex(vector["hex"]), type=list[NoteEntry])


@pytest.mark.parametrize("vector", VECTORS["proofs"], ids=lambda vector: vector["name"])
def test_proofs_of_copies(vector):
    """Another language makes the proof of a copy from the text of the specification alone."""
    copy = wire.decode_half(bytes.fromhex(vector["half"]))
    digest = hashlib.sha256(bytes.fromhex(vector["digested"])).digest()[:16]
    assert raw(vector["transaction_id"]) == digest == wire.proof_of(copy)
    (tick,) = wire.decode_ops(bytes.fromhex(vector["op"]))
    assert (OpKind.TICK, digest, vector["position"]) == (tick.kind, tick.transaction_id, copy.proved_at)


@pytest.mark.parametrize("vector", VECTORS["digests"], ids=lambda vector: vector["name"])
def test_digests_of_messages(vector):
    """The digest of a transaction covers each message, and their order."""
    digests = []
    for each in vector["messages"]:
        topic, key, body, headers = (raw(each[name]) for name in ("topic", "key", "body", "headers"))
        digests.append(hashlib.sha256(bytes.fromhex(each["digested"])).digest())
        assert raw(each["digest"]) == digests[-1] == message_digest(topic, key, body, headers)
        read = {name: value.encode() if isinstance(value, str) else value for name, value in headers.items()}
        assert digests[-1] == message_digest(topic, key, body, read)  # as a broker returns them
    messages = [record_of(each) for each in vector["messages"]]
    assert raw(vector["digest"]) == hashlib.sha256(b"".join(digests)).digest() == digest_of(messages)


def record_of(message):
    """Return the message of a half."""
    return TargetMessage(*(raw(message[name]) for name in ("topic", "key", "body", "headers")))


def test_every_kind_of_op_has_a_vector():
    """Each kind of op has a vector, so that a new kind is published with its bytes."""
    vectors = [*VECTORS["records"], *VECTORS["owner"]]
    seen = {each["kind"] for vector in vectors if vector["kind"] == "op" for each in vector["fields"]}
    assert {int(kind) for kind in OpKind} == seen


def test_signatures():
    """The signatures of the vectors are those that this txcore makes and believes."""
    vector = VECTORS["signed"]
    group, partition, secret = vector["group"], vector["partition"], raw(vector["secret"])
    keys = GroupKeys(sign_with=vector["key"], keys={vector["key"]: secret})
    half, op, checkpoint = (vector[kind] for kind in ("half", "op", "checkpoint"))
    body = bytes.fromhex(half["record"])
    assert half["hex"] == keys.sign(group, partition, LogKind.HALF, body).hex()
    (signed,) = decode_signed_ops(bytes.fromhex(op["hex"]))
    assert op["covered"] == content_of(signed).hex()
    plain = Op(*(getattr(signed, name) for name in Op.__struct_fields__))
    assert op["hex"] == wire.encode_ops([keys.sign_op(group, partition, plain)]).hex()
    covered = decode_checkpoint(bytes.fromhex(checkpoint["covered"]))
    assert checkpoint["note"] == keys.sign_checkpoint(group, partition, covered).hex()


def test_a_signature_is_hmac_over_the_place_and_the_content():
    """Another language makes it from the text of the specification alone."""
    vector = VECTORS["signed"]
    content = bytes.fromhex(vector["half"]["record"])
    parts = [vector["group"].encode(), str(vector["partition"]).encode(), b"half", content]
    counted = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    mac = hmac.digest(raw(vector["secret"]), counted, "sha256")
    assert mac == msgspec.msgpack.decode(bytes.fromhex(vector["half"]["hex"]))[3]
