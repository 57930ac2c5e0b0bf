"""Signed records: a group's halves, ops, parked records and checkpoints carry proof of a key (`docs/security.md`).

For brokers whose permissions cannot keep other programs out of a group's logs. The key is shared by the group's
producers and checkers, so a signature says that one of them wrote the record, and not which.
"""

from txcore.signing.keys import GroupKeys, SigningKeys, split_keys_file
from txcore.signing.signed_backend import SignedBackend

__all__ = ["GroupKeys", "SignedBackend", "SigningKeys", "split_keys_file"]
