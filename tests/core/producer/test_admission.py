"""The limit on the callers that are under way at a time."""

from __future__ import annotations

import threading

from txcore.producer.admission import Places


def test_a_caller_without_a_place_is_refused_in_time():
    """A caller is refused after its time-out if no place is free, and gets a place after one was given back."""
    places = Places(2)
    assert [places.take(0.0), places.take(0.0), places.take(0.01)] == [True, True, False]
    places.give_back()
    assert [places.take(0.0), places.take(0.01)] == [True, False]


def test_a_waiting_caller_gets_the_place_that_is_given_back():
    """A caller that gives back its place wakes a waiting caller."""
    places, has_it = Places(1), threading.Event()
    assert places.take(0.0)
    thread = threading.Thread(target=lambda: places.take(60.0) and has_it.set())
    thread.start()
    while not places._waiting:
        threading.Event().wait(0.001)
    assert not has_it.is_set()
    places.give_back()
    thread.join(60)
    assert has_it.is_set()


def test_no_more_than_there_are_places_are_under_way():
    """At most as many callers as places are under way, no thread waits for ever, and all places are free in the end."""
    places, lock, under_way, most, done = Places(3), threading.Lock(), [0], [0], []

    def work():
        for _ in range(2_000):
            assert places.take(60.0)
            with lock:
                under_way[0] += 1
                most[0] = max(most[0], under_way[0])
            with lock:
                under_way[0] -= 1
            places.give_back()
        done.append(True)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(done) == len(threads)
    assert most[0] <= 3
    assert [places.take(0.0) for _ in range(4)] == [True, True, True, False]
