"""The certificate of an audit's run, and the proof of one transaction in it; `docs/certificate.md` specifies both.

A certificate has a Merkle root per hour of birth over the transactions that the run judged. It names the head of the
certificate before it, so that none can be changed or left out without changing all after it. It is signed with a key.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from txcore.audit import merkle
from txcore.audit.exact_json import exact_value
from txcore.audit.message_file import SentMessage
from txcore.audit.verdicts import Severity, Verdict
from txcore.digest import joined
from txcore.errors import ConfigError, TxcoreError
from txcore.ids import id_text
from txcore.signing import GroupKeys, SigningKeys

VERSION: Final = 1
KEYS_NAME: Final = "audit"
"""Name of the table in the file of keys whose keys sign certificates."""
ROW_BYTES: Final = 16
"""Number of bytes of the database's digest that an audit compares."""
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"
OPEN: Final = "open"
HASH_BYTES: Final = 32
_DOMAIN: Final = b"txcore audit certificate\0"
T = TypeVar("T")


class ProofError(TxcoreError):
    """A proof, its certificate or the message does not agree with another; the text says what differs."""


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a certificate says of one transaction: a leaf of its tree.

    Attributes:
        id: Its id as text.
        group: Its producer group.
        outcome: committed, rolled back or open, as its logs and its fence row have it.
        digest: The digest of its messages as they are in the topics, hexadecimal; "" without messages, or where two
            differ under one index.
        row: The first 16 bytes of the digest in its fence row, hexadecimal; "" without one.
        findings: The verdicts on it.
    """

    id: str
    group: str
    outcome: str
    digest: str = ""
    row: str = ""
    findings: list[str] = []

    def leaf(self) -> bytes:
        """Return the hash of this leaf."""
        return merkle.leaf_hash(msgspec.json.encode(self))


class Hour(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The transactions born in one hour, by their ids: the hour's beginning in ms, their number and their root."""

    begin_ms: int
    count: int
    root: str


