"""What a backend remembers of its targets, and for how long; each waiting caller gets one answer."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from txcore.backends import target_cache
from txcore.backends.target_cache import KNOWN_S, REFRESH_S, TargetCache
from txcore.errors import BackendUnavailableError, MessageRejectedError
from txcore.testing.clock import ManualClock

NO_ANSWER = BackendUnavailableError("no answer")
MISSING = MessageRejectedError("missing", topic="t", reason="topic")


class Kit:
    """A cache, the questions that it has begun, and the answers that its callers got."""

    def __init__(self, **options):
        self.clock = ManualClock()
        self.begun, self.got = [], []
        self.cache = TargetCache(self.clock, self.begun.extend, **options)

    def known(self, target):
        return self.cache.known(target, self.clock.elapsed_s())

    def ask(self, *targets):
        self.cache.ask(targets, self.got.append)


@pytest.fixture
def kit():
    return Kit()


def test_one_question_serves_all_that_wait(kit):
    """Callers that ask for a target while its question is under way share the answer."""
    kit.ask("t")
    kit.ask("t", "u", "t")
    assert (["t", "u"], []) == (kit.begun, kit.got)
    kit.cache.answered("t", 1)
    assert [None] == kit.got
    kit.cache.answered("u", 2)
    assert ([None, None], 1, 2) == (kit.got, kit.known("t"), kit.known("u"))
    kit.ask("u", "t")
    assert (["t", "u"], [None] * 3) == (kit.begun, kit.got)


def test_the_first_error_answers_a_caller(kit):
    """A caller gets the first error of its targets at once, and no second answer."""
    kit.ask("t", "u", "v")
    kit.cache.failed("u", NO_ANSWER)
    kit.cache.failed("t", MISSING)
    kit.cache.answered("v", 1)
    assert [NO_ANSWER] == kit.got


def test_a_late_second_answer_is_dropped(kit):
    """An answer to no question is not remembered."""
    kit.ask("t")
    kit.cache.failed("t", NO_ANSWER)
    kit.cache.answered("t", 1)
    assert ([NO_ANSWER], None) == (kit.got, kit.known("t"))


def test_an_answer_within_begin_counts():
    """A backend may answer a question while it begins it."""
    got = []
    cache = TargetCache(ManualClock(), lambda targets: [cache.failed(target, NO_ANSWER) for target in targets])
    cache.ask(["t", "u"], got.append)
    assert [NO_ANSWER] == got


def test_a_target_in_use_is_asked_for_before_its_answer_is_too_old(kit):
    """From `REFRESH_S` on the next use asks once in advance; only after `KNOWN_S` the target is unknown."""
    kit.ask("t")
    kit.cache.answered("t", 1)
    kit.clock.advance(REFRESH_S)
    assert [1, 1] == [kit.known("t"), kit.known("t")]
    assert ["t", "t"] == kit.begun
    kit.cache.failed("t", NO_ANSWER)
    assert (1, ["t", "t"]) == (kit.known("t"), kit.begun)
    kit.clock.advance(KNOWN_S - REFRESH_S)
    assert (None, 1) == (kit.known("t"), kit.cache.last("t"))
    kit.ask("t")
    kit.cache.answered("t", 2)
    assert (["t"] * 3, 2) == (kit.begun, kit.known("t"))


def test_a_refusal_ends_what_was_known(kit):
    """A target that is refused when it is asked for in advance is unknown at once."""
    kit.ask("t")
    kit.cache.answered("t", 1)
    kit.clock.advance(REFRESH_S)
    kit.known("t")
    kit.cache.failed("t", MISSING)
    assert (None, None) == (kit.known("t"), kit.cache.last("t"))


@pytest.mark.parametrize(("refused_s", "begun"), [(0.0, ["t", "t", "u"]), (0.5, ["t"])])
def test_a_refusal_is_remembered_for_the_time_given(refused_s, begun):
    """A refusal that counts answers a caller at once, which then starts no question for its other targets."""
    kit = Kit(refused_s=refused_s)
    kit.ask("t")
    kit.cache.failed("t", MISSING)
    kit.ask("t", "u")
    assert begun == kit.begun
    assert [MISSING] * (1 + bool(refused_s)) == kit.got
    kit.clock.advance(refused_s)
    kit.ask("t")
    assert kit.begun.count("t") == 2


def test_no_answer_is_not_remembered():
    """The next caller asks again after a question without an answer."""
    kit = Kit(refused_s=0.5)
    kit.ask("t")
    kit.cache.failed("t", NO_ANSWER)
    kit.ask("t")
    assert ["t", "t"] == kit.begun


def test_a_forgotten_target_is_forgotten_by_all_that_share_its_answer(kit):
    """Targets that share an answer lose it together."""
    kit.ask("t")
    kit.cache.answered("t", 1)
    kit.cache.share("u", "t")
    kit.cache.share("v", "never asked for")
    assert [1, 1, None] == [kit.known(target) for target in "tuv"]
    kit.cache.forget("u")
    assert [None] * 3 == [kit.known(target) for target in "tuv"]


def test_an_answer_older_than_a_forget_is_not_remembered(kit):
    """The answer of a question that began before `forget` reaches its callers only."""
    kit.ask("t")
    kit.cache.forget("t")
    kit.cache.answered("t", 1)
    assert ([None], None) == (kit.got, kit.known("t"))


def test_the_oldest_answer_makes_room(kit, monkeypatch):
    """The memory is bounded; an answer that was renewed is young again."""
    monkeypatch.setattr(target_cache, "TARGET_COUNT_MAX", 2)
    for target in "abac":
        kit.cache.forget(target)
        kit.ask(target)
        kit.cache.answered(target, 1)
    assert [1, None, 1] == [kit.known(target) for target in "abc"]


TOPICS = st.sampled_from("abcde")
ERRORS = st.sampled_from([None, NO_ANSWER, MISSING])


class AnyOrder(RuleBasedStateMachine):
    """Callers, answers and refused messages in any order."""

    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.open, self.outdated, self.answers = [], set(), []  # questions, those older than a forget; by caller
        self.number, self.forgotten_at = 0, dict.fromkeys("abcde", 0)
        self.cache = TargetCache(self.clock, self.open.extend, refused_s=0.5)

    @rule(topics=st.lists(TOPICS, max_size=4))
    def ask(self, topics):
        got = []
        self.answers.append((set(topics), got))
        self.cache.ask(topics, got.append)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), error=ERRORS)
    def end(self, data, error):
        topic = data.draw(st.sampled_from(self.open))
        self.open.remove(topic)
        before = self.cache.last(topic)
        self.number += 1
        if error is None:
            self.cache.answered(topic, self.number)
        else:
            self.cache.failed(topic, error)
        if topic in self.outdated:
            assert self.cache.last(topic) == before
        self.outdated.discard(topic)

    @rule(topic=TOPICS)
    def forget(self, topic):
        self.cache.forget(topic)
        self.forgotten_at[topic] = self.number
        self.outdated |= {topic} & set(self.open)

    @rule(topic=TOPICS, seconds=st.sampled_from([0.0, 0.5, REFRESH_S, KNOWN_S]))
    def use(self, topic, seconds):
        self.clock.advance(seconds)
        self.cache.known(topic, self.clock.elapsed_s())

    @invariant()
    def one_question_for_each_topic(self):
        assert len(self.open) == len(set(self.open))

    @invariant()
    def nothing_is_older_than_a_forget(self):
        assert all((self.cache.last(topic) or self.number + 1) > at for topic, at in self.forgotten_at.items())

    @invariant()
    def each_caller_has_one_answer_or_waits_for_a_question(self):
        for topics, got in self.answers:
            assert len(got) <= 1
            assert got or topics & set(self.open)

    def teardown(self):
        while self.open:
            self.cache.answered(self.open.pop(), 1)
        assert all(len(got) == 1 for _, got in self.answers)


test_any_order_of_callers_and_answers = AnyOrder.TestCase
