"""Durations, ages, ids and plans, without any broker."""

from __future__ import annotations

import re

import pytest

from txcore import wire
from txcore.errors import UsageError
from txcore.fence import FenceAnswer, FenceReading
from txcore.findings import counted
from txcore.history.journey import Journey
from txcore.ids import id_text
from txcore.operator import formatting, selection
from txcore.operator.plan import Plan, Step, Verb, is_doubtful, plan
from txcore.records import WALL_MS_MAX, Half, Op, OpKind, ParkCode, Parked, TargetMessage

A = bytes.fromhex("01a1feb1d200775f989813a298331c24")
B = bytes.fromhex("01a1feb1d20172f4afda692e1e79366b")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), ("1w", 604_800), ("1.5h", 5400), (" 1H 5s ", 3605)],
)
def test_durations_are_read(text, seconds):
    """A duration may join several units."""
    assert seconds == formatting.duration_s(text, "--older-than")


@pytest.mark.parametrize("text", ["", "5", "h", "1y", "-1h", "1h-", "5 minutes"])
def test_malformed_duration_is_refused_with_the_options_name(text):
    """The error has the option's name and examples."""
    with pytest.raises(UsageError, match=r"--older-than takes a duration such as 90s"):
        formatting.duration_s(text, "--older-than")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0.9, "0s"),
        (59, "59s"),
        (60, "1m"),
        (190, "3m10s"),
        (3599, "59m59s"),
        (3600, "1h"),
        (7500, "2h5m"),
        (86_399, "23h59m"),
        (86_400, "1d"),
        (349_200, "4d1h"),
        (8_640_000, "100d"),
    ],
)
def test_ages_have_two_units_at_most(seconds, text):
    """An age is short enough for a column."""
    assert text == formatting.age(seconds)


def test_moments_are_in_utc():
    """A time has milliseconds, and sorts as text."""
    assert "2023-11-14T22:13:20.123Z" == formatting.iso(1_700_000_000_123)
    assert "9999-12-31T23:59:59.999Z" == formatting.iso(WALL_MS_MAX)
    for absurd in (WALL_MS_MAX + 1, 2**48, 10**18, -(10**18), 2**64):
        assert f"{absurd} ms" == formatting.iso(absurd)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("order 1", "order 1"),
        (b"order 1", "order 1"),
        ("a\nb\x1b[31m", r"a\nb\x1b[31m"),
        (b"\xff\x00", "0xff00"),
        ("ä€", "ä€"),
        ("x" * 300, "x" * 200 + "… (300 characters)"),
        (b"\xff" * 300, "0x" + "ff" * 100 + "… (300 B)"),
    ],
)
def test_user_text_is_shown_on_one_line_and_cannot_spoil_the_terminal(value, text):
    """Control characters and other bytes are escaped; long texts are cut."""
    assert text == formatting.readable(value)


def test_sizes_and_numbers():
    """Sizes and numbers are rounded and grouped for people."""
    assert ["8 B", "20 KiB", "12 MiB"] == [formatting.size(8), formatting.size(20_000), formatting.size(12 << 20)]
    assert ["1 row", "1,000 rows"] == [counted(1, "row"), counted(1_000, "row")]
    assert ["1 half", "2 halves"] == [counted(count, "half", "halves") for count in (1, 2)]


class TestIds:
    @pytest.mark.parametrize(
        "text",
        [
            id_text(A),
            A.hex(),
            id_text(A).upper(),
            f"{id_text(A)}:3",
            "98331c24",
            "1c24",
            "a298331c24",
            "13a2-98331c24",
            "01a1feb1-d200",
            "…98331c24",
            "  98331c24 ",
        ],
    )
    def test_an_id_may_be_shortened_from_either_end(self, text):
        """Dashes, capitals and the index of a `txcore-id` header do not matter."""
        assert A == selection.the_one(selection.wanted(text), [A, B])

    def test_nothing_that_is_called_so_is_none(self):
        """Digits from the middle of an id match nothing."""
        assert selection.the_one(selection.wanted("775f"), [A, B]) is None

    def test_several_are_listed(self):
        """The error lists the candidates, up to a bound."""
        with pytest.raises(UsageError, match=f"'01a1feb1' is ambiguous, it may be {id_text(A)}, {id_text(B)}"):
            selection.the_one(selection.wanted("01a1feb1"), [B, A, A])
        with pytest.raises(UsageError, match=r" and 5 more$"):
            selection.the_one(selection.wanted("0000"), [bytes(15) + bytes([n]) for n in range(15)])

    @pytest.mark.parametrize("text", ["", "abc", "xyz123", "98331c24!", "0" * 33, "--"])
    def test_malformed_id_is_refused(self, text):
        """The error says that the text is not an id, or is too short."""
        with pytest.raises(UsageError, match=r"is not a transaction id|is too short"):
            selection.wanted(text)

    def test_short_names_of_shown_transactions_differ(self):
        """A short name has eight digits, and more if two ids end alike."""
        assert {A: "98331c24", B: "1e79366b"} == selection.short_ids([A, B])
        twin = B[:11] + bytes([B[11] ^ 1]) + B[12:]
        assert {B: B.hex()[-12:], twin: twin.hex()[-12:]} == selection.short_ids([B, twin])


