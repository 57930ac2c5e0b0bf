"""The keys of signing groups: their file, and the signature of one record."""

from __future__ import annotations

import base64
import binascii
import hmac
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qsl

import msgspec

from txcore.backends.checkpoint_record import encode_checkpoint
from txcore.backends.options import KEYS_OPTION, split_url
from txcore.errors import ConfigError
from txcore.records import Checkpoint, LogKind, Op
from txcore.signed_records import SignedOp, content_of, decode_signed, decode_signed_ops, encode_refused, encode_signed

OPTION: Final = KEYS_OPTION
"""Option of every broker's URL: the file with the keys."""
KEY_SIZE_MIN: Final = 32
"""Least number of bytes of a key."""
NAME_SIZE_MAX: Final = 32
"""Most characters of a key's name."""
OVERHEAD_MAX: Final = 128
"""Most bytes by which a signature makes a record longer."""
_CHECKPOINT: Final = "checkpoint"
_ACCEPT, _REFUSE = "accept", "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKeys:
    """The keys of one group.

    A signature is HMAC-SHA-256 over the group's name, the partition, the log's kind and the record's bytes, so that a
    record proves nothing in another place.

    Attributes:
        sign_with: The name of the key that signs new records.
        keys: Every key whose records are believed, by name (1 to 32 characters); each has 32 bytes or more.
        accepts_unsigned: Whether records without a signature are believed: while a group begins to sign. A wrong
            signature never is.

    Raises:
        ConfigError: `sign_with` is no key's name, or a name or a key has the wrong size.
    """

    sign_with: str
    keys: Mapping[str, bytes] = field(repr=False)
    accepts_unsigned: bool = False

    def __post_init__(self) -> None:
        for name, key in self.keys.items():
            if not 1 <= len(name) <= NAME_SIZE_MAX or not name.isascii():
                text = f"a key's name has 1 to {NAME_SIZE_MAX} ASCII characters, and one of {len(name)} is none"
                raise ConfigError(text, key=OPTION)
            if len(key) < KEY_SIZE_MIN:
                raise ConfigError(f"a key has {len(key)} bytes; it needs {KEY_SIZE_MIN} or more", key=OPTION)
        if self.sign_with not in self.keys:
            text = f"sign_with is not the name of a key; the group's keys are {', '.join(self.keys) or 'none'}"
            raise ConfigError(text, key=OPTION)

    def sign(self, group: str, partition: int, kind: LogKind, record: bytes) -> bytes:
        """Return the signed record that holds *record*."""
        mac = self._mac(self.sign_with, group, partition, kind.value, record)
        return encode_signed(self.sign_with, mac, record)

    def sign_op(self, group: str, partition: int, op: Op) -> SignedOp:
        """Return *op* with its signature."""
        signed = SignedOp(**msgspec.structs.asdict(op), key=self.sign_with)
        signed.mac = self._mac(self.sign_with, group, partition, LogKind.OP.value, content_of(signed))
        return signed

    def sign_checkpoint(self, group: str, partition: int, checkpoint: Checkpoint) -> bytes:
        """Return the signed note of *checkpoint*; the signature covers its positions too."""
        content = encode_checkpoint(checkpoint)
        return encode_signed(
            self.sign_with, self._mac(self.sign_with, group, partition, _CHECKPOINT, content), checkpoint.note
        )

    def opened(self, group: str, partition: int, kind: LogKind, body: bytes) -> bytes:
        """Return a record of a log without its signature; for one that is not believed, bytes that no decoder takes.

        The ops in an op record keep theirs, which decoders ignore; one bad op spoils its record.
        """
        if kind is LogKind.OP:
            return self._opened_ops(group, partition, body)
        signed = decode_signed(body)
        if signed is None:
            return body if self.accepts_unsigned else encode_refused(self._why("has no signature"), body)
        reason = self._why_not(signed.key, signed.mac, group, partition, kind.value, signed.record)
        return encode_refused(reason, body) if reason else signed.record

    def _opened_ops(self, group: str, partition: int, body: bytes) -> bytes:
        ops = decode_signed_ops(body)
        if not ops and not self.accepts_unsigned:  # nothing in it proves that the group's processes wrote it
            return encode_refused(self._why("holds no op with a signature"), body)
        for op in ops or ():
            if not op.mac and self.accepts_unsigned:
                continue
            content = content_of(op)
            reason = self._why_not(op.key, op.mac, group, partition, LogKind.OP.value, content)
            if reason:
                return encode_refused(reason, body)
        return body

    def opened_checkpoint(self, group: str, partition: int, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the checkpoint with the note that was signed, or None when it is not believed."""
        signed = decode_signed(checkpoint.note)
        if signed is None:
            return checkpoint if self.accepts_unsigned else None
        opened = Checkpoint(checkpoint.half, checkpoint.op, checkpoint.token, signed.record)
        content = encode_checkpoint(opened)
        return None if self._why_not(signed.key, signed.mac, group, partition, _CHECKPOINT, content) else opened

    def _why_not(self, name: str, mac: bytes, group: str, partition: int, kind: str, content: bytes) -> str:
        """Return why a signature is not believed, or ""."""
        if not mac:
            return self._why("has no signature")
        if name not in self.keys:
            return self._why(f"is signed with key {name[:NAME_SIZE_MAX]!r}, which is not among the group's")
        is_right = hmac.compare_digest(self._mac(name, group, partition, kind, content), mac)
        return "" if is_right else self._why(f"has a wrong signature under key {name!r}")

    @staticmethod
    def _why(fault: str) -> str:
        return f"a record of a group that signs {fault}"

    def _mac(self, name: str, group: str, partition: int, kind: str, content: bytes) -> bytes:
        return hmac.digest(self.keys[name], _place(group, partition, kind) + _counted(content), "sha256")


class SigningKeys:
    """The keys of every group that signs; a group without keys here reads and writes as ever.

    Args:
        groups: Its keys for each group's name.
    """

    def __init__(self, groups: Mapping[str, GroupKeys]) -> None:
        self._groups = dict(groups)

    def of(self, group: str) -> GroupKeys | None:
        """Return the group's keys, or None where it does not sign."""
        return self._groups.get(group)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Return the keys in a TOML file.

            [groups.orders]
            sign_with = "2026-11"
            unsigned = "refuse"

            [groups.orders.keys]
            2026-11 = "base64 of at least 32 random bytes"

        `unsigned` is "refuse" (the default) or "accept", while the group's processes get their keys.

        Raises:
            ConfigError: the file cannot be read, or has another form; the text names the place and no key.
        """
        try:
            with Path(path).open("rb") as file:
                found = tomllib.load(file)
        except OSError as error:
            raise ConfigError(f"the file of signing keys cannot be read: {error}", key=OPTION) from None
        except (ValueError, RecursionError):  # TOMLDecodeError and UnicodeDecodeError among them
            raise ConfigError(f"the file of signing keys {str(path)!r} is no TOML", key=OPTION) from None
        groups = found.get("groups")
        if set(found) != {"groups"} or not isinstance(groups, dict) or not groups:
            raise ConfigError(f"the file of signing keys {str(path)!r} has tables [groups.NAME] only", key=OPTION)
        return cls({name: _group_keys(name, table) for name, table in groups.items()})


def keys_file_of(url: str) -> str:
    """Return the file that the option `signing_keys` of a broker's URL names; "" where it has none.

    Raises:
        ConfigError: the option is empty or given twice.
    """
    files = [text for name, text in parse_qsl(split_url(url).query, keep_blank_values=True) if name == OPTION]
    if len(files) > 1 or files == [""]:
        raise ConfigError(f"the broker's URL names one file as {OPTION}", key=OPTION)
    return files[0] if files else ""


def _group_keys(group: str, table: Any) -> GroupKeys:
    where = f"group {group!r} in the file of signing keys"
    if not isinstance(table, dict) or not set(table) <= {"sign_with", "unsigned", "keys"}:
        raise ConfigError(f"{where} has sign_with, unsigned and a table keys, nothing else", key=OPTION)
    unsigned, keys = table.get("unsigned", _REFUSE), table.get("keys")
    if unsigned not in (_ACCEPT, _REFUSE):
        raise ConfigError(f'unsigned of {where} is "accept" or "refuse"', key=OPTION)
    if not isinstance(keys, dict):
        raise ConfigError(f"{where} has no table keys", key=OPTION)
    try:
        secrets = {name: base64.b64decode(text, validate=True) for name, text in keys.items()}
    except (binascii.Error, TypeError, ValueError):
        raise ConfigError(f"a key of {where} is no base64", key=OPTION) from None
    sign_with = table.get("sign_with")
    return GroupKeys(
        sign_with=sign_with if isinstance(sign_with, str) else "", keys=secrets, accepts_unsigned=unsigned == _ACCEPT
    )


@lru_cache(maxsize=4_096)
def _place(group: str, partition: int, kind: str) -> bytes:
    return b"".join(_counted(each.encode()) for each in (group, str(partition), kind))


def _counted(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content
