"""The commit-msg hook accepts a message in CONTRIBUTING's form, and names the fault of any other one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BODY = "\n\nIt was in two places, and they differed for halves without a fence.\n"


def check(tmp_path, text):
    """Run the hook on a message, and return the exit status and the printed text."""
    file = tmp_path / "message"
    file.write_text(text, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, ROOT / ".ci" / "commit_message.py", file], capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stderr


@pytest.mark.parametrize(
    "text",
    ["Give the force rule one home" + BODY, "docs: Define the rules" + BODY, "Merge branch 'x'", "Speed up ids" + BODY],
)
def test_hook_accepts_a_message_with_subject_and_reason(tmp_path, text):
    """The hook accepts a subject with a reason, and git's own subjects, which have no body."""
    assert (0, "") == check(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Give the force rule one home\n", "the body says why"),
        ("G" * 73 + BODY, "the subject has 73 characters; 72 are the most"),
        ("Added a home" + BODY, "the subject is imperative, as in 'Add', not 'Added'"),
        ("docs: moving pages" + BODY, "the subject is imperative, as in 'Add', not 'moving'"),
        ("Add one; remove another" + BODY, "the subject joins several changes; make a commit of each"),
        ("Add one." + BODY, "the subject ends without a full stop"),
        ("Add one\nbecause" + BODY, "the second line is blank"),
        ("# only a comment\n", "a commit needs a subject"),
        ("Add one\n\n" + "x" * 101, "line 3 has more than 100 characters"),
    ],
)
def test_hook_names_what_is_wrong(tmp_path, text, wrong):
    """The hook prints a line about the fault and ends with status 1."""
    assert (1, f"commit message: {wrong}\n") == check(tmp_path, text)
