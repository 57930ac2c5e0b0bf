"""`docs/guarantees.md`, made of what the installed backends say of themselves: `txcore backends --markdown`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from txcore.guarantees import Guarantees
from txcore.registry import find_entry_point, known_schemes

ATTRIBUTE: Final = "GUARANTEES"
"""Where a plugin's module offers its `Guarantees`."""
HEAD: Final = """\
# What each backend guarantees

Everywhere: what was acknowledged and whose database transaction committed is delivered at least once; what did not
commit is never delivered; a duplicate carries the same `txcore-id`, so an inbox removes it. The differences are here.
This page is made of the code by `txcore backends --markdown`, and checked in CI.
"""
LEGEND: Final = """
- **atomic release**: a transaction's messages and the record of its end become visible together or not at all.
- **one decision**: the store itself refuses a second, different end.
- **fences checkers**: the store refuses what a checker writes after another one has taken its partition.
- **fsync before ack**: an acknowledged record is on disk; *configured*: the broker's own setting decides.
- **refuses when full**: a full half log refuses new halves instead of dropping old ones.
- **drops repeats**: for how long the store drops a second message with the same id.
"""


def guarantees_of(scheme: str) -> Sequence[Guarantees]:
    """Return what the backend for *scheme* says of itself, the usual form first; empty when it says nothing.

    Raises:
        UnknownSchemeError, BackendConflictError: see `txcore.connect`.
        ImportError: its module cannot be loaded.
    """
    return cast("Sequence[Guarantees]", getattr(find_entry_point(scheme).load(), ATTRIBUTE, ()))


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
        yield "- A message is appended once; consumers may still be given it again by their own broker client."
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
    yield from (f"- {_words(name)}: {note}." for name, note in form.capabilities.notes.items())
    yield ""


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()
