"""The comparison of the two sides, as statements of DuckDB over a file that it may spill to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from txcore_spark.engines.sides import Sides
from txcore_spark.found import Found
from txcore_spark.outboxes import messages, table
from txcore_spark.outboxes.asked import PARTS, Asked

KEYLESS: Final = frozenset({"nats", "rabbitmq"})
"""Brokers that carry no key of their own; one that a relay puts into a header is compared all the same."""

_OUTBOX: Final = """
CREATE OR REPLACE TABLE outbox AS
SELECT id, arg_min(name, NOT is_kept) AS name,
       arg_max(topic, is_kept) AS topic, arg_max_null(key, is_kept) AS key, arg_max(body, is_kept) AS body,
       arg_max(headers, is_kept) AS headers, min(created_ms) AS created_ms,
       bool_or(is_done) AS is_done, bool_or(NOT is_kept) AS is_live, bool_or(is_kept) AS is_kept
FROM row GROUP BY id
"""
"""One row for each id. Where a kept copy is there, its content counts: the table's own may have been changed since."""

_JUDGED: Final = """
CREATE OR REPLACE VIEW judged AS
SELECT o.*, (o.is_done OR (NOT o.is_live AND $is_deleted_when_sent)) AS is_sent,
       count(m.position) FILTER (m.topic = o.topic) AS here,
       count(m.position) FILTER (m.topic <> o.topic) AS elsewhere,
       min(m.topic) FILTER (m.topic <> o.topic) AS other,
       bool_or(m.topic = o.topic AND m.key IS DISTINCT FROM o.key AND (m.key IS NOT NULL OR $has_keys)) AS bad_key,
       bool_or(m.topic = o.topic AND m.body <> o.body) AS bad_body,
       bool_or(m.topic = o.topic AND NOT list_has_all(m.headers, o.headers)) AS bad_headers,
       list_sort(list(m.partition || '@' || m.position) FILTER (m.topic = o.topic)) AS places
FROM outbox o LEFT JOIN message m ON m.id = o.id
WHERE coalesce(o.created_ms, 0) >= $since_ms
GROUP BY ALL
"""


