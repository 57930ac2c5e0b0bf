"""Kafka through Spark's own source, where its jars are present; the rows, covers and gaps are those of our reader.

Spark's source reads one partition per task, from exactly our start to exactly our frozen end, and fails on any record
it cannot get: its job succeeds only if every range was read to its end. This module decodes and counts its records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from txcore_kafka.options import BEARER, parse_url

from txcore.errors import ConfigError
from txcore_spark.engines.spark_keep import SparkKeep
from txcore_spark.plan import Range
from txcore_spark.readers.kafka import CONSUMER_GROUP, READ_COMMITTED, add_record, name_of
from txcore_spark.rows import SPARK_SCHEMA, Kind, Rows, batch_of

FORMAT: Final = "kafka"
_COLUMNS: Final = ("topic", "partition", "offset", "stamp_ms", "key", "value", "headers")
_MODULES: Final[Mapping[str, str]] = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM: Final = "scram.ScramLoginModule"


def require(session: SparkSession) -> None:
    """Require the jars of Spark's Kafka source.

    Raises:
        ConfigError: they are not on the session's class path.
    """
    try:
        session.read.format(FORMAT).option("kafka.bootstrap.servers", "none:1").option("subscribe", "none").load()
    except Exception as error:
        raise ConfigError(
            'audit.kafka_source = "spark" needs the jars of Spark\'s Kafka source: name their folder in '
            "audit.spark_jars, or pass them to spark-submit with --jars",
            key="audit.kafka_source",
        ) from error


def settings_of(url: str, timeout_s: float) -> dict[str, str]:
    """Return a URL's settings in the form for Java's clients.

    Raises:
        ConfigError: the URL names a client certificate, `tls_verify=false`, or bearer tokens.
    """
    options = parse_url(url)
    if options.sasl == BEARER:
        raise ConfigError('audit.kafka_source = "spark" takes no bearer tokens', key="sasl")
    if options.tls_cert:
        raise ConfigError('audit.kafka_source = "spark" takes no client certificate', key="tls_cert")
    if not options.tls_verify:
        raise ConfigError('audit.kafka_source = "spark" always checks certificates', key="tls_verify")
    timeout_ms = str(round(timeout_s * 1000))
    found = {
        "kafka.bootstrap.servers": options.servers,
        "kafka.security.protocol": str(options.connection()["security.protocol"]),
        "kafka.isolation.level": READ_COMMITTED,
        "kafka.request.timeout.ms": timeout_ms,
        "kafka.default.api.timeout.ms": timeout_ms,
        "kafka.fetch.max.wait.ms": "100",
        "kafkaConsumer.pollTimeoutMs": timeout_ms,
        "groupIdPrefix": CONSUMER_GROUP,
        "fetchOffset.numRetries": "1",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }
    if options.tls_ca:
        found |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": Path(options.tls_ca).read_text(encoding="ascii"),
        }
    if options.sasl:
        module = f"org.apache.kafka.common.security.{_MODULES.get(options.sasl, _SCRAM)}"
        account = f"username={_quoted(options.user)} password={_quoted(options.password)}"
        found |= {"kafka.sasl.mechanism": options.sasl, "kafka.sasl.jaas.config": f"{module} required {account};"}
    return found


def land(session: SparkSession, url: str, ranges: Sequence[Range], keep: SparkKeep) -> None:
    """Read ranges of one cluster into *keep*; if that fails, each of them is a gap."""
    try:
        keep.add(frame_of(session, url, ranges))
        if any(wanted.expected is None for wanted in ranges):
            _add(session, keep, _unseen(keep, ranges))
    except Exception as error:  # noqa: BLE001 - after any exception of Spark a range that was not read is a gap
        why = _reason(error)
        gaps = []
        for wanted in ranges:
            rows = wanted.rows()
            rows.add_gap(wanted.start, wanted.end, why)
            gaps.append(rows)
        _add(session, keep, gaps)


def frame_of(session: SparkSession, url: str, ranges: Sequence[Range]) -> DataFrame:
    """Return the rows of ranges that follow one another in each partition."""
    starts: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for wanted in ranges:
        topic, number = name_of(wanted.source), str(wanted.place.partition)
        starts[topic][number] = min(starts[topic].get(number, wanted.start), wanted.start)
        ends[topic][number] = max(ends[topic].get(number, wanted.end), wanted.end)
    reader = session.read.format(FORMAT).options(**settings_of(url, max(each.timeout_s for each in ranges)))
    offsets = {
        "assign": {topic: [int(number) for number in each] for topic, each in starts.items()},
        "startingOffsets": starts,
        "endingOffsets": ends,
    }
    for name, value in offsets.items():
        reader = reader.option(name, msgspec.json.encode(value).decode())
    stamped = reader.load().withColumn("stamp_ms", F.unix_millis("timestamp"))
    return stamped.select(*_COLUMNS).mapInArrow(partial(decoded, ranges=list(ranges)), SPARK_SCHEMA)


def decoded(batches: Iterator[pa.RecordBatch], ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of Kafka's records, and last one row per range that says whether it was read whole."""
    by_place: dict[tuple[str, int], list[Range]] = defaultdict(list)
    for wanted in ranges:
        by_place[name_of(wanted.source), wanted.place.partition].append(wanted)
    counts: dict[tuple[str, int, int], int] = defaultdict(int)
    read: dict[tuple[str, int, int], tuple[Range, Rows]] = {}
    key, stop = ("", 0, 0), -1
    for batch in batches:
        for record in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True):
            topic, partition, offset = record[:3]
            if not key[2] <= offset < stop or key[:2] != (topic, partition):
                wanted = next(each for each in by_place[topic, partition] if each.start <= offset < each.end)
                key, stop = (topic, partition, wanted.start), wanted.end
                read.setdefault(key, (wanted, wanted.rows()))
            counts[key] += 1
            _add_record(*read[key], record)
        for _, rows in read.values():
            if rows.found:
                yield rows.take()
    for key, (wanted, rows) in read.items():
        _conclude(rows, wanted, counts[key])
        yield rows.take()


