"""`docs/guarantees.md`, made of the installed backends' own `Guarantees`: `txcore backends --markdown`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from txcore.guarantees import Guarantees
from txcore.registry import known_schemes, plugin_for

HEAD: Final = """\
# What each backend guarantees

On every broker, an acknowledged message whose database transaction committed is delivered at least once. A message
whose transaction did not commit is never delivered. A duplicate carries the same `txcore-id`, so an inbox removes it.
The differences between brokers are here. `txcore backends --markdown` makes this page from the code; CI checks it.

The limits of "on every broker":

- Without a fence, safety depends on time. A producer must not pause for longer than its immunity between its look at
  the clock and the network. On a cluster of Kafka or NATS the clocks of two nodes must not differ by more than 10 s.
- A checker must run at least once within the retention of the half log. A half that retention has removed is parked
  as LOST, without its messages, if a checkpoint still names it; the fence table has the row of each committed one.
- A power failure may lose records that a broker has acknowledged before they are on disk: see *fsync before ack*.
- A record of a newer txcore stops its partition until its checkers are upgraded: see [versions](compatibility.md).

With a fence, a half names the database that decides it; a database of another identity decides nothing. A copy of a
database keeps its identity on MariaDB and SQLite, and as a physical copy on PostgreSQL: it answers as the original
does. A half without an identity, as schema version 1 gives, is decided by the database that the checker names. On MySQL
and MariaDB a DDL statement commits the open transaction. Between `prepare` and the commit it makes the transaction
final too early, which only its end shows; so run no DDL there.

With a fence, the database also holds a digest of the messages that it committed. `txcore audit` finds a half or a
target with other content; nothing else looks at it.

A delayed message needs a fence on every broker: it waits in the database, is never early by the database's clock, and
is sent at least once after that, as any message of the message table. A cancel holds if and only if its database
transaction commits; until then no relay sends the message ([later](later.md)).

With `release="owner"` the checker publishes, at least once on every broker: ACCEPTED says that the decision is stored,
and that the message will be delivered or is visibly parked. Without a checker nothing is published. "One decision", and
no message without it, then rest on the log also without a fence, no longer on time
([let the checker publish](owner-release.md)).

With `release="owner"` and an order key, first copies of one key are published in the order in which their halves were
stored, on every broker; a repeat may come after later ones. Each line *Order* below is about messages without an order
key ([order per key](order.md)).

The listener style writes its half before the listener runs, so a half without a fence row is left to
`check_local_transaction`, after a tombstone. A listener that forgets `fence(connection)` therefore loses nothing, if
its check answers rightly. Only with `listener_fences=True` does a missing row alone mean ROLLBACK.
After `fence(connection)` a listener's answer COMMIT is believed only with a row that the database committed. Without
one it is a CONFLICT, or TOO_LATE where the listener is asked.

Where a store does not keep "one decision", two holders that both call `commit()` for one `handle()` are one more cause
of a message that is seen twice; where it does, the second one gets ALREADY_DONE. With a fence, `commit()` after another
holder's `rollback()`, or after a rollback of the database transaction itself, is a CONFLICT and publishes nothing, also
by the message table. Without a fence only a store that keeps one decision refuses `commit()` after another holder's
`rollback()`; elsewhere the message is published.
"""
LEGEND: Final = """
- **atomic release**: a transaction's messages and the record of its end become visible together or not at all.
- **one decision**: the store itself refuses a second, different end.
- **fences checkers**: the store refuses a checker's records after another one has taken its partition.
- **fsync before ack**: an acknowledged record is on disk; *configured*: the broker's own setting decides.
- **refuses when full**: a full half log refuses new halves instead of dropping old ones.
- **drops repeats**: for how long the store drops a second message with the same id.
"""


def guarantees_of(scheme: str) -> Sequence[Guarantees]:
    """Return the `Guarantees` of the backend for *scheme*, the usual form first; empty when it offers none.

    Raises:
        UnknownSchemeError, BackendConflictError, ConfigError: see `txcore.connect`.
        ImportError: its module cannot be loaded.
    """
    return plugin_for(f"{scheme}://").guarantees


def markdown() -> str:
    """Return the page for all installed backends."""
    forms = [form for scheme in known_schemes() for form in guarantees_of(scheme)]
    return "\n".join([HEAD, *_table(forms), LEGEND, *(line for form in forms for line in _section(form))])


def _table(forms: Iterable[Guarantees]) -> Iterable[str]:
    yield "| | atomic release | one decision | fences checkers | fsync before ack | refuses when full | drops repeats |"
    yield "|---|---|---|---|---|---|---|"
    for form in forms:
        promises = form.capabilities
        cells = [
            *map(_yes, (promises.atomic_release, promises.resolution_is_unique, promises.fences_checkers)),
            promises.fsync_before_ack,
            _yes(promises.rejects_when_full),
            f"{promises.deduplicates_targets_s:g} s" if promises.deduplicates_targets_s else "no",
        ]
        yield f"| `{form.url}` | {' | '.join(cells)} |"


def _section(form: Guarantees) -> Iterable[str]:
    yield f"## `{form.url}`"
    yield ""
    if form.duplicates:
        yield "- A consumer may see a message twice:"
        yield from (f"  - {cause}" for cause in form.duplicates)
    else:
        yield "- A message is appended once; a consumer's own broker client may still deliver it again."
    for title, text in (
        ("Outdated checkers", form.zombies),
        ("Order", form.order),
        ("Size", form.message_size_max),
        ("Retention", form.retention),
        ("Oldest version", form.version_min),
        ("Tested", ", ".join(form.versions_tested)),
    ):
        if text:
            yield f"- {title}: {text}."
    yield from (f"- {_title(name)}: {note}." for name, note in form.capabilities.notes.items())
    yield ""


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
