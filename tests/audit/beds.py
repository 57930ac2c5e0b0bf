"""Small groups for the audit's tests: histories written without the protocol, and an audit over them."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import create_engine
from txcore_conformance.kit import wait_until
from txcore_spark.anomalies import Maker, identity_of
from txcore_spark.job import Audit
from txcore_spark.selftest.writers import open_writer, write_rows
from txcore_spark.store import Store
from txcore_spark.tables.views import ask

import txcore
from txcore import wire
from txcore.config import load

_numbers = itertools.count(1)


@dataclass
class Bed:
    """One group on one broker, an SQLite file unless another URL is given, with its fence."""

    folder: Path
    group: str = "orders"
    expected: dict = field(default_factory=dict)
    partitions: int = 2
    url: str = ""
    topics: tuple[str, ...] = ("orders.created", "orders.mail")
    sections: str = ""  #: further sections of the configuration
    listener: str = ""  #: of the group, in the configuration

    def __post_init__(self):
        self.url = self.url or f"sqlite:///{self.folder}/broker.db"
        self.database = f"sqlite:///{self.folder}/shop.db"
        engine = create_engine(self.database)
        txcore.SqlFence(engine).create()
        engine.dispose()
        backend = txcore.connect(self.url)
        backend.ensure_group(self.group, self.partitions).result(10)
        backend.close()
        self.writer = open_writer(self.url, self.group)
        self.writer.prepare(self.topics)
        keyless = not self.url.startswith(("kafka", "sqlite"))
        self.maker = Maker(self.group, self.partitions, list(self.topics), key_as_header=keyless)

    def write(self, *kinds, size=1, parts=None):
        """Write one history per kind, with *parts* only these of its records, and return the histories."""
        made = []
        for kind in kinds:
            born_ms = _now_ms()
            history = self.maker.make(identity_of(born_ms, next(_numbers)), born_ms, kind, size)
            records = [each for each in history.records if parts is None or each.log in parts]
            rows = [(history.transaction_id, each.body[0], each.body[1:]) for each in records if each.log == "row"]
            write_rows(self.database, "txcore_tx", self.group, rows)
            self.writer.write((history.partition, each) for each in records if each.log != "row")
            self.expected[history.transaction_id] = history.expected
            made.append(history)
        written_ms = _now_ms()
        wait_until(lambda: _now_ms() > written_ms + 1, "the end of the patience with stuck ones, of 1 ms")
        return made

    @staticmethod
    def half_of(history):
        """Return the half that a history holds."""
        return wire.decode_half(next(each.body for each in history.records if each.log == "half"))

    def config(self, **audit):
        """Write the configuration with *audit* in its section, and return its path."""
        lines = ["[audit]", f'store = "{self.folder}/audit"']
        lines += [f"{key} = {value}" for key, value in ({"grace_s": 86_400} | audit).items()]
        lines += [
            "[backends.main]", f'url = "{self.url}"', "[databases.main]", f'url = "{self.database}"',
            f"[groups.{self.group}]", 'database = "main"', f'listener = "{self.listener}"', self.sections,
        ]  # fmt: skip
        path = self.folder / "txcore.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    def loaded(self, **audit):
        """Return the loaded configuration."""
        return load(self.config(**audit), environment={})

    def audit(self, engine, **audit):
        """Return an audit of this bed."""
        loaded = self.loaded(**audit)
        return Audit(engine, loaded, Store(loaded.config.audit.store))

    def store(self):
        """Return the store of its runs."""
        return Store(f"{self.folder}/audit")


def _now_ms():
    return time.time_ns() // 1_000_000


def found_in(store, manifest):
    """Return a run's verdicts, by transaction, without DUP_OP."""
    found = {}
    for each in store.findings(manifest, 100_000):
        found.setdefault(bytes(each["tx"]), set()).add(each["verdict"])
    return found


def rows_of(bed, sql):
    """Return the rows that a query finds in the bed's store."""
    return [tuple(row) for row in ask(bed.store(), sql).rows]


__all__ = ["Bed", "found_in", "rows_of"]
