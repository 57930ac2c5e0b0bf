"""The page about testing a service shows the text of a failed assertion as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import txcore

PAGE = Path(__file__).parents[3] / "docs" / "testing-your-service.md"


def test_text_of_a_failed_assertion_is_that_of_the_page(kit, shop):
    """The block of the page is the text, with another id."""
    producer = kit.producer("shop", fence=shop.fence)
    with producer.transaction(shop.engine) as tx:
        tx.publish(txcore.Message("orders.paid", b"1"))
    with kit.crash_after("database commit"):
        shop.place(producer)
    kit.clock.advance(2)
    with pytest.raises(AssertionError) as caught:
        kit.assert_published("orders.created")
    shown = PAGE.read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    assert shown.rstrip() == re.sub(r"transaction \S+ of", "transaction ID of", str(caught.value))
