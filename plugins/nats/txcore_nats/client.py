"""nats-py's client with two short cuts: many messages in one write, and answers read without an object for each.

For each publish they avoid a coroutine, a future and a place in a queue. For each answer they avoid two regular
expressions, a message object, a queue and a task. All other work is still the client's own: connecting,
reading, pings and TLS.
"""

from __future__ import annotations

from collections.abc import Callable

from nats import errors
from nats.aio.client import Client
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from txcore.errors import BackendUnavailableError

Take = Callable[[bytes, bytes, bytes], None]
"""A function that takes an answer: the last token of its subject, its raw headers or b"", and its body."""

_CRLF = b"\r\n"


class LinkClient(Client):
    """One connection. All methods run on the loop's thread."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = self._answers = _AnswerParser(self)

    async def take(self, inbox: str, take: Take) -> None:
        """Subscribe to the subjects `<inbox>.<token>`: *take* gets each answer there when it is read."""
        await self.subscribe(f"{inbox}.*")
        self._answers.take_over(f"{inbox}.".encode(), take)

    async def write(self, commands: bytes) -> None:
        """Hand complete commands to the socket at once, and wait while its buffer is too full.

        Raises:
            ConnectionClosedError: no command was written.
            Exception: some of the commands may have been written.
        """
        if not self.is_connected or self._transport is None:
            raise errors.ConnectionClosedError
        self._transport.write(commands)
        await self._transport.drain()  # type: ignore[no-untyped-call]

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if not self._answers.take(subject, headers or b"", data):
            await super()._process_msg(sid, subject, reply, data, headers)


class _AnswerParser(Parser):
    """A parser that takes answers which directly follow each other, and leaves all other bytes to nats-py's parser.

    nats-py's parser also finds answers, after a PING or a line that arrived in two pieces; the client hands these to
    `take`.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._inbox = b""
        self._starts: tuple[bytes, bytes] = (b"", b"")
        self._take: Take | None = None
        self._rest = b""

    def take_over(self, inbox: bytes, take: Take) -> None:
        """Hand messages on subjects that begin with *inbox* to *take* from now on."""
        self._inbox, self._starts = inbox, (b"MSG " + inbox, b"HMSG " + inbox)
        self._take = take

    def take(self, subject: bytes, headers: bytes, body: bytes) -> bool:
        """Take a message if it is an answer; return whether it is one."""
        if self._take is None or not subject.startswith(self._inbox):
            return False
        self._take(subject[len(self._inbox) :], headers, body)
        return True

    def reset(self) -> None:
        super().reset()
        self._rest = b""

    async def parse(self, data: bytes = b"") -> None:
        if self._take is not None and self.state == AWAITING_CONTROL_LINE and not self.buf:
            data = self._take_answers(self._rest + data)
        if data:
            await super().parse(data)

    def _take_answers(self, data: bytes) -> bytes:
        """Take the answers at the start; return the bytes after them, except an answer that is not complete yet."""
        assert self._take is not None
        self._rest = b""
        take, find, starts, (plain, with_headers) = self._take, data.find, self._starts, self._starts
        start, size = 0, len(data)
        while data.startswith(starts, start):
            line_end = find(_CRLF, start)
            token = start + len(plain if data.startswith(plain, start) else with_headers)
            words = data[token:line_end].split()
            head = line_end + len(_CRLF)
            end = head + int(words[-1]) if line_end > 0 else size
            if end + len(_CRLF) > size:
                self._rest = data[start:]
                return b""
            body = head if token - start == len(plain) else head + int(words[-2])
            take(words[0], data[head:body], data[body:end])
            start = end + len(_CRLF)
        return data[start:]


class EncryptedClient(LinkClient):
    """A client that sends no login to a server without TLS; nats-py alone would send it unencrypted."""

    def _connect_command(self) -> bytes:
        if not self._server_info.get("tls_required"):
            raise BackendUnavailableError("the server offers no TLS, and the URL demands it")
        return super()._connect_command()
