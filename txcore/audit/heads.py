"""The file in which the heads of certificates are published, outside of the store: one line per run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from txcore.audit.certificate import Certificate, ProofError
from txcore.errors import UsageError

_WORDS: Final = 3
SHOWN_MAX: Final = 80


def published_heads(path: Path) -> dict[int, str]:
    """Return the heads in a file by their runs, in the order of the lines; none if there is no file.

    Raises:
        UsageError: the file cannot be read, or a line is not `RUN TIME HEAD`.
        ProofError: it has two heads of one run.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the published heads cannot be read: {error}") from None
    found: dict[int, str] = {}
    for line in filter(str.strip, lines):
        words = line.split()
        if len(words) != _WORDS or not words[0].isdecimal():
            raise UsageError(f"{path} has a line that is not RUN TIME HEAD: {line[:SHOWN_MAX]!r}")
        if found.setdefault(int(words[0]), words[2]) != words[2]:
            raise ProofError(f"{path} has two heads of run {words[0]}")
    return found


def publish(path: Path, certificate: Certificate) -> None:
    """Add the head of a certificate to the file, unless it is there.

    Raises:
        UsageError: the file cannot be read or written.
        ProofError: it has another head of this run.
    """
    run, known = certificate.content.run, published_heads(path)
    if run in known:
        if known[run] != certificate.head:
            raise ProofError(f"{path} has another head of run {run}: {known[run]}, not {certificate.head}")
        return
    at = datetime.fromtimestamp(certificate.content.cut_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{run} {at} {certificate.head}\n")
    except OSError as error:
        raise UsageError(f"the head cannot be published: {error}") from None
