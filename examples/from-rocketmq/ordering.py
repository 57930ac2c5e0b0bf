"""What the shop does on either broker: it writes orders, which come on standard input, one a line, as `42 tea`."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Connection, Engine, text

TOPIC = "orders"
THREADS = 8


class RefusedError(Exception):
    """The order is refused, so nothing of it may stay."""


def create_table(engine: Engine) -> None:
    """Make the table of orders if it is missing."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL)"))


def number_of(order: str) -> int:
    """Return the business id of an order, which its message contains too."""
    return int(order.split(maxsplit=1)[0])


def write_order(connection: Connection, order: str) -> None:
    """Write an order in an open transaction, which an exception must roll back.

    Raises:
        RefusedError: it was ordered before, or the item is sold out.
    """
    number, item = order.split()
    sql = "INSERT INTO orders VALUES (:number, :item) ON CONFLICT DO NOTHING"
    if not connection.execute(text(sql), {"number": int(number), "item": item}).rowcount:
        raise RefusedError("it was ordered before")
    if item == "none":
        raise RefusedError("sold out")


def is_ordered(connection: Connection, order: str) -> bool:
    """Return whether an order is in the database."""
    sql = text("SELECT 1 FROM orders WHERE number = :number")
    return connection.execute(sql, {"number": number_of(order)}).first() is not None


def serve(place: Callable[[str], bool]) -> None:
    """Place the orders of standard input until it ends, and print the answer to each."""

    def answer(line: str) -> None:
        order = line.strip()
        try:
            said = "placed" if place(order) else "refused"
        except Exception as error:  # noqa: BLE001 - the customer hears of it, and asks again
            said = f"unknown ({error}):"
        sys.stdout.write(f"{said} {order}\n")
        sys.stdout.flush()

    print("ready", flush=True)
    with ThreadPoolExecutor(THREADS) as threads:
        for line in sys.stdin:
            threads.submit(answer, line)