def _add_record(wanted: Range, rows: Rows, record: tuple[Any, ...]) -> None:
    _, _, offset, stamp_ms, key, value, headers = record
    named = [(each["key"], each["value"]) for each in headers or ()]
    add_record(rows, wanted.source, offset, stamp_ms if stamp_ms > 0 else None, key, value or b"", named)


def _conclude(rows: Rows, wanted: Range, count: int) -> None:
    if wanted.expected is not None and count != wanted.expected:
        rows.add_gap(wanted.start, wanted.end, f"{count} records of {wanted.expected} by their offsets")
    else:
        rows.add_cover(wanted.start, wanted.end, count)


def _unseen(keep: SparkKeep, ranges: Sequence[Range]) -> Iterator[Rows]:
    """Yield the covers or gaps of ranges without a visible record, as after transactions that were aborted."""
    is_mark = F.col("kind").isin(int(Kind.COVER), int(Kind.GAP))
    is_ours = F.col("source").isin(sorted({wanted.source.number for wanted in ranges}))
    marks = keep.rows().data.where(is_mark & is_ours).select("source", "partition", "position").collect()
    marked = {(each["source"], each["partition"], each["position"]) for each in marks}
    for wanted in ranges:
        if (wanted.source.number, wanted.place.partition, wanted.start) not in marked:
            rows = wanted.rows()
            _conclude(rows, wanted, 0)
            yield rows


def _add(session: SparkSession, keep: SparkKeep, rows: Iterator[Rows] | Sequence[Rows]) -> None:
    found = [row for each in rows for row in each.found]
    if found:
        keep.add(session.createDataFrame(batch_of(found).to_pylist(), SPARK_SCHEMA))


def _reason(error: BaseException) -> str:
    """Return the root cause of a Java error, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return f"{type(error).__name__}: {(causes or lines or ['no reason given'])[-1 if causes else 0]}"[:500]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
