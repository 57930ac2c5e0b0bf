"""The comparison with other systems: the record of the rounds, the table, and the sentence for a missing system."""

from __future__ import annotations

from benchmarks.rivals import command
from benchmarks.rivals.report import print_table, records_of
from benchmarks.rivals.system import MissingError, Plan, Row, body_of, number_of, percentiles

RATE = Row("transactional", "16 threads, SQLAlchemy", "/s")
RECOVERY = Row("recovery", "of 10,000, checks each 1 s", "s")


class Fake:
    """A system that answers at once."""

    def __init__(self, name, figures=(), missing=""):
        self.name = name
        self.plans = []
        self._figures = list(figures)
        self._missing = missing

    def prepare(self):
        if self._missing:
            raise MissingError(self._missing)

    def measure(self, plan):
        self.plans.append(plan)
        return self._figures[len(self.plans) - 1]


def test_a_record_has_the_rounds_that_measured_its_row():
    """The recovery may be part of fewer rounds than the rates."""
    records = records_of({"one": [{RATE: 1.0, RECOVERY: 9.0}, {RATE: 3.0}, {RATE: 2.0}]})
    assert [("transactional", 1.0, 2.0, 3.0), ("recovery", 9.0, 9.0, 9.0)] == [
        (each["measure"], each["min"], each["median"], each["max"]) for each in records
    ]


def test_the_table_is_at_most_100_columns_wide(capsys):
    """The table fits with the longest words and large figures."""
    longest = Row("overload: reported committed", RECOVERY.load, "/s")
    print_table(records_of({"faststream-outbox, default": [{longest: 123_456_789.0}, {longest: 0.0}]}), "head\n")
    assert 100 >= max(map(len, capsys.readouterr().out.splitlines()))


def test_a_missing_system_is_named_and_the_others_are_measured(monkeypatch):
    """The command prints one sentence for each missing system."""
    monkeypatch.setattr(command, "SYSTEMS", {"a": Fake("a", missing="no Java here"), "b": Fake("b")})
    systems, missing = command.prepared(["a", "b"])
    assert (["b"], ["no Java here"]) == ([each.name for each in systems], missing)


def test_a_failed_turn_ends_no_run():
    """The order turns from round to round, and only the first rounds have incidents."""
    good, bad = Fake("good", [{RATE: 1.0}, {RATE: 2.0}]), Fake("bad", [{RATE: 5.0}])
    said = []
    rounds = command.measure([good, bad], Plan(), 2, 1, 60.0, said)
    assert ({"good": 2, "bad": 1}, 1) == ({name: len(each) for name, each in rounds.items()}, len(said))
    assert [True, False] == [plan.has_incidents for plan in good.plans]


def test_after_the_time_limit_only_the_first_round_is_complete():
    """The command reports the rounds that are left out."""
    system, said = Fake("slow", [{RATE: 1.0}]), []
    command.measure([system], Plan(), 3, 0, -1.0, said)
    assert (1, 2) == (len(system.plans), len(said))


def test_a_body_contains_its_number_and_percentiles_are_nearest_rank():
    """A body has 300 bytes with its number; the 99th percentile of a hundred values is the 99th."""
    assert (300, 42) == (len(body_of(42)), number_of(body_of(42)))
    assert [50.0, 99.0] == list(percentiles([float(each) for each in range(1, 101)], "idle").values())