class Content(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a certificate vouches for.

    Attributes:
        run: Number of the run.
        cut_ms: Time at which its logs were cut.
        exit_code: The run's.
        report: SHA-256 of its report's data, hexadecimal.
        limits: What the run judged and what not, in sentences.
        previous: Head of the certificate before it in the store; "" for the first one.
        hours: The hours that were judged since that certificate.
    """

    version: int
    run: int
    cut_ms: int
    exit_code: int
    report: str
    limits: list[str]
    previous: str
    hours: list[Hour]


class Certificate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signed content: `key` names the key, `mac` is the signature, hexadecimal."""

    content: Content
    key: str
    mac: str

    @property
    def head(self) -> str:
        """The SHA-256 of the content, hexadecimal: what is to be published."""
        return sha256(_signed(self.content)).hexdigest()


class Proof(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The proof that a certificate covers one transaction.

    Attributes:
        certificate: The certificate.
        begin_ms: The hour in which the transaction was born.
        entry: What the certificate says of it.
        messages: The digests of its messages, hexadecimal, in their order.
        path: The nodes from the leaf to the hour's root: side and hash, hexadecimal.
    """

    certificate: Certificate
    begin_ms: int
    entry: Entry
    messages: list[str]
    path: list[tuple[merkle.Side, str]]


def keys_in(path: str) -> GroupKeys:
    """Return the keys that sign certificates, from a file in the form of `txcore.signing`.

    Raises:
        ConfigError: the file cannot be used, or has no table `groups.audit`.
    """
    keys = SigningKeys.from_file(path).of(KEYS_NAME)
    if keys is None:
        raise ConfigError(f"the file of signing keys {path!r} has no table [groups.{KEYS_NAME}]", key="keys")
    return keys


def hour_of(begin_ms: int, entries: Sequence[Entry]) -> Hour:
    """Return an hour with the root over *entries*, which are in the order of their ids."""
    return Hour(begin_ms=begin_ms, count=len(entries), root=merkle.root_of(each.leaf() for each in entries).hex())


def signed(content: Content, keys: GroupKeys) -> Certificate:
    """Return the certificate of *content*, signed with the key in use."""
    return Certificate(content=content, key=keys.sign_with, mac=_mac(content, keys, keys.sign_with))


def proof_of(
    certificate: Certificate, begin_ms: int, entries: Sequence[Entry], number: int, messages: Sequence[bytes]
) -> Proof:
    """Return the proof of entry *number* among those of its hour.

    Raises:
        ProofError: the entries are not those of the certificate.
    """
    if hour_of(begin_ms, entries) not in certificate.content.hours:
        raise ProofError(
            f"the kept rows of this hour are not those that the certificate of run {certificate.content.run} covers"
        )
    path = [(side, node.hex()) for side, node in merkle.path_of([each.leaf() for each in entries], number)]
    shown = [each.hex() for each in messages]
    return Proof(certificate=certificate, begin_ms=begin_ms, entry=entries[number], messages=shown, path=path)


def decode(content: bytes, kind: type[T], name: str) -> T:
    """Return a certificate or proof from its JSON.

    Raises:
        ProofError: it is none, or one of another version.
    """
    try:
        found = msgspec.convert(exact_value(content), kind)
        msgspec.json.encode(found)  # hashes are over its JSON; half of a surrogate pair has none
    except ValueError as error:  # msgspec's among them
        raise ProofError(f"{name} is no {kind.__name__.lower()}: {error}") from None
    return found


def require_signed(certificate: Certificate, keys: GroupKeys) -> None:
    """Require a certificate that one of the keys has signed.

    Raises:
        ProofError: none has; the content or the signature was changed, or it is another key's.
    """
    run = certificate.content.run
    if certificate.key not in keys.keys:
        raise ProofError(f"the certificate of run {run} is signed with {certificate.key!r}, which is not in the file")
    if not _is_same(_mac(certificate.content, keys, certificate.key), certificate.mac):
        raise ProofError(
            f"the certificate of run {run} differs from what key {certificate.key!r} has signed: its content or its "
            f"signature was changed"
        )


def require_published(certificate: Certificate, head: str) -> None:
    """Require the certificate whose head was published.

    Raises:
        ProofError: its head is another one.
    """
    if not _is_same(certificate.head, head.lower()):
        raise ProofError(
            f"the certificate of run {certificate.content.run} differs from the published one: its head is "
            f"{certificate.head}, and {head} was published"
        )


def require_covered(proof: Proof) -> None:
    """Require that the proof's certificate covers its entry, and the entry its messages.

    Raises:
        ProofError: it does not; the text names the part that differs.
    """
    entry, content = proof.entry, proof.certificate.content
    if content.version != VERSION:
        raise ProofError(f"the certificate has version {content.version}, and this txcore knows {VERSION} only")
    roots = [each.root for each in content.hours if each.begin_ms == proof.begin_ms]
    try:
        leads_to = merkle.climbed(entry.leaf(), [(side, _bytes(node)) for side, node in proof.path]).hex()
        digest = joined([_bytes(each) for each in proof.messages]).hex()
    except ValueError:
        raise ProofError("a hash in the proof is no SHA-256 in hexadecimal digits") from None
    if leads_to not in roots:
        raise ProofError(
            f"the proof does not lead to the certified root of its hour: the path, or what the proof says of "
            f"{entry.id} (group, outcome, digest, findings), was changed"
        )
    if entry.digest and digest != entry.digest:
        raise ProofError(f"the proof's digests of messages differ from the certified digest of {entry.id}")


def require_message(proof: Proof, message: SentMessage) -> None:
    """Require that a message is the one that the certificate covers.

    Args:
        proof: A proof that `require_covered` accepts.
        message: The message.

    Raises:
        ProofError: it is another one; the text says whether id, group, index, order or content differs.
    """
    entry, index, digest = proof.entry, message.index, message.digest
    identity = id_text(message.transaction_id)
    if identity != entry.id:
        raise ProofError(f"the message is one of transaction {identity}, the proof one of {entry.id}")
    if message.group != entry.group:
        raise ProofError(f"the message names group {message.group!r}, and {entry.id} is one of {entry.group!r}")
    if not entry.digest:
        raise ProofError(f"the certificate has no digest of {entry.id}: {_state(entry)}")
    if index >= len(proof.messages):
        count = len(proof.messages)
        raise ProofError(f"transaction {entry.id} has {count} message{'s' * (count != 1)}, and none with index {index}")
    if digest.hex() != proof.messages[index]:
        places = [place for place, each in enumerate(proof.messages) if each == digest.hex()]
        if places:
            raise ProofError(f"the order differs: the content under index {index} is that of message {places[0]}")
        raise ProofError(
            f"message {index} of {entry.id} differs in its topic, key, body or a header: its digest is {digest.hex()}, "
            f"the certified one {proof.messages[index]}"
        )


def require_sent(entry: Entry) -> None:
    """Require that the certificate says: committed, and no violation.

    Raises:
        ProofError: it says something else.
    """
    known = {each.name: each.severity for each in Verdict}
    has_violation = any(known.get(each, Severity.VIOLATION) is Severity.VIOLATION for each in entry.findings)
    if entry.outcome != COMMITTED or has_violation:
        raise ProofError(f"the certificate does not say of {entry.id} that it was rightly sent: {outcome_text(entry)}")


def outcome_text(entry: Entry) -> str:
    """Return what the certificate says of a transaction, as a phrase."""
    if not entry.digest or not entry.row:
        by_database = "its fence row has no digest"
    elif entry.digest.startswith(entry.row):
        by_database = "the digest in its fence row agrees"
    else:
        by_database = "the digest in its fence row is another one"
    return f"{_state(entry)}; {by_database}"


def _bytes(text: str) -> bytes:
    found = bytes.fromhex(text)
    if len(found) != HASH_BYTES or found.hex() != text:
        raise ValueError
    return found


def _is_same(wanted: str, given: str) -> bool:
    return hmac.compare_digest(wanted.encode(), given.encode())  # of texts, it takes ASCII only


def _state(entry: Entry) -> str:
    return f"{entry.outcome}, {'with findings ' + ', '.join(entry.findings) if entry.findings else 'without a finding'}"


def _signed(content: Content) -> bytes:
    return _DOMAIN + msgspec.json.encode(content)


def _mac(content: Content, keys: GroupKeys, name: str) -> str:
    return hmac.digest(keys.keys[name], _signed(content), "sha256").hex()
