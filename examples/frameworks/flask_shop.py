"""Flask: an order and its message, both or neither, before the answer leaves.

pip install "txcore[sql]" flask
flask --app "flask_shop:make_app('sqlite:///broker.db', 'sqlite:///shop.db')" run
curl -d '{"item": "tea"}' -H 'content-type: application/json' http://127.0.0.1:5000/orders
"""

import functools

import sqlalchemy
from flask import Flask, request
from sqlalchemy import text

import txcore


def make_app(broker: str, database: str) -> Flask:
    """Return the service; the checker is a process of its own beside it."""
    engine = sqlalchemy.create_engine(database)
    fence = txcore.SqlFence(engine)

    @functools.cache  # made by the first request, so after a server such as gunicorn has forked its workers
    def producer() -> txcore.TransactionProducer:
        return txcore.TransactionProducer(txcore.connect(broker), "shop", fence=fence)

    app = Flask(__name__)

    @app.cli.command("create-tables")
    def create_tables() -> None:
        fence.create()
        with engine.begin() as connection:
            sql = "CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL)"
            connection.execute(text(sql))

    @app.post("/orders")
    def place() -> tuple[dict[str, int], int]:
        with producer().transaction(engine) as tx:  # an exception in here, abort() too, undoes both
            sql = text("INSERT INTO orders (item) VALUES (:item) RETURNING number")
            number = tx.connection.execute(sql, {"item": request.get_json()["item"]}).scalar_one()
            tx.publish(txcore.Message("orders.created", b"%d" % number))
        return {"order": number}, 201

    @app.errorhandler(txcore.NotSentError)
    @app.errorhandler(txcore.HalfUnknownError)
    def nothing_happened(error: Exception) -> tuple[dict[str, str], int, dict[str, str]]:
        return {"error": f"nothing was ordered: {error}"}, 503, {"retry-after": "1"}

    @app.errorhandler(txcore.CommitUnknownError)
    def outcome_unknown(error: Exception) -> tuple[dict[str, str], int]:
        return {"error": f"look whether it was ordered before you try again: {error}"}, 500

    return app
