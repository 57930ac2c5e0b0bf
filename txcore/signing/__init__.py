"""Signed records: a group's halves, ops, parked records and checkpoints carry proof of a key (`docs/security.md`).

For brokers whose permissions cannot keep other programs out of a group's logs. The key is shared by the group's
producers and checkers, so a signature says that one of them wrote the record, and not which.
"""

from txcore.signing.keys import KEY_SIZE_MIN, GroupKeys, SigningKeys, keys_file_of
from txcore.signing.signed_backend import SignedBackend

__all__ = ["KEY_SIZE_MIN", "GroupKeys", "SignedBackend", "SigningKeys", "keys_file_of"]
