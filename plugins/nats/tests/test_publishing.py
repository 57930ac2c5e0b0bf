"""Deadlines of messages, without a server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from txcore_nats.publishing import Publisher, Sending

from txcore.records import Status


def test_an_end_that_raises_costs_no_other_its_deadline():
    """After the callback of one expired message raises, the other messages still end at their deadlines."""
    ended = []

    async def expire():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        clock = SimpleNamespace(elapsed_s=loop.time)
        publisher = Publisher(SimpleNamespace(loop=loop), clock)
        deadline_s, later = loop.time() - 1.0, loop.create_future()

        def broken(*_answer):
            raise RuntimeError("a caller's bug")

        publisher.send(Sending("a", b"", "", deadline_s, broken))
        publisher.send(Sending("b", b"", "", deadline_s, lambda *answer: ended.append(answer)))
        publisher.hold(deadline_s, lambda *answer: later.set_result(answer))
        ended.append(await later)
        assert publisher.is_idle

    asyncio.run(asyncio.wait_for(expire(), 20))
    assert [status for status, _, _ in ended] == [Status.REFUSED] * 2
