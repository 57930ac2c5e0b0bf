"""The certificate of a run and the proofs from it, made of the run's kept rows, without Spark.

Rows are never changed, so a proof can be made at any later time: the entries of its hour give the same root again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from txcore.audit import certificate as certificates
from txcore.audit.certificate import Certificate, Content, ProofError
from txcore.audit.heads import publish, published_heads
from txcore.errors import UsageError
from txcore.ids import id_text
from txcore.signing import GroupKeys
from txcore_spark.entries import COLUMNS, FINDINGS_MAX, Facts, entries_of
from txcore_spark.limits import limits_of
from txcore_spark.rows import BUCKET_MS, bucket_of
from txcore_spark.store import Store

NAME: Final = "certificate.json"
HOUR_ROWS_MAX: Final = 1_000_000
"""Most rows that are read at once, unless one hour alone has more."""


def certify(store: Store, keys: GroupKeys, run: int = 0, published: str = "") -> Certificate:
    """Write a run's certificate beside it, and return it; a run that has one keeps it.

    Args:
        store: The store of the runs.
        keys: The keys that sign.
        run: The run; 0 for the newest.
        published: A file outside of the store to which all heads are added that it does not have; "" for none.

    Raises:
        UsageError: there is no such run, a later one is certified, it kept no rows, or the file is in the store.
        ProofError: the store's certificates are not those that were published.
    """
    finished = store.finished()
    manifest = store.manifest(run or (finished[-1] if finished else 0))
    number = manifest["number"]
    if published:
        _require_outside(store, Path(published))
    later = [each for each in finished if each > number and store.has(each, NAME)]
    if later and not store.has(number, NAME):
        raise UsageError(f"run {later[0]} is certified already: certificates are chained in the order of the runs")
    before = _before(store, number)
    unpublished = _unpublished(store, before, keys, published, number)
    if store.has(number, NAME):
        made = certificate_of(store, number)
        certificates.require_signed(made, keys)
    else:
        heads = published_heads(Path(published)) if published else {}
        since = _certified_until(store, manifest, keys, heads)
        made = certificates.signed(_content(store, manifest, before, since), keys)
        store.write(number, NAME, msgspec.json.encode(made))
    for each in [*unpublished, made] if published else ():
        publish(Path(published), each)
    return made


def certificate_of(store: Store, run: int) -> Certificate:
    """Return the certificate of a run.

    Raises:
        UsageError: it has none.
        ProofError: the file is no certificate, or that of another run.
    """
    if not store.has(run, NAME):
        raise UsageError(f"run {run} has no certificate: txcore audit certificate {run} makes it")
    found = certificates.decode(store.read(run, NAME), Certificate, f"the certificate of run {run}")
    if found.content.run != run:
        raise ProofError(f"{store.path(run, NAME)} is the certificate of run {found.content.run}, not of run {run}")
    return found


def prove(store: Store, transaction_id: bytes) -> certificates.Proof:
    """Return the proof of a transaction, from the newest certificate that covers its hour.

    Raises:
        UsageError: no certificate covers it, or a run kept no rows.
        ProofError: the kept rows are not those that were certified.
    """
    begin_ms = bucket_of(transaction_id) * BUCKET_MS
    for run in reversed(store.finished()):
        if store.has(run, NAME):
            made = certificate_of(store, run)
            if any(each.begin_ms == begin_ms for each in made.content.hours):
                found = _proof(store, made, transaction_id, begin_ms)
                if found is not None:
                    return found
    raise UsageError(f"no certificate in the store covers a transaction {id_text(transaction_id)}")


def _proof(store: Store, made: Certificate, transaction_id: bytes, begin_ms: int) -> certificates.Proof | None:
    manifest = store.manifest(made.content.run)
    found = _facts(store, manifest, [bucket_of(transaction_id)])[bucket_of(transaction_id)]
    name = id_text(transaction_id)
    number = next((place for place, each in enumerate(found) if each.entry.id == name), -1)
    if number < 0:
        return None  # it was not in the window of that run
    entries = [each.entry for each in found]
    return certificates.proof_of(made, begin_ms, entries, number, found[number].messages)


def _certified_until(store: Store, manifest: Mapping[str, Any], keys: GroupKeys, heads: Mapping[int, str]) -> int:
    """Return the newest certified run on which a run builds: hours that were judged later have no certificate yet.

    Raises:
        ProofError: its certificate is neither signed nor published.
    """
    number = max((run for run in manifest["rows"] if run < manifest["number"] and store.has(run, NAME)), default=0)
    if number:
        made = certificate_of(store, number)
        if heads.get(number) != made.head:
            certificates.require_signed(made, keys)
    return number


def _content(store: Store, manifest: Mapping[str, Any], before: Certificate | None, since: int) -> Content:
    number = manifest["number"]
    if number not in manifest["rows"]:
        raise UsageError(f"run {number} kept no rows (--no-land), of which a certificate could be made")
    wanted = sorted(int(bucket) for bucket, run in manifest["buckets"].items() if run > since)
    hours = []
    for part in _parts(store, manifest, wanted):
        for bucket, found in sorted(_facts(store, manifest, part).items()):
            if found:
                hours.append(certificates.hour_of(bucket * BUCKET_MS, [each.entry for each in found]))
    return Content(
        version=certificates.VERSION,
        run=number,
        cut_ms=manifest["now_ms"],
        exit_code=manifest["exit_code"],
        report=manifest["report_sha256"],
        limits=limits_of(manifest),
        previous=before.head if before is not None else "",
        hours=hours,
    )


def _parts(store: Store, manifest: Mapping[str, Any], buckets: Sequence[int]) -> Iterator[list[int]]:
    """Cut hours into parts that have few enough rows."""
    sizes = store.row_counts(manifest)
    part, size = list[int](), 0
    for bucket in buckets:
        if part and size + sizes.get(bucket, 0) > HOUR_ROWS_MAX:
            yield part
            part, size = [], 0
        part.append(bucket)
        size += sizes.get(bucket, 0)
    if part:
        yield part


def _facts(store: Store, manifest: Mapping[str, Any], buckets: Sequence[int]) -> dict[int, list[Facts]]:
    verdicts: dict[bytes, list[str]] = {}
    kept = {bucket: run for bucket, run in manifest["buckets"].items() if int(bucket) in buckets}
    for each in store.findings({**manifest, "buckets": kept}, FINDINGS_MAX):
        verdicts.setdefault(bytes(each["tx"]), []).append(each["verdict"])
    return entries_of(manifest, buckets, store.rows(manifest, buckets, COLUMNS), verdicts)


def _before(store: Store, number: int) -> Certificate | None:
    earlier = [each for each in store.finished() if each < number and store.has(each, NAME)]
    return certificate_of(store, earlier[-1]) if earlier else None


def _require_outside(store: Store, path: Path) -> None:
    folder = store.folder
    if folder is not None and folder.resolve() in path.resolve().parents:
        raise UsageError(
            f"{path} is in the store: the head is to be published where a writer of the store cannot write"
        )


def _unpublished(
    store: Store, before: Certificate | None, keys: GroupKeys, published: str, number: int
) -> list[Certificate]:
    """Return the certificates on which run *number* builds and whose heads are not in the file, the oldest first.

    A writer of the store can put any certificate there. So each of them must be signed, or its head published.

    Raises:
        ProofError: the chain is broken, one is not signed, or the newest published head is not in it.
    """
    path = Path(published)
    heads = [each for each in published_heads(path).items() if each[0] < number] if published else []
    run, head = heads[-1] if heads else (0, "")
    found, link = list[Certificate](), before
    while link is not None and link.content.run > run:
        certificates.require_signed(link, keys)
        found.append(link)
        above = _before(store, link.content.run)
        if (above.head if above is not None else "") != link.content.previous:
            raise ProofError(f"the certificate before that of run {link.content.run} is not the one that it names")
        link = above
    if heads and (link is None or (link.content.run, link.head) != (run, head)):
        raise ProofError(f"the store's certificate of run {run} is not the one whose head {path} has: {head}")
    return found[::-1]