class Comparison:
    """Both sides of one audit. Used by one thread; `close` it."""

    def __init__(self, asked: Asked, folder: Path) -> None:
        self._asked = asked
        self._sides = Sides(folder / "outbox.duckdb", {"row": table.SCHEMA, "message": messages.SCHEMA})

    def close(self) -> None:
        """Close the database."""
        self._sides.close()

    def add(self, name: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Add batches of one side, `row` or `message`."""
        self._sides.add(name, (pa.Table.from_batches([batch]) for batch in batches))

    def join(self) -> None:
        """Put the copies of each row together; once, after all rows are added."""
        asked = self._asked
        self._sides.run(_OUTBOX)
        has_keys = asked.broker.partition(":")[0] not in KEYLESS
        values = {
            "is_deleted_when_sent": str(asked.convention.is_deleted_when_sent).upper(),
            "has_keys": str(has_keys).upper(),
            "since_ms": str(asked.since_ms),
        }
        sql = _JUDGED
        for key, value in values.items():
            sql = sql.replace(f"${key}", value)  # a view takes no parameters
        self._sides.run(sql)

    def topics(self) -> list[str]:
        """Return the topics that rows name."""
        return [each for (each,) in self._sides.all("SELECT DISTINCT topic FROM outbox ORDER BY topic")]

    def count(self, sql: str) -> int:
        """Return the number that a statement gives."""
        return int(self._sides.all(sql)[0][0])

    def is_waiting(self) -> bool:
        """Return whether a row that may not be sent yet has no message so far."""
        return self.count("SELECT count(*) FROM judged WHERE here + elsewhere = 0 AND NOT is_sent") > 0

    def unkept(self) -> int:
        """Return the number of the table's rows of which no copy is kept."""
        return self.count("SELECT count(*) FROM outbox WHERE is_live AND NOT is_kept")

    def whole_from(self, cut: Mapping[str, Collection[int]]) -> dict[str, int]:
        """Return the time from which no message is missing in topics whose beginning is gone, where that is known.

        It is the time of the first message that is left, in every partition that was cut, and the grace after it.
        A partition without a message gives no time.

        Args:
            cut: The topics, with the partitions.
        """
        sql = "SELECT topic, partition, min_by(ts_ms, position) FROM message WHERE ts_ms IS NOT NULL GROUP BY ALL"
        first_ms = {(topic, partition): time_ms for topic, partition, time_ms in self._sides.all(sql)} if cut else {}
        times = {topic: [first_ms.get((topic, each)) for each in partitions] for topic, partitions in cut.items()}
        grace_ms = round(self._asked.grace_s * 1000)
        return {
            topic: max(each for each in found if each is not None) + grace_ms
            for topic, found in times.items()
            if None not in found
        }

    def doubled_ids(self) -> int:
        """Return the number of ids that several rows of one table have."""
        return self.count("SELECT count(*) FROM (SELECT id FROM row GROUP BY id, is_kept HAVING count(*) > 1)")

    def unplaced(self, orphans: Iterable[bytes]) -> int:
        """Return the number of messages without a row in partitions where nothing dates them by their order.

        One that is older than the oldest row is not among them.
        """
        return len(self._without_row(orphans, "f.position IS NULL"))

    def without_row(self) -> list[bytes]:
        """Return the ids of messages that have no row."""
        return [each for (each,) in self._sides.all("SELECT DISTINCT id FROM message ANTI JOIN outbox USING (id)")]

    def findings(self, unjudged: Iterable[str], whole_from: dict[str, int], orphans: Iterable[bytes]) -> list[Found]:
        """Return every finding.

        Args:
            unjudged: Topics that could not be read whole, in which a missing message proves nothing.
            whole_from: Time, for some of these, from which all is there.
            orphans: Ids of messages that have no row, looked at a second time.
        """
        self._sides.run("CREATE OR REPLACE TABLE ended AS FROM judged")  # the view joins both sides at each use
        self._sides.run("CREATE OR REPLACE TABLE unjudged (topic VARCHAR, from_ms BIGINT)")
        for topic in sorted(set(unjudged)):
            self._sides.run("INSERT INTO unjudged VALUES (?, ?)", [topic, whole_from.get(topic)])
        return [*self._missing(), *self._wrong(), *self._doubled(), *self._orphans(orphans)]

    def _missing(self) -> list[Found]:
        sql = """SELECT name, topic, is_live AND NOT is_sent FROM ended LEFT JOIN unjudged u USING (topic)
            WHERE here + elsewhere = 0 AND (u.topic IS NULL OR created_ms >= u.from_ms) ORDER BY name"""
        found = []
        for name, topic, is_waiting in self._sides.all(sql):
            if is_waiting:
                found.append(Found("STUCK", name, topic, f"not sent for {self._asked.grace_s:g} s"))
            else:
                found.append(Found("LOST", name, topic, "the row is committed, and no message has its id"))
        return found

    def _wrong(self) -> list[Found]:
        parts = " OR ".join(f"bad_{part}" for part in PARTS if part not in self._asked.skipped) or "FALSE"
        sql = f"""SELECT name, topic, other, bad_key, bad_body, bad_headers, places FROM ended
            WHERE elsewhere > 0 OR {parts} ORDER BY name"""
        found = []
        for name, topic, other, bad_key, bad_body, bad_headers, places in self._sides.all(sql):
            bad = dict(zip(PARTS, (bad_key, bad_body, bad_headers), strict=True))
            differing = [part for part in PARTS if bad[part] and part not in self._asked.skipped]
            what = [f"a message is in topic {other!r}"] if other else []
            what += [f"{' and '.join(differing)} not the row's, at {', '.join(places[:3])}"] if differing else []
            found.append(Found("CORRUPT", name, topic, "; ".join(what)))
        return found

    def _doubled(self) -> list[Found]:
        sql = "SELECT name, topic, here, places FROM ended WHERE here > 1 ORDER BY name"
        return [
            Found("DUP_TARGET", name, topic, f"{here} messages, at {', '.join(places[:3])}")
            for name, topic, here, places in self._sides.all(sql)
        ]

    def _orphans(self, orphans: Iterable[bytes]) -> list[Found]:
        """Return the messages without a row that are not from a time whose rows may be gone."""
        found = self._without_row(orphans, "m.position > f.position")
        return [Found("PHANTOM", name, topic, f"no row has its id, at {place}") for name, topic, place in found]

    def _without_row(self, orphans: Iterable[bytes], holds: str) -> list[tuple[Any, ...]]:
        sql = f"""WITH first AS (
                SELECT m.topic, m.partition, min(m.position) AS position FROM message m JOIN outbox USING (id)
                GROUP BY ALL
            ), oldest AS (SELECT min(created_ms) AS created_ms FROM outbox)
            SELECT m.name, m.topic, m.partition || '@' || m.position
            FROM message m JOIN asked_ids USING (id) LEFT JOIN first f USING (topic, partition) CROSS JOIN oldest
            WHERE {holds}
              AND coalesce(m.ts_ms >= oldest.created_ms + ?, TRUE) AND coalesce(m.ts_ms >= ?, TRUE)
            ORDER BY m.name"""
        with self._sides.given("asked_ids", pa.table({"id": pa.array(list(orphans), pa.binary())})):
            return self._sides.all(sql, [round(self._asked.grace_s * 1000), self._asked.since_ms])
