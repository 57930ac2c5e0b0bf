"""Checks the shape of a commit message; pre-commit calls it with the file that holds the message.

One change, an imperative subject of at most 72 characters, a blank line, and a body that says why.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SUBJECT_MAX = 72
LINE_MAX = 100
NOT_IMPERATIVE = re.compile(r"\w+(ed|ing)$")
IMPERATIVES = {"Bring", "Embed", "Exceed", "Feed", "Need", "Proceed", "Seed", "Shed", "Speed", "String", "Swing"}
FREE = re.compile(r"(Merge|Revert|fixup!|squash!)")


def problems(text: str) -> list[str]:
    """Return what is wrong with a message, as sentences; nothing for merges and reverts, which git words."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    subject, rest = (lines[0], lines[1:]) if lines else ("", [])
    if FREE.match(subject):
        return []
    found = []
    if not subject.strip():
        return ["a commit needs a subject"]
    if len(subject) > SUBJECT_MAX:
        found.append(f"the subject has {len(subject)} characters; {SUBJECT_MAX} are the most")
    if subject.rstrip().endswith("."):
        found.append("the subject ends without a full stop")
    if ";" in subject:
        found.append("the subject joins several changes; make a commit of each")
    first = subject.split(": ", 1)[-1].split(" ", 1)[0]
    if NOT_IMPERATIVE.match(first) and first.capitalize() not in IMPERATIVES:
        found.append(f"the subject is imperative, as in 'Add', not {first!r}")
    if rest and rest[0].strip():
        found.append("the second line is blank")
    if not any(line.strip() for line in rest):
        found.append("the body says why")
    found += [
        f"line {number} has more than {LINE_MAX} characters"
        for number, line in enumerate(rest, 2)
        if len(line) > LINE_MAX
    ]
    return found


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stderr.writelines(f"commit message: {each}\n" for each in wrong)
    sys.exit(bool(wrong))
