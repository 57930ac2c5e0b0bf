"""The number of transactions that `send_many` has under way at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from txcore.producer.send_many import FIRST_COUNT, WINDOW_COUNT, _Window


class Clock:
    """A clock that is set by hand."""

    now_s = 0.0

    def elapsed_s(self):
        return self.now_s


@pytest.mark.parametrize(
    ("immunity_s", "margin_s", "spent_s", "most"),
    [
        (10.0, 4.0, 0.01, WINDOW_COUNT),  # 10,000 a second
        (10.0, 4.0, 0.5, 400),  # 200 a second for 2 s, half of the backend's 4 s
        (5.0, 4.0, 0.5, 100),  # 200 a second for 0.5 s, half of the producer's 1 s
        (10.0, 0.001, 0.5, FIRST_COUNT),  # no fewer than at the start, even if the backend takes no time
        (10.0, 60.0, 0.5, 600),
    ],
)
def test_no_more_are_under_way_than_producer_and_backend_have_time_for(immunity_s, margin_s, spent_s, most):
    clock = Clock()
    policy = SimpleNamespace(immunity_s=immunity_s if immunity_s > margin_s else margin_s + 6.0)
    window = _Window(SimpleNamespace(clock=clock, policy=policy, margin_s=margin_s), 1)
    window.begun(FIRST_COUNT)
    assert not window.room_count()
    clock.now_s = spent_s
    window.ended(FIRST_COUNT)
    count = 0
    while window.room_count():
        window.begun(1)
        count += 1
    assert count == most
