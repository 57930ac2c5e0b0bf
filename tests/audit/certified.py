"""Small stores of runs with kept rows, made by the readers' own rows and without Spark."""

from __future__ import annotations

import base64
import json

import pyarrow as pa
from pyarrow import parquet
from reports import CUT_MS, HOUR_MS, finding, manifest_of, write_findings
from txcore_spark.anomalies import Maker, identity_of
from txcore_spark.rows import Place, Rows, batch_of, bucket_of
from txcore_spark.store import Store

from txcore.audit.message_file import read_message
from txcore.audit.verdicts import FAR

KEY = base64.b64encode(b"k" * 32).decode()
OTHER_KEY = base64.b64encode(b"o" * 32).decode()
BORN_MS = CUT_MS - 3 * HOUR_MS


class Runs:
    """A store to which runs are added; its transactions are born one hour after another."""

    def __init__(self, folder):
        self.folder = folder
        self.store = Store(str(folder / "audit"))
        self.maker = Maker("orders", 1, ["orders.created", "orders.mail"], key_as_header=False)
        self.messages = {}
        self.buckets = {}
        self.runs = []

    def add(self, *kinds, size=2, hour=0, **manifest):
        """Add a run with one transaction per kind (None, a verdict or a forgery), and return their ids."""
        number, rows, ids = self.store.begin(), [], []
        logs = {each: Rows(Place(0, place, 0, 0), {"orders": 0}) for place, each in enumerate(("half", "op", "parked"))}
        targets, table = Rows(Place(0, 3, 0), {"orders": 0}), Rows(Place(0, 4, 0, 0))
        for place, kind in enumerate(kinds):
            born_ms = BORN_MS + hour * HOUR_MS
            history = self.maker.make(identity_of(born_ms, number * 1_000 + place), born_ms, kind, size)
            ids.append(history.transaction_id)
            for position, each in enumerate(history.records, place * 100):
                if each.log == "row":
                    table.add_fence_row(
                        history.transaction_id, each.body[0], 1, is_early=False, content=each.body[1:] or None
                    )
                elif each.log == "target":
                    targets.add_target(position, each.topic, each.key, each.body, each.headers, born_ms)
                    self.messages.setdefault(history.transaction_id, []).append(each)
                else:
                    add = {"half": logs["half"].add_half, "op": logs["op"].add_ops, "parked": logs["parked"].add_parked}
                    add[each.log](position, each.body, born_ms)
        for each in (*logs.values(), targets, table):
            rows += each.found
        self._write(number, rows)
        self._finish(number, ids, (), manifest)
        return ids

    def find(self, transaction_id, verdict):
        """Add a run that finds *verdict* on a transaction."""
        self._finish(self.store.begin(), [transaction_id], [(transaction_id, verdict)], {})

    def _write(self, number, rows):
        self.store._files.create_dir(self.store.path(number, "rows"), recursive=True)
        sink = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_batches([batch_of(rows)]), sink)
        self.store.write(number, "rows/part-0.parquet", sink.getvalue().to_pybytes())

    def _finish(self, number, ids, found, manifest):
        self.runs.append(number)
        self.buckets |= {str(bucket_of(each)): number for each in ids}
        findings = [
            finding(verdict, born_ms=BORN_MS) | {"tx": identity, "bucket": bucket_of(identity)}
            for identity, verdict in found
        ]
        if findings:
            write_findings(self.store, number, findings)
        made = manifest_of(findings, number=number, now_ms=CUT_MS + number, until_ms=FAR, report_sha256="ab" * 32)
        self.store.finish(number, made | {"rows": [*self.runs], "buckets": self.buckets} | manifest)

    def message_of(self, transaction_id, index=0):
        """Return a message as an auditor has it in a file."""
        each = self.messages[transaction_id][index]
        return {"topic": each.topic, "key": _text(each.key), "body": _text(each.body), "headers": {**each.headers}}

    def keys(self, text=KEY):
        """Write the file of keys, and return its path."""
        path = self.folder / "audit.keys"
        path.write_text(f'[groups.audit]\nsign_with = "k1"\n[groups.audit.keys]\nk1 = "{text}"\n', encoding="utf-8")
        return path

    def config(self):
        """Write the configuration, and return its path."""
        path = self.folder / "txcore.toml"
        path.write_text(
            f'[audit]\nstore = "{self.folder}/audit"\n[backends.main]\nurl = "sqlite:///{self.folder}/broker.db"\n'
            '[groups.orders]\nlistener = "shop:listener"\n',
            encoding="utf-8",
        )
        return path


def sent(message):
    """Return the message in a file."""
    return read_message(json.dumps(message).encode(), "message.json")


def _text(value):
    return value.decode() if isinstance(value, bytes) else value
