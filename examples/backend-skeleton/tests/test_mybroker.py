"""What the suite does not know of the skeleton: its URL and its length."""

import io
import tokenize
from pathlib import Path

import pytest
from txcore_mybroker import PLUGIN

from txcore.errors import ConfigError

IDLE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def test_a_url_opens_the_backend_and_a_wrong_option_is_named():
    with PLUGIN.connect("mybroker://here?partitions=3") as backend:
        assert backend.ensure_group("orders").result(1) == 3
    with pytest.raises(ConfigError, match="partition_count"):
        PLUGIN.connect("mybroker://here?partition_count=3")


def test_the_backend_stays_short():
    """Lines of code, docstrings counted: a reader sees all of them."""
    source = (Path(__file__).parents[1] / "txcore_mybroker" / "backend.py").read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for token in tokens if token.type not in IDLE for line in range(token.start[0], token.end[0] + 1)}
    assert 100 < len(lines) <= 155
