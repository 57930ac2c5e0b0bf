"""The inbox: a consumer's table that distinguishes a first delivery from a repeated one.

Delivery is at least once, and every copy of a target message carries the same `txcore-id`. The inbox writes that id
in the consumer's own database transaction: the message's effect and its inbox row are committed together.
"""

from __future__ import annotations

from txcore.errors import BackendNotInstalledError

try:
    import sqlalchemy as _sqlalchemy
except ImportError as error:
    if error.name != "sqlalchemy":
        raise
    raise BackendNotInstalledError("Inbox", "SQLAlchemy", "sql") from error

from txcore.inbox.identity import Headers, MessageId, headers_of, message_id_of
from txcore.inbox.receiving import AsyncDelivery, AsyncInbox, Delivery, Inbox

__all__ = ["AsyncDelivery", "AsyncInbox", "Delivery", "Headers", "Inbox", "MessageId", "headers_of", "message_id_of"]

del _sqlalchemy
