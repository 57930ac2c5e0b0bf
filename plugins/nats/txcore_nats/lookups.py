"""Look-ups of the message that has the place of an op: one by one, or for many releases with one request.

All of it runs on the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from txcore.errors import MessageRejectedError, TxcoreError
from txcore.records import Status
from txcore_nats.codec import (
    DESCRIPTION,
    END_OF_BATCH,
    NOT_FOUND,
    NUM_PENDING,
    SEQUENCE,
    STATUS,
    SUBJECT,
    Found,
    as_json,
    read_direct,
    read_found,
)
from txcore_nats.control import Groups
from txcore_nats.options import GroupNames, Options
from txcore_nats.publishing import End, Publisher, Sending

_log = logging.getLogger("txcore.nats")

TOGETHER_COUNT_MAX: Final = 500
"""Most subjects in one request; the server answers for 1,024 at most."""


class LookUps:
    """Requests for the last message on subjects of op streams; a replica may answer only if there is just one."""

    def __init__(self, options: Options, publisher: Publisher, groups: Groups) -> None:
        self._options = options
        self._publisher = publisher
        self._groups = groups
        self._is_refused = False

    def find(self, names: GroupNames, subject: str, deadline_s: float, end: End) -> None:
        """Find the last message on *subject*; *end* takes it as `Found`, or None."""
        prefix, stream = self._options.api_prefix, names.op_stream
        if self._groups.is_direct(names.group):
            sending = Sending(f"{prefix}.DIRECT.GET.{stream}.{subject}", b"", "", deadline_s, end, read=read_direct)
        else:
            body = as_json({"last_by_subj": subject})
            sending = Sending(f"{prefix}.STREAM.MSG.GET.{stream}", body, "", deadline_s, end, read=read_found)
        self._publisher.send(sending)

    def find_many(self, names: GroupNames, wanted: Sequence[tuple[str, End]], deadline_s: float) -> None:
        """Find the last message on each subject, with few requests if the server supports this."""
        if len(wanted) > 1 and not self._is_refused and self._groups.takes_many(names.group):
            for first in range(0, len(wanted), TOGETHER_COUNT_MAX):
                self._find_together(names, wanted[first : first + TOGETHER_COUNT_MAX], deadline_s)
        else:
            for subject, end in wanted:
                self.find(names, subject, deadline_s, end)

    def _find_together(self, names: GroupNames, wanted: Sequence[tuple[str, End]], deadline_s: float) -> None:
        found: dict[str, Found] = {}

        def read(
            subject: str, headers: Mapping[str, str] | None, data: bytes
        ) -> tuple[Status, TxcoreError | None, Any] | None:
            fields = headers or {}
            status = fields.get(STATUS)
            if status is None and SUBJECT in fields:
                found[fields[SUBJECT]] = Found(data, int(fields[SEQUENCE]))
                return None
            if status == NOT_FOUND:
                return Status.DURABLE, None, True
            if status == END_OF_BATCH:
                return Status.DURABLE, None, fields.get(NUM_PENDING) == "0"
            text = f"{status} {fields.get(DESCRIPTION)}"
            return Status.REFUSED, MessageRejectedError(text, topic=subject, reason="request"), None

        def ended(status: Status, error: TxcoreError | None, is_complete: Any) -> None:
            if isinstance(error, MessageRejectedError):
                # The server that holds the stream is older, or the user may only ask for single messages.
                self._is_refused = True
                _log.debug("nats.single_lookups", extra={"txcore": {"reason": str(error)}})
                is_complete = False
            elif status is not Status.DURABLE:
                for _, end in wanted:
                    end(status, error, None)
                return
            for subject, end in wanted:
                place = found.get(subject)
                if place is not None or is_complete:
                    end(Status.DURABLE, None, place)
                else:
                    self.find(names, subject, deadline_s, end)

        request = f"{self._options.api_prefix}.DIRECT.GET.{names.op_stream}"
        body = as_json({"multi_last": list(dict.fromkeys(subject for subject, _ in wanted))})
        self._publisher.send(Sending(request, body, "", deadline_s, ended, read=read))
