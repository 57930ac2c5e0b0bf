"""The store of runs: a directory, or a URI of any file system that Arrow and Spark both know.

    runs/<number>/rows/…        the landed rows, never changed
    runs/<number>/lines/…       one line per judged transaction, those in doubt in a folder of their own
    runs/<number>/findings, summary, latency, coverage   (Parquet), report.html
    runs/<number>/_manifest.json                          written last: without it there is no run
    packs/…                     the landed rows of many runs in one file, instead of theirs, see `txcore_spark.packs`
    tables/<name>/…             the results of all runs as Delta Lake tables, see `txcore_spark.tables`

A run that was killed leaves a directory without a manifest; the next one takes a new number and starts from the
manifest before, so the same positions are read again and nothing is counted twice.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import dataset, fs, parquet

from txcore.audit.verdicts import Severity, Verdict
from txcore.errors import UsageError
from txcore_spark.rows import Kind

VERSION: Final = 4
"""Version of the format of the manifest and of the files beside it; no step builds on files of another version."""
MANIFEST: Final = "_manifest.json"
ROWS: Final = "rows"
LINES: Final = "lines"
FINDINGS: Final = "findings"
PACKS: Final = "packs"
_PACK: Final = re.compile(r"([0-9]{6,})-([0-9]{6,})-([0-9]+)\.parquet")
_NUMBER: Final = re.compile(r"[0-9]{6}")


def _schema(texts: str, numbers: str) -> pa.Schema:
    return pa.schema([(each, pa.string()) for each in texts.split()] + [(each, pa.int64()) for each in numbers.split()])


TABLES: Final[Mapping[str, tuple[str, pa.Schema]]] = {
    "summary": ("verdicts", _schema("verdict", "bucket group home count")),
    "counts": (
        "transactions",
        _schema(
            "",
            "bucket slot group home transactions halves commits rollbacks pending oldest_ms targets wanted "
            "by_table table_targets elsewhere",
        ),
    ),
    "latency": ("latencies", _schema("", "bucket slot group home step count")),
    "coverage": ("ends", _schema("", "source partition start end gone")),
    "gaps": ("gaps", _schema("backend log name group why", "source partition start end")),
}
"""Small tables of a run, by the part of the manifest that each one holds."""


@dataclass(frozen=True, slots=True)
class Pack:
    """A file with the landed rows of consecutive runs."""

    first: int
    last: int
    level: int

    @property
    def name(self) -> str:
        """Its file's name."""
        return f"{self.first:06d}-{self.last:06d}-{self.level}.parquet"


@dataclass(frozen=True, slots=True)
class Part:
    """Landed rows at one place: of one run, or a pack.

    Attributes:
        uri: The place, in the form for Spark.
        level: How often its rows were packed; 0 for the rows of one run.
        until: Last run whose rows count.
        cuts: Partitions of which a later run has read the last records again.
    """

    uri: str
    first: int
    last: int
    level: int
    until: int
    cuts: Sequence[Mapping[str, int]]
    data: dataset.Dataset

    def holds(self) -> dataset.Expression:
        """Return the condition for the rows that count."""
        found = dataset.field("run") <= self.until if self.level else dataset.scalar(True)
        for cut in self.cuts:
            is_there = (dataset.field("source") == cut["source"]) & (dataset.field("partition") == cut["partition"])
            found &= ~(is_there & (dataset.field("position") >= cut["end"]))
        return found

    def count(self) -> int:
        """Return the number of rows."""
        return int(self.data.count_rows())


