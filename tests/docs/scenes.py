"""The scene of each page: the names that its programs use without making them."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import certifi
import sqlalchemy

import txcore

#: The output of a page's programs.
PRINTED: dict[str, tuple[str, ...]] = {
    "README.md": ('mail for b\'{"item":"cake"}\'', 'mail for b\'{"item":"tea"}\''),
    "docs/tour.md": ("mail for b'{\"order\":1}'",),
}
#: Spans that look like commands but are none.
NO_COMMANDS = {
    ("docs/checker.md", f"txcore {span}") for span in ("transaction", "prepare", "local", "release", "check")
}
#: Variables that the pages' configurations name.
ENVIRONMENT = {"BROKER_URL": "sqlite:///broker.db", "DATABASE_URL": "sqlite:///shop.db"}


@contextmanager
def scene(document: str) -> Iterator[dict[str, Any]]:
    """Yield the names for a page's programs, and close the backends and engines among them afterwards."""
    namespace: dict[str, Any] = {"__name__": "page"}
    SCENES.get(document, lambda _: None)(namespace)
    try:
        yield namespace
    finally:
        backends = {"backend", "theirs"}
        for name, value in namespace.items():
            if name in backends:
                with value:
                    pass
            elif isinstance(value, sqlalchemy.Engine):
                value.dispose()


def shop(namespace: dict[str, Any]) -> None:
    """Add the service of the README, ready to place orders."""
    engine = sqlalchemy.create_engine("sqlite:///shop.db")
    fence = txcore.SqlFence(engine)
    fence.create()
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)"))
    namespace |= {"txcore": txcore, "sqlalchemy": sqlalchemy, "engine": engine, "fence": fence}
    namespace["backend"] = txcore.connect("sqlite:///broker.db")


def only_txcore(namespace: dict[str, Any]) -> None:
    """Add only the import."""
    namespace["txcore"] = txcore


def with_authority(namespace: dict[str, Any]) -> None:
    """Add the import, and write the file of a trusted authority."""
    only_txcore(namespace)
    shutil.copy(certifi.where(), "ca.pem")


SCENES: dict[str, Callable[[dict[str, Any]], None]] = {
    "docs/checker.md": shop,
    "docs/choosing-a-mode.md": shop,
    "docs/from-rocketmq.md": shop,
    "docs/logs.md": shop,
    "docs/message-table.md": shop,
    "docs/tenants.md": shop,
    "plugins/kafka/README.md": only_txcore,
    "plugins/nats/README.md": only_txcore,
    "plugins/rabbitmq/README.md": with_authority,
    "plugins/sqlite/README.md": only_txcore,
}


def completed(text: str, folder: Path) -> str:
    """Return a part of a configuration with the sections that it refers to."""
    found = tomllib.loads(text)
    named = set(found.get("audit", {}).get("backends", {})) - set(found.get("backends", {}))
    http = found.get("http", {})
    for section in (http, *http.get("tokens", {}).values()):
        if "token_file" in section:
            text_of_token = f"a-token-that-is-long-enough in {section['token_file']}"
            (folder / section["token_file"]).write_text(text_of_token, encoding="utf-8")
    return text + "".join(f'\n[backends.{name}]\nurl = "sqlite:///{name}.db"\n' for name in sorted(named))
