"""`txcore audit certificate`, `proof` and `verify`: a run's certificate, and a message checked against it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from txcore.audit import certificate as certificates
from txcore.audit.certificate import Proof, ProofError
from txcore.audit.heads import published_heads
from txcore.audit.message_file import read_message
from txcore.cli.audit import Config, Settings, audit, code_of, loaded_of, module, say
from txcore.cli.helping import JSON_HELP
from txcore.errors import UsageError
from txcore.ids import parse_id

__all__ = ["audit"]  # with the commands of this module
DIFFERS: Final = 2
"""Exit code when a message, proof or certificate is not what it should be."""
_HEAD: Final = re.compile(r"[0-9a-f]{64}")
STDIN: Final = "-"
Keys = Annotated[
    str,
    typer.Option(
        metavar="FILE", help=f"The file with the keys: signing keys in a table [groups.{certificates.KEYS_NAME}]."
    ),
]


@audit.command("certificate")
def certificate(
    number: Annotated[int, typer.Argument(metavar="RUN", help="The run.", show_default="the newest")] = 0,
    *,
    keys: Keys,
    publish: Annotated[
        str, typer.Option(metavar="FILE", help="Add the chain's head to this file, outside of the store.")
    ] = "",
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
    settings: Settings = None,
) -> None:
    """Write a run's certificate: a Merkle root per hour over ids, digests and outcomes, chained and signed.

    Needs no Spark session. Ends with 0, 2 if the store's certificates are not those that were published, 4 for an
    error.
    """
    loaded = loaded_of(config, settings)
    certifying = module("certifying")

    def action() -> int:
        store = module("store").Store(loaded.config.audit.store)
        made = certifying.certify(store, certificates.keys_in(keys), number, publish)
        content = made.content
        count = sum(each.count for each in content.hours)
        if as_json:
            shown = {"run": content.run, "hours": len(content.hours), "transactions": count, "head": made.head}
            typer.echo(msgspec.json.encode(shown | {"path": store.path(content.run, certifying.NAME)}).decode())
        else:
            typer.echo(f"run {content.run}: {count:,} transactions in {len(content.hours):,} hours")
            typer.echo(f"certificate: {store.path(content.run, certifying.NAME)}")
            typer.echo(
                f"head: {made.head}{'' if publish else '; publish it where no writer of the store can change it'}"
            )
        return 0

    raise typer.Exit(_code(action))


@audit.command("proof")
def proof(
    transaction: Annotated[str, typer.Argument(metavar="ID", help="The transaction's whole id.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the proof to this file.")] = None,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="The proof itself on standard output.")] = False,
    settings: Settings = None,
) -> None:
    """Make the proof of one transaction, from the newest certificate that covers it. For `txcore audit verify`.

    Needs no Spark session. Ends with 0, 2 if the kept rows are not those that were certified, 4 for an error.
    """
    loaded = loaded_of(config, settings)
    certifying = module("certifying")

    def action() -> int:
        if out is None and not as_json:
            raise UsageError("the proof goes to --out FILE, or to standard output with --json")
        found = certifying.prove(module("store").Store(loaded.config.audit.store), parse_id(transaction))
        content = msgspec.json.encode(found)
        if out is not None:
            _write(out, content)
        if as_json:
            typer.echo(content.decode())
        else:
            typer.echo(f"{found.entry.id}: {certificates.outcome_text(found.entry)}")
            typer.echo(f"proof by the certificate of run {found.certificate.content.run}: {out}")
        return 0

    raise typer.Exit(_code(action))


@audit.command("verify")
def verify(
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="A file with the message as JSON; - for the input.")
    ],
    *,
    proof: Annotated[Path, typer.Option("--proof", metavar="FILE", help="The proof of its transaction.")],
    keys: Keys = "",
    published: Annotated[
        str, typer.Option(metavar="HEAD|FILE", help="The head of its certificate, or the file of published heads.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Check one message against the certificate in a proof; needs neither the store nor Spark.

    Give --keys, --published, or both. Ends with 0, 2 if anything differs (the sentence says what), 4 for an error.
    """

    def action() -> int:
        found = read_message(_bytes(message), message)
        shown = certificates.decode(_bytes(str(proof)), Proof, str(proof))
        shown_as = {"transaction_id": shown.entry.id, "run": shown.certificate.content.run, "index": found.index}
        try:
            _require_vouched(shown, keys, published)
            certificates.require_covered(shown)
            certificates.require_message(shown, found)
            certificates.require_sent(shown.entry)
        except ProofError as error:
            if as_json:
                typer.echo(msgspec.json.encode(shown_as | {"is_verified": False, "text": str(error)}).decode())
            raise
        text = certificates.outcome_text(shown.entry)
        if as_json:
            typer.echo(msgspec.json.encode(shown_as | {"is_verified": True, "text": text}).decode())
        else:
            typer.echo(f"message {found.index} of {shown.entry.id} is as run {shown_as['run']} found it")
            typer.echo(f"{shown.entry.group}: {text}")
        return 0

    raise typer.Exit(_code(action))


def _require_vouched(proof: Proof, keys: str, published: str) -> None:
    """Require a key or a published head for the proof's certificate, and that it agrees with what was given."""
    if not keys and not published:
        raise UsageError("give --keys or --published: without them, any program can have made the certificate")
    if keys:
        certificates.require_signed(proof.certificate, certificates.keys_in(keys))
    if published:
        certificates.require_published(proof.certificate, _head(published, proof.certificate.content.run))


def _head(published: str, run: int) -> str:
    if _HEAD.fullmatch(published.lower()):
        return published
    if not os.path.exists(published):  # noqa: PTH110 - False for a name that is too long, too
        raise UsageError(f"{published!r} is neither a head (64 hexadecimal digits) nor a file")
    head = published_heads(Path(published)).get(run)
    if head is None:
        raise ProofError(f"{published} has no head of run {run}, whose certificate is in the proof")
    return head


def _bytes(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from None


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _code(action: Any) -> int:
    def guarded() -> int:
        try:
            return int(action())
        except ProofError as error:
            say(error)
            return DIFFERS

    return code_of(guarded)
