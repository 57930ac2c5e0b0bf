"""The published test vectors: what they say is what this version writes and reads."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from txcore import wire
from txcore.errors import WireFormatError
from txcore.fold import NoteEntry
from txcore.records import Half, Op, Parked, TargetMessage

VECTORS = json.loads((Path(__file__).parents[2] / "docs" / "wire-vectors.json").read_text(encoding="utf-8"))


def plain(value):
    """Return a vector's value with its bytes unpacked."""
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if set(value) == {"hex"} else {k: plain(v) for k, v in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def half_of(fields):
    values = plain(fields)
    values[11] = [TargetMessage(*message) for message in values[11]]
    return Half(*values)


def named(kind):
    return [pytest.param(vector, id=vector["name"]) for vector in VECTORS[kind]]


@pytest.mark.parametrize("vector", named("half"))
def test_half_vectors_are_written_and_read(vector):
    """A half's fields and its bytes stand for each other."""
    half, body = half_of(vector["fields"]), bytes.fromhex(vector["hex"])
    assert (body, half) == (wire.encode_half(half), wire.decode_half(body))


@pytest.mark.parametrize("vector", named("op"))
def test_op_vectors_are_written_and_read(vector):
    """An op record's fields and its bytes stand for each other, merged or not."""
    ops, body = [Op(*plain(fields)) for fields in vector["fields"]], bytes.fromhex(vector["hex"])
    assert (body, ops) == (wire.encode_ops(ops), wire.decode_ops(body))


@pytest.mark.parametrize("vector", named("parked"))
def test_parked_vectors_are_written_and_read(vector):
    """A parked record's fields and its bytes stand for each other."""
    parked, body = Parked(*plain(vector["fields"])), bytes.fromhex(vector["hex"])
    assert (body, parked) == (wire.encode_parked(parked), wire.decode_parked(body))


@pytest.mark.parametrize("vector", named("target_headers"))
def test_target_headers_are_as_published(vector):
    """A target carries the user's headers and ours."""
    message = wire.decode_half(bytes.fromhex(VECTORS["half"][0]["hex"])).messages[vector["index"]]
    identity = plain(vector["transaction_id"])
    headers = wire.target_headers(vector["group"], identity, vector["index"], message, vector["by"], key_as_header=True)
    assert plain(vector["headers"]) == headers


def test_note_vectors_are_written_and_read():
    """A checkpoint's note is as published."""
    for vector in VECTORS["note"]:
        entries = [NoteEntry(*fields) for fields in plain(vector["fields"])]
        body = bytes.fromhex(vector["hex"])
        assert (body, entries) == (msgspec.msgpack.encode(entries), msgspec.msgpack.decode(body, type=list[NoteEntry]))


def test_elements_of_a_later_version_are_ignored():
    """A reader takes no offence at elements behind those it knows."""
    elements = msgspec.msgpack.decode(bytes.fromhex(VECTORS["half"][0]["hex"]))
    assert half_of(VECTORS["half"][0]["fields"]) == wire.decode_half(msgspec.msgpack.encode([*elements, "new", 7]))


def test_another_version_is_refused_by_number():
    """A reader refuses what it cannot understand, and says which version it met."""
    elements = msgspec.msgpack.decode(bytes.fromhex(VECTORS["half"][0]["hex"]))
    elements[1] = 2
    with pytest.raises(WireFormatError, match="version 2"):
        wire.decode_half(msgspec.msgpack.encode(elements))
