"""The files of a store as DuckDB opens them: in a folder of this machine, or on any file system of Arrow."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import duckdb
from pyarrow import fs, parquet

from txcore_spark.rows import SCHEMA
from txcore_spark.store import opened


class DuckFiles:
    """The places of stores, by their URIs. DuckDB's own extension for S3, which it would load, is not needed."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._roots: dict[str, tuple[fs.FileSystem, str, str]] = {}

    def _opened(self, place: str) -> tuple[fs.FileSystem, str, str]:
        """Return the file system of a place, the path in it, and what DuckDB puts before the path."""
        parts = urlsplit(place)
        root = f"{parts.scheme}://{parts.netloc}/"
        if root not in self._roots:  # once, as Arrow may ask S3 for a bucket's region
            self._roots[root] = self._opened_root(root)
        files, base, before = self._roots[root]
        return files, base + unquote(parts.path), before

    def _opened_root(self, root: str) -> tuple[fs.FileSystem, str, str]:
        files, base = opened(root)
        if isinstance(files, fs.LocalFileSystem):
            return files, base.rstrip("/"), ""
        from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415 - only another file system needs it

        before = f"{files.type_name}://"
        if all(known != before for _, _, known in self._roots.values()):
            self._connection.register_filesystem(ArrowFSWrapper(files, skip_instance_cache=True))
        return files, base.rstrip("/"), before

    def parquet_in(self, place: str) -> list[str]:
        """Return the Parquet files in a folder, as DuckDB names them; the file itself if the place is one."""
        files, path, before = self._opened(place)
        if path.endswith(".parquet"):
            return [before + path]
        found = files.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(before + each.path for each in found if each.base_name.endswith(".parquet"))

    def made(self, place: str, name: str) -> str:
        """Make a folder, and return the name for DuckDB of a new file in it."""
        files, path, before = self._opened(place)
        files.create_dir(path, recursive=True)
        return f"{before}{path}/{name}"

    def writer(self, place: str, name: str) -> parquet.ParquetWriter:
        """Make a folder, and return a writer of landed rows to a new file in it."""
        files, path, _ = self._opened(place)
        files.create_dir(path, recursive=True)
        return parquet.ParquetWriter(f"{path}/{name}", SCHEMA, compression="zstd", filesystem=files)
