"""Messages in one write, and answers taken while they are read: none is lost or mixed, however the bytes are cut."""

from __future__ import annotations

import asyncio

import pytest
from nats import errors
from txcore_nats.client import LinkClient
from txcore_nats.codec import header_lines, parse_headers, publish_command

from txcore.errors import MessageRejectedError

ANSWERS = [
    (b"1", b"", b'{"stream":"s","seq":1}'),
    (b"22", b"NATS/1.0 503\r\n\r\n", b""),
    (b"333", b"NATS/1.0\r\nNats-Sequence: 7\r\n\r\n", b"MSG box.9 1 2\r\nxx\r\n"),
    (b"4", b"", b""),
]


def wire_of(token, headers, body):
    """Return an answer as a server writes it."""
    if headers:
        return b"HMSG box.%b 1 %d %d\r\n%b%b\r\n" % (token, len(headers), len(headers) + len(body), headers, body)
    return b"MSG box.%b 1 %d\r\n%b\r\n" % (token, len(body), body)


class Connected:
    """A client in the state of an open connection, without a socket."""

    def __init__(self):
        self.taken, self.others = [], []
        self.client = LinkClient()
        self.client._answers.take_over(b"box.", lambda *answer: self.taken.append(answer))
        self.client._build_message = lambda _sid, subject, *_: self.others.append(subject)
        self.client._subs[2] = type("Subscription", (), {"_received": 0, "_max_msgs": 0})()

    def read(self, *pieces):
        async def read():
            for piece in pieces:
                await self.client._ps.parse(piece)

        asyncio.run(read())


def test_answers_are_taken_wherever_the_bytes_are_cut():
    """Each answer is taken once, whole and in order, whether the bytes come in two pieces or one by one."""
    data = b"".join(wire_of(*answer) for answer in ANSWERS)
    for place in range(len(data) + 1):
        connected = Connected()
        connected.read(data[:place], data[place:])
        assert connected.taken == ANSWERS
    connected = Connected()
    connected.read(*[data[place : place + 1] for place in range(len(data))])
    assert connected.taken == ANSWERS


def test_other_messages_between_answers_go_to_their_subscriptions():
    """A message that is no answer reaches nats-py, and an answer after it in the same bytes is still taken."""
    other = b"MSG news 2 3\r\nabc\r\n"
    data = b"".join(b"+OK\r\n" + wire_of(*answer) + other for answer in ANSWERS)
    for step in (1, 7, 50, len(data)):
        connected = Connected()
        connected.read(*[data[place : place + step] for place in range(0, len(data), step)])
        assert connected.taken == ANSWERS
        assert connected.others == [b"news"] * 4


def test_a_new_connection_forgets_half_an_answer():
    """An incomplete answer of the old connection is dropped, and answers of the new one are taken."""
    connected = Connected()
    connected.read(wire_of(*ANSWERS[0])[:-5])
    connected.client._ps.reset()
    connected.read(wire_of(*ANSWERS[1]))
    assert ANSWERS[1:2] == connected.taken


def test_nothing_is_written_without_a_connection():
    """A write without a connection raises ConnectionClosedError before a byte is handed over."""
    with pytest.raises(errors.ConnectionClosedError):
        asyncio.run(LinkClient().write(b"PUB a 1\r\nx\r\n"))


def test_a_message_as_it_is_written():
    """A command has its line, headers and body, with sizes in bytes, not in characters."""
    assert publish_command("a", "box.1", "", b"xy", 9) == b"PUB a box.1 2\r\nxy\r\n"
    lines = header_lines({"name": "Grüße"})
    head = "NATS/1.0\r\nname: Grüße\r\n\r\n".encode()
    command = b"HPUB a  %d %d\r\n%bxy\r\n" % (len(head), len(head) + 2, head)
    assert publish_command("a", "", lines, b"xy", len(head) + 2) == command
    assert parse_headers(head) == {"name": "Grüße"}
    with pytest.raises(MessageRejectedError, match="takes"):
        publish_command("a", "", lines, b"xy", len(head) + 1)


@pytest.mark.parametrize("subject", ["", "two words", "line\r\nPUB b 0", "tab\t", "\x00"])
def test_a_subject_that_would_be_read_as_something_else_is_refused(subject):
    """A subject is refused if NATS could read a part of it as another command or field."""
    with pytest.raises(MessageRejectedError):
        publish_command(subject, "", "", b"", 100)


@pytest.mark.parametrize("name", ["", "two words", "a:b", "line\r\nname"])
def test_a_header_that_would_be_read_as_something_else_is_refused(name):
    """A header's name is refused if NATS could read a part of it as a value or another header."""
    with pytest.raises(MessageRejectedError):
        header_lines({name: "value"})
