"""The keys of `[audit]`: the place of its runs, its sources besides the logs, and its rules."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

ALL: Final = "all"
"""Instead of a list of topics: every topic that the broker lists."""
AuditSeconds = Annotated[float, Meta(ge=0, le=30 * 86_400)]


class RuleSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How one verdict counts, by its name, such as `[audit.rules.LATE_CHECK]`."""

    severity: Annotated[
        Literal["", "info", "warning", "violation", "inconclusive"],
        Meta(description="instead of the verdict's own; `violation` for DUP_TARGET where targets must be unique"),
    ] = ""
    count_max: Annotated[
        int, Meta(ge=0, le=1_000_000_000, description="findings up to which it counts as information only")
    ] = 0


class AuditBackendSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Further sources on one of `backends`, besides the logs of its groups."""

    topics: Annotated[
        list[str] | str,
        Meta(description="target topics; empty for those that the groups' halves name, `all` for those of others too"),
    ] = field(default_factory=list)
    taps: Annotated[
        list[str],
        Meta(description="`topic=stream`: a stream that gets a copy of all that goes to a queue, which cannot be read"),
    ] = field(default_factory=list)


class AuditGroupSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Further backends and databases of one of `groups`, besides its own."""

    backends: Annotated[list[str], Meta(description="further backends on which the group has logs")] = field(
        default_factory=list
    )
    databases: Annotated[list[str], Meta(description="further databases that hold its fence rows")] = field(
        default_factory=list
    )


class EffectConsumerSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A consumer of the group's messages that records them in an inbox table of txcore."""

    database: Annotated[str, Meta(description="one of `databases`, which has the inbox; empty for the group's own")] = (
        ""
    )
    inbox: Annotated[str, Meta(min_length=1, description="name of the inbox table")] = "txcore_inbox"
    topics: Annotated[
        list[str], Meta(description="topics whose messages it receives; empty for all of the group's")
    ] = field(default_factory=list)


class EffectsSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Both ends of one of `groups`, which `txcore audit effects` compares."""

    business: Annotated[
        str,
        Meta(
            description="a query of transaction ids and, for each, the number of business rows that have it; "
            "`:first` and `:until` in it are the ids between which rows are compared"
        ),
    ] = ""
    database: Annotated[str, Meta(description="one of `databases`, for that query; empty for the group's own")] = ""
    window_s: Annotated[
        float, Meta(gt=0, le=400 * 86_400, description="how far back before the run transactions are compared")
    ] = 86_400.0
    settle_s: Annotated[
        AuditSeconds, Meta(description="age from which a transaction has its rows, and a message is received")
    ] = 300.0
    consumers: dict[str, EffectConsumerSection] = field(default_factory=dict)


class AuditSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The audit, `txcore audit`."""

    store: Annotated[
        str, Meta(min_length=1, description="directory, or on Spark URI of any Hadoop file system, that keeps its runs")
    ] = "txcore-audit"
    master: Annotated[
        str,
        Meta(
            description="Spark master, or `sc://host:port` of a Spark Connect server; empty for the one of "
            "`spark-submit`, else all cores of this machine"
        ),
    ] = ""
    driver_memory: Annotated[str, Meta(description="memory of DuckDB, or of Spark's Java process, such as `2g`")] = "2g"
    grace_s: Annotated[
        AuditSeconds, Meta(description="beyond immunity and all checks, before an undecided half is STUCK")
    ] = 60.0
    late_s: Annotated[AuditSeconds, Meta(description="longest time from half to decision that is not LATE_CHECK")] = (
        600.0
    )
    release_s: Annotated[
        AuditSeconds, Meta(description="longest time after a DISCARD for a target of a release under way")
    ] = 60.0
    skew_s: Annotated[AuditSeconds, Meta(description="how far the producers' clocks may be off")] = 60.0
    transaction_s: Annotated[
        AuditSeconds, Meta(description="longest local transaction; how far back an incremental run reads fence rows")
    ] = 3_600.0
    read_timeout_s: Annotated[
        float, Meta(gt=0, le=3_600, description="silence of a broker after which a range counts as unreadable")
    ] = 20.0
    range_records_max: Annotated[
        int, Meta(ge=1_000, le=1_000_000_000, description="records that one task reads at most")
    ] = 500_000
    kafka_source: Annotated[
        Literal["python", "spark"],
        Meta(description="reader of Kafka: txcore's, or Spark's own, which needs jars and takes no client certificate"),
    ] = "python"
    spark_jars: Annotated[
        str, Meta(description="folder with the jars of Spark's Kafka source; under `spark-submit`, `--jars` instead")
    ] = ""
    interval_s: Annotated[
        float, Meta(ge=0.1, le=86_400, description="from one step to the next in mode `continuous`")
    ] = 60.0
    textfile: Annotated[
        str, Meta(description="file `*.prom` with the result's metrics, for Prometheus's node exporter; empty for none")
    ] = ""
    lineage: Annotated[
        str, Meta(description="namespace of the job in OpenLineage, to which each run is reported; empty for none")
    ] = ""
    tables: Annotated[
        bool, Meta(description="write the results of each run as Delta Lake tables too, for `txcore audit sql`")
    ] = True
    keep_days: Annotated[
        int, Meta(ge=0, le=36_500, description="days of births whose rows, runs and results the store keeps; 0 for all")
    ] = 0
    rules: dict[str, RuleSection] = field(default_factory=dict)
    backends: dict[str, AuditBackendSection] = field(default_factory=dict)
    groups: dict[str, AuditGroupSection] = field(default_factory=dict)
    effects: dict[str, EffectsSection] = field(default_factory=dict)