def half(*, fenced=True, generation=0, database=b""):
    """Return a half with one message."""
    messages = [TargetMessage("orders", None, b"1", {})]
    return Half(1, A, "g", 0, generation, 5, 100, 0, 3, fenced=fenced, by="p", messages=messages, database=database)


def journey(*, fenced=True, database=b"", park="", final=0, decided=0, halves=True):
    """Return a journey, from which a plan is made."""
    made = Journey(A, 0)
    if halves:
        made.add_half(half(fenced=fenced, database=database), 5)
    made.final, made.journaled = final, decided
    if park:
        body = b"\xc1" if park == ParkCode.POISON else wire.encode_half(half(fenced=fenced))
        made.parked.append(Parked(1, A, 0, park, "r", 3, "c", 5, b"", body, []))
        made.discarded_generation = 0
        made.ops.append((1, Op(OpKind.DISCARD, A, reason=park)))
    return made


def planned(verb, answer=None, *, override=False, **fields) -> Plan:
    """Return the plan for one transaction."""
    reading = None if answer is None else FenceReading(answer, "connection refused")
    return plan(verb, journey(**fields), reading, override=override)


AGAINST = "AGAINST THE FENCE"


@pytest.mark.parametrize(
    ("verb", "answer", "step", "text"),
    [
        (Verb.COMMIT, FenceAnswer.COMMIT, Step.ACT, "through the fence"),
        (Verb.ROLLBACK, FenceAnswer.ROLLBACK, Step.ACT, "through the fence"),
        (Verb.ROLLBACK, FenceAnswer.ABSENT, Step.ACT, "through the fence"),
        (Verb.COMMIT, FenceAnswer.ABSENT, Step.REFUSED, "the database has no row"),
        (Verb.COMMIT, FenceAnswer.ROLLBACK, Step.REFUSED, "the database says ROLLBACK"),
        (Verb.ROLLBACK, FenceAnswer.COMMIT, Step.REFUSED, "the database says COMMIT"),
        (Verb.COMMIT, FenceAnswer.NO_ANSWER, Step.REFUSED, "the database does not answer"),
        (Verb.COMMIT, FenceAnswer.PRUNED, Step.REFUSED, "may have been pruned"),
        (Verb.ROLLBACK, FenceAnswer.FORCED, Step.REFUSED, "has forced it before"),
        (Verb.COMMIT, None, Step.REFUSED, "the fence was not asked"),
    ],
)
def test_a_forced_decision_obeys_the_fence(verb, answer, step, text):
    """A decision against the fence, or without its answer, needs an override, which the plan shows."""
    made = planned(verb, answer)
    assert step is made.step
    assert text in made.text
    overridden = planned(verb, answer, override=True)
    assert overridden.step is Step.ACT
    assert (AGAINST in overridden.text) is (step is Step.REFUSED)


@pytest.mark.parametrize("override", [False, True])
@pytest.mark.parametrize("verb", [Verb.COMMIT, Verb.ROLLBACK])
@pytest.mark.parametrize(
    ("answer", "text"), [(FenceAnswer.VIA_TABLE, "relay delivers it"), (FenceAnswer.SENT, "relay has sent it")]
)
def test_transaction_of_the_message_table_is_not_forced(answer, text, verb, override):
    """The plan refuses a transaction of the message table, whose row the fence's `force` refuses to change."""
    made = planned(verb, answer, override=override)
    assert made.step is Step.REFUSED
    assert made.text.endswith(text)


@pytest.mark.parametrize("override", [False, True])
def test_a_journaled_decision_is_not_turned_round(override):
    """The plan refuses a rollback after a journaled COMMIT, even with an override, because messages may be out."""
    made = planned(Verb.ROLLBACK, FenceAnswer.COMMIT, decided=OpKind.COMMIT, override=override)
    assert made.step is Step.REFUSED
    assert "messages may be out" in made.text
    assert planned(Verb.COMMIT, FenceAnswer.COMMIT, decided=OpKind.COMMIT, override=True).step is Step.REFUSED
    assert planned(Verb.COMMIT, FenceAnswer.COMMIT, decided=OpKind.COMMIT).step is Step.ALREADY
    parked = planned(Verb.COMMIT, None, decided=OpKind.COMMIT, park=ParkCode.UNDELIVERABLE)
    assert (Step.ACT, "will publish what is missing; COMMIT is decided") == (parked.step, parked.text)


