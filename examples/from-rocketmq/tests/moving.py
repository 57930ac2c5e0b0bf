"""The servers of the move: RocketMQ with its admin tool, two databases of a PostgreSQL, and the programs on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy
from conftest import Program
from sqlalchemy import text
from txcore_conformance import servers as databases
from txcore_conformance.kit import wait_until
from txcore_conformance.required import obtained

from benchmarks.rivals import rocketmq_servers

FOLDER = Path(__file__).parents[1]
HALVES, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
SETTINGS = {"transactionCheckInterval": "5000", "transactionTimeOut": "15000"}
"""RocketMQ checks each 5 s, not each 30 s, what is older than 15 s, not 6 s: a busy machine repeats orders before.

It writes answers up to 3 s late. With checks more often than that it asks again for what is answered, 15 times.
"""


class RocketMQ:
    """A name server and a broker with the topic and the consumer group of the shop."""

    def __init__(self) -> None:
        jars = obtained("rocketmq", rocketmq_servers.proxy_libraries)
        self._names = rocketmq_servers.NameServer(jars, {})
        self._names.start()
        self.broker = rocketmq_servers.BrokerWithProxy(jars, {"namesrvAddr": self._names.address} | SETTINGS)
        self.broker.start()
        self.admin("updateTopic", "-b", self.broker.address, "-t", "orders", "-a", "+message.type=TRANSACTION")
        self.admin("updateSubGroup", "-b", self.broker.address, "-g", "warehouse")

    def admin(self, *arguments: str) -> str:
        """Run `mqadmin`, and return what it printed."""
        return self.broker.admin(*arguments)

    def left(self, topic: str) -> int:
        """Return how many messages of a topic its consumer group has not consumed, as an operator sees it."""
        table = self.admin("brokerConsumeStats", "-b", self.broker.address)
        return sum(int(line.split()[6]) for line in table.splitlines() if line.split()[:1] == [topic])

    def given_up(self) -> int:
        """Return how many halves RocketMQ has discarded; their topic exists from the first one on."""
        if GIVEN_UP not in self.admin("topicList").split():
            return 0
        table = self.admin("topicStatus", "-t", GIVEN_UP)
        return sum(int(line.split()[3]) for line in table.splitlines() if line.split()[1:2] == ["0"])

    def restart(self) -> None:
        """Kill the broker, and start it again on its data."""
        self.broker.kill()
        self.broker.start()

    def remove(self) -> None:
        """End both servers."""
        for each in (self.broker, self._names):
            each.kill()
            each.remove()


class Shop:
    """One process of a shop, which reads its orders from a file that the test appends to."""

    def __init__(self, start: Callable[..., Program], **variables: str) -> None:
        self._program = start(**variables)
        self._program.wait_for("ready")

    def order(self, orders: list[str]) -> None:
        """Give it orders."""
        self._program.write("".join(f"{each}\n" for each in orders))

    @property
    def answered(self) -> set[str]:
        """The orders that it has answered."""
        return set(re.findall(r"^(?:placed|refused) (.+)$", self._program.log.read_text(), re.MULTILINE))

    def checked(self, answer: str) -> list[str]:
        """Return the orders whose check it has answered so."""
        return re.findall(rf"^checked (.+): {answer}$", self._program.log.read_text(), re.MULTILINE)

    def serve(self, orders: list[str]) -> None:
        """Give it orders, and wait until it has answered all of them."""
        self.order(orders)
        wait_until(lambda: self.answered >= set(orders), "the answers")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._program.kill()

    def serve_until_killed(self, orders: list[str], least: int) -> list[str]:
        """Give it orders, kill it once it has answered some, and return those without an answer."""
        self.order(orders)
        wait_until(lambda: len(self.answered & set(orders)) >= least, "some answers")
        self.kill()
        return [each for each in orders if each not in self.answered]


class Databases:
    """The databases of shop and warehouse."""

    def __init__(self) -> None:
        self._server = obtained("postgresql", databases.postgresql)
        self.shop, self.warehouse = self._server.fresh_database(), self._server.fresh_database()
        self._engines = {url: sqlalchemy.create_engine(url) for url in (self.shop, self.warehouse)}

    def column(self, url: str, sql: str) -> list[int]:
        """Return the first column of a query, sorted."""
        with self._engines[url].connect() as connection:
            return sorted(row[0] for row in connection.execute(text(sql)))

    @contextmanager
    def locked_orders(self, waiting: int) -> Iterator[Callable[[], None]]:
        """Let no order be written in the block; yields a wait until so many transactions want to."""
        sql = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        with self._engines[self.shop].begin() as connection:
            connection.execute(text("LOCK TABLE orders IN EXCLUSIVE MODE"))
            yield lambda: wait_until(lambda: self.column(self.shop, sql)[0] >= waiting, "transactions that wait")

    def remove(self) -> None:
        """End the server."""
        for each in self._engines.values():
            each.dispose()
        self._server.remove()
