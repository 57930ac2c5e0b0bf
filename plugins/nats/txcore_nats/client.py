"""nats-py's client with two short cuts: many messages in one write, and answers read without an object for each.

They pass by what the client does per message: a coroutine, a future and a place in a queue for each publish; two
regular expressions, a message object, another queue and another task for each answer. Connecting, reading, pings, TLS
and everything else stay the client's own.
"""

from __future__ import annotations

from collections.abc import Callable

from nats import errors
from nats.aio.client import Client
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from txcore.errors import BackendUnavailableError

Take = Callable[[bytes, bytes, bytes], None]
"""Takes an answer: the last token of its subject, its headers as they came, or b"", and its body."""

_CRLF = b"\r\n"


class LinkClient(Client):
    """One connection. Everything on the loop's thread."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = self._answers = _AnswerParser(self)

    async def take(self, inbox: str, take: Take) -> None:
        """Subscribe to the subjects `<inbox>.<token>`: answers there are handed to *take* as they are read."""
        await self.subscribe(f"{inbox}.*")
        self._answers.take_over(f"{inbox}.".encode(), take)

    async def write(self, commands: bytes) -> None:
        """Hand complete commands to the socket at once, and wait while that has too many.

        Raises:
            ConnectionClosedError: nothing was written.
            Exception: some of it may have been.
        """
        if not self.is_connected or self._transport is None:
            raise errors.ConnectionClosedError
        self._transport.write(commands)
        await self._transport.drain()  # type: ignore[no-untyped-call]

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if not self._answers.take(subject, headers or b"", data):
            await super()._process_msg(sid, subject, reply, data, headers)


class _AnswerParser(Parser):
    """A parser that takes answers by itself as long as they come one after the other, and leaves the rest to nats-py's.

    That parser finds answers too, after a PING or a line that came in two pieces: they are handed to `take`.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._inbox = b""
        self._starts: tuple[bytes, bytes] = (b"", b"")
        self._take: Take | None = None
        self._rest = b""

    def take_over(self, inbox: bytes, take: Take) -> None:
        """Take what comes on subjects that begin with *inbox*."""
        self._inbox, self._starts = inbox, (b"MSG " + inbox, b"HMSG " + inbox)
        self._take = take

    def take(self, subject: bytes, headers: bytes, body: bytes) -> bool:
        """Take a message; False if it is no answer."""
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
    """A client that says nothing to a server without TLS; nats-py alone would log in there in the clear."""

    def _connect_command(self) -> bytes:
        if not self._server_info.get("tls_required"):
            raise BackendUnavailableError("the server offers no TLS, and the URL demands it")
        return super()._connect_command()