def test_decision_without_a_fence_is_not_refused():
    """A half without a fence needs neither a database nor an override."""
    assert planned(Verb.COMMIT, fenced=False).step is Step.ACT


@pytest.mark.parametrize(
    ("verb", "answer", "step", "text"),
    [
        (Verb.COMMIT, FenceAnswer.COMMIT, Step.ACT, "through the fence"),
        (Verb.ROLLBACK, FenceAnswer.COMMIT, Step.REFUSED, "the database says COMMIT"),
        (Verb.COMMIT, FenceAnswer.ABSENT, Step.ACT, "the fence has no row"),
        (Verb.ROLLBACK, FenceAnswer.ABSENT, Step.ACT, "the fence has no row"),
        (Verb.COMMIT, FenceAnswer.ROLLBACK, Step.ACT, "the fence has no row"),
        (Verb.COMMIT, FenceAnswer.VIA_TABLE, Step.REFUSED, "by the local message table"),
        (Verb.COMMIT, FenceAnswer.NO_ANSWER, Step.REFUSED, "the database does not answer"),
        (Verb.COMMIT, None, Step.REFUSED, "the fence was not asked"),
    ],
)
def test_a_row_of_the_listener_style_is_obeyed(verb, answer, step, text):
    """The plan obeys the row as the checker does; without a row the operator decides in the listener's place."""
    made = planned(verb, answer, fenced=False, database=bytes(16))
    assert step is made.step
    assert text in made.text


def test_what_is_finished_stays():
    """A request for the same end is done already; a request for the other end is refused."""
    assert planned(Verb.COMMIT, final=OpKind.COMMIT).step is Step.ALREADY
    assert planned(Verb.RESUME, final=OpKind.COMMIT).step is Step.ALREADY
    assert planned(Verb.ROLLBACK, final=OpKind.COMMIT, override=True).step is Step.REFUSED


def test_only_a_parked_half_is_resumed():
    """A resume of a pending half is done already; poison cannot be resumed."""
    assert planned(Verb.RESUME).step is Step.ALREADY
    assert planned(Verb.RESUME, park=ParkCode.CHECKS_EXHAUSTED).step is Step.ACT
    assert planned(Verb.RESUME, halves=False).step is Step.REFUSED
    for verb in (Verb.RESUME, Verb.COMMIT):
        poison = planned(verb, park=ParkCode.POISON, halves=False)
        assert (Step.REFUSED, True) == (poison.step, "poison" in poison.text)
    assert planned(Verb.ROLLBACK, park=ParkCode.POISON, halves=False).step is Step.ACT


def test_doubts_are_shown():
    """The plan warns the operator before the confirmation."""
    assert "delivered before" in is_doubtful(planned(Verb.COMMIT, FenceAnswer.COMMIT, park=ParkCode.COVERAGE_GAP))
    assert "some of its messages" in is_doubtful(planned(Verb.ROLLBACK, FenceAnswer.COMMIT, override=True))
    assert "will fail to commit" in is_doubtful(planned(Verb.COMMIT, FenceAnswer.ABSENT, override=True))
    assert is_doubtful(planned(Verb.COMMIT, FenceAnswer.COMMIT)) == ""


def test_fence_answer_is_shown_as_text():
    """The text also says that the fence was not asked, gave no answer, or does not exist."""
    assert planned(Verb.COMMIT, FenceAnswer.COMMIT).fence_text.startswith("COMMIT: ")
    assert planned(Verb.COMMIT, FenceAnswer.NO_ANSWER).fence_text == "no answer: connection refused"
    assert planned(Verb.COMMIT).fence_text == "not asked: no --database"
    assert planned(Verb.COMMIT, fenced=False).fence_text == "no fence: the listener decides"
    for answer in (FenceAnswer.ABSENT, FenceAnswer.ROLLBACK):
        assert "the listener decides" in planned(Verb.COMMIT, answer, fenced=False, database=A).fence_text
    assert planned(Verb.COMMIT, park=ParkCode.POISON, halves=False).fence_text == "no half"
    for answer in FenceAnswer:
        assert re.match(r"^[A-Z_]+: |^no answer: ", planned(Verb.COMMIT, answer).fence_text)