class Store:
    """The runs under one directory or URI. One writer at a time.

    Attributes:
        uri: Its URI.
        folder: Its directory on this machine; None on another file system.
    """

    def __init__(self, place: str) -> None:
        if "://" in place:
            self.uri = place.rstrip("/")
            self._files, self._base = opened(self.uri)
        else:
            self._base = Path(place).absolute().as_posix()
            self.uri = Path(place).absolute().as_uri()
            self._files = fs.LocalFileSystem()
        self.folder = Path(self._base) if isinstance(self._files, fs.LocalFileSystem) else None

    def numbers(self) -> list[int]:
        """Return the numbers of all runs, finished or not."""
        selector = fs.FileSelector(f"{self._base}/runs", allow_not_found=True)
        return sorted(int(each.base_name) for each in self._files.get_file_info(selector) if _is_run(each))

    def is_finished(self, number: int) -> bool:
        """Return whether a run has a manifest."""
        return self.has(number, MANIFEST)

    def finished(self) -> list[int]:
        """Return the numbers of the runs that have a manifest."""
        return self.finished_after(0)

    def finished_after(self, number: int) -> list[int]:
        """Return the numbers of the runs after one that have a manifest."""
        return [each for each in self.numbers() if each > number and self.is_finished(each)]

    def newest_first(self) -> Iterator[dict[str, Any]]:
        """Yield the manifests of the finished runs, the newest first."""
        for each in reversed(self.numbers()):
            if self.is_finished(each):
                yield self.manifest(each)

    def before(self, number: int, count_max: int) -> list[dict[str, Any]]:
        """Return the manifests of the last finished runs before one, the oldest first."""
        earlier = (each for each in self.newest_first() if each["number"] < number)
        return list(islice(earlier, count_max))[::-1]

    def begin(self) -> int:
        """Create the directory of a new run and return its number."""
        number = max(self.numbers(), default=0) + 1
        if self.folder is None:
            self._files.create_dir(self._path(f"runs/{number:06d}"), recursive=True)
            return number
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        while True:
            try:
                (self.folder / f"runs/{number:06d}").mkdir()
            except FileExistsError:  # another process has begun it at this moment
                number += 1
            else:
                return number

    def place(self, number: int, name: str) -> str:
        """Return the URI of a part of a run, in the form for Spark."""
        return f"{self.uri}/runs/{number:06d}/{name}"

    def path(self, number: int, name: str) -> str:
        """Return the path of a file of a run as text to print; its URI on another file system."""
        return self.place(number, name) if self.folder is None else self._path(f"runs/{number:06d}/{name}")

    def has(self, number: int, name: str) -> bool:
        """Return whether a part of a run exists."""
        return self._has(f"runs/{number:06d}/{name}")

    def manifest(self, number: int) -> dict[str, Any]:
        """Return a finished run's manifest.

        Raises:
            UsageError: there is no such run, or it did not finish.
        """
        if not self.is_finished(number):
            known = ", ".join(str(each) for each in self.finished()) or "none"
            raise UsageError(f"{self.uri} has no finished run {number}; it has {known}")
        with self._files.open_input_stream(self._path(f"runs/{number:06d}/{MANIFEST}")) as file:
            found: dict[str, Any] = msgspec.json.decode(file.read())
        return found

    def found(self, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the findings of the hours that a run judged, without those of DUP_OP."""
        if self.has(number, FINDINGS):
            data = dataset.dataset(self._path(f"runs/{number:06d}/{FINDINGS}"), filesystem=self._files)
            yield from data.to_batches(columns=list(columns), filter=dataset.field("verdict") != Verdict.DUP_OP.name)

    def findings(
        self, manifest: Mapping[str, Any], count_max: int, *, kind_max: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the worst findings, without opening a Spark session; those of DUP_OP are left out.

        Args:
            manifest: The run's.
            count_max: Most findings in all.
            kind_max: Most findings of one kind, so that many of one leave room for the others; None for no limit.
        """
        by_run: dict[int, list[int]] = defaultdict(list)
        for bucket, run in manifest["buckets"].items():
            by_run[run].append(int(bucket))
        order = sorted(manifest["severities"], key=lambda name: -Severity[manifest["severities"][name].upper()])
        found: list[dict[str, Any]] = []
        for verdict in (name for name in order if name in Verdict.__members__ and name != Verdict.DUP_OP.name):
            end = count_max if kind_max is None else min(count_max, len(found) + kind_max)
            for run, buckets in sorted(by_run.items()):
                if len(found) < end and self.has(run, FINDINGS):
                    data = dataset.dataset(self._path(f"runs/{run:06d}/{FINDINGS}"), filesystem=self._files)
                    holds = (dataset.field("verdict") == verdict) & dataset.field("bucket").isin(buckets)
                    found += data.head(end - len(found), filter=holds).to_pylist()
        return found

    def present(self, manifest: Mapping[str, Any], transaction_id: bytes, backend: int) -> set[int]:
        """Return the targets of a transaction that were read on a broker, in this run or those it builds on."""
        found: set[int] = set()
        holds = (
            (dataset.field("tx") == pa.scalar(transaction_id, pa.binary()))
            & (dataset.field("kind") == int(Kind.TARGET))
            & (dataset.field("backend") == backend)
        )
        for part in self.parts(manifest):
            rows = part.data.to_table(columns=["index"], filter=holds & part.holds())
            found |= set(rows["index"].to_pylist())
        return found

    def row_counts(self, manifest: Mapping[str, Any]) -> Counter[int]:
        """Return the number of kept rows of each hour of birth, in the runs on which a run builds."""
        found = Counter[int]()
        for part in self.parts(manifest):
            counted = part.data.to_table(columns=["bucket"], filter=part.holds())["bucket"].value_counts()
            found.update({each["values"].as_py(): each["counts"].as_py() for each in counted})
        return found

    def rows(self, manifest: Mapping[str, Any], buckets: Sequence[int], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the kept rows of some hours of birth, without those of a partition that a later run has read again."""
        is_wanted = dataset.field("bucket").isin(list(buckets))
        for part in self.parts(manifest):
            yield part.data.to_table(columns=list(columns), filter=is_wanted & part.holds())

    def parts(self, manifest: Mapping[str, Any]) -> list[Part]:
        """Return the places of all landed rows on which a run builds, the oldest first."""
        runs = manifest["rows"]
        packs = [each for each in self.packs() if runs and runs[0] <= each.first <= runs[-1]]
        packs = packs if manifest["mode"] != "once" else []
        found = [self._part(f"{PACKS}/{each.name}", each, runs[-1], ()) for each in packs]
        for run in runs:
            if not any(each.first <= run <= each.last for each in packs) and self.has(run, ROWS):
                cuts = [each for each in manifest["ragged"] if each["run"] == run]
                found.append(self._part(f"runs/{run:06d}/{ROWS}", Pack(run, run, 0), run, cuts))
        return sorted(found, key=lambda part: part.first)

    def _part(self, name: str, pack: Pack, until: int, cuts: Sequence[Mapping[str, int]]) -> Part:
        data = dataset.dataset(self._path(name), format="parquet", filesystem=self._files)
        return Part(f"{self.uri}/{name}", pack.first, pack.last, pack.level, until, cuts, data)

    def all_packs(self) -> list[Pack]:
        """Return all packs, also those whose rows a larger one has."""
        selector = fs.FileSelector(self._path(PACKS), allow_not_found=True)
        names = [_PACK.fullmatch(each.base_name) for each in self._files.get_file_info(selector)]
        found = [Pack(*map(int, each.groups())) for each in names if each]
        return sorted(found, key=lambda pack: (pack.first, -pack.last, -pack.level))

    def packs(self) -> list[Pack]:
        """Return the packs in their order."""
        found: list[Pack] = []
        for each in self.all_packs():
            if not found or each.first > found[-1].last:
                found.append(each)
        return found

    def write_pack(self, first: int, last: int, level: int, content: bytes) -> None:
        """Write a pack whole or not at all."""
        self._files.create_dir(self._path(PACKS), recursive=True)
        self._write(f"{PACKS}/{Pack(first, last, level).name}", content)

    def delete_pack(self, pack: Pack) -> None:
        """Delete a pack."""
        self._files.delete_file(self._path(f"{PACKS}/{pack.name}"))

    def delete(self, number: int, name: str = "") -> None:
        """Delete a folder of a run, or the whole run, if it is there."""
        if self.has(number, name):
            self._files.delete_dir(self._path(f"runs/{number:06d}/{name}".rstrip("/")))

    def read(self, number: int, name: str) -> bytes:
        """Return a file of a run; b"" if there is none."""
        if not self.has(number, name):
            return b""
        with self._files.open_input_stream(self._path(f"runs/{number:06d}/{name}")) as file:
            content: bytes = file.read()
        return content

    def write_table(self, number: int, name: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
        """Write a small table of a run as one Parquet file."""
        sink = pa.BufferOutputStream()
        known = [{field: each.get(field) for field in schema.names} for each in rows]
        parquet.write_table(pa.Table.from_pylist(known, schema=schema), sink)
        self.write(number, f"{name}.parquet", sink.getvalue().to_pybytes())

    def write(self, number: int, name: str, content: bytes) -> str:
        """Write a file of a run whole or not at all, and return its place."""
        return self._write(f"runs/{number:06d}/{name}", content)

    def _write(self, name: str, content: bytes) -> str:
        path = self._path(name)
        with self._files.open_output_stream(f"{path}.part") as file:
            file.write(content)
        self._files.move(f"{path}.part", path)
        return path

    def finish(self, number: int, manifest: dict[str, Any]) -> None:
        """Write the manifest; after that the run exists."""
        self.write(number, MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))

    def table(self, name: str) -> str:
        """Return the place of a table of results, in the form for Delta Lake."""
        return f"{self._base}/tables/{name}" if self.folder is not None else f"{self.uri}/tables/{name}"

    def table_files(self, name: str, files: Sequence[str], schema: pa.Schema) -> dataset.Dataset:
        """Return the rows in these files of a table of results."""
        paths = [self._path(f"tables/{name}/{each}") for each in files]
        return dataset.dataset(paths, schema=schema, format="parquet", filesystem=self._files)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _has(self, name: str) -> bool:
        return bool(self._files.get_file_info(self._path(name)).type != fs.FileType.NotFound)


def opened(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URI, and the path in it. S3 is `s3a` for Spark, and `s3` for Arrow.

    Raises:
        UsageError: Arrow cannot open it.
    """
    try:
        found, path = fs.FileSystem.from_uri(re.sub("^s3a://", "s3://", uri))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"the store {uri!r} cannot be opened: {error}") from error
    return found, str(path)


def _is_run(found: Any) -> bool:
    return bool(found.type == fs.FileType.Directory and _NUMBER.fullmatch(found.base_name))
