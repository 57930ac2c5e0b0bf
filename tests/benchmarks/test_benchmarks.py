"""The benchmark runs, and every row has figures; the values of the figures are not judged."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from txcore_conformance.servers import ServerUnavailableError

from benchmarks import machine, processes
from benchmarks.brokers import SERVERS
from benchmarks.databases import SqliteFile, start_database
from benchmarks.drive import Drive, Sample
from benchmarks.micro import chosen, head
from benchmarks.report import WIDTH, figures, print_table
from benchmarks.rows import QUICK, Sizes, make_rows
from benchmarks.sampling import OTHER, US, Profile, place_of
from txcore.ids import partition_of

ROOT = Path(__file__).parents[2]
COLUMNS_MAX = 128


def test_quick_benchmark_fills_every_row(tmp_path):
    """Each row has a rate, latencies and, unless it is a yardstick, a ratio; no files are left."""
    report = tmp_path / "figures.json"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = ["-m", "benchmarks", "--quick", "--broker", "memory", "--rounds", "1", "--seconds", "0.001"]
    done = subprocess.run(
        [sys.executable, *command, "--json", str(report)],
        cwd=ROOT,
        env={"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert [] == [line for line in done.stdout.splitlines() if len(line) > COLUMNS_MAX]
    assert [] == list(temporary.iterdir())
    kept = json.loads(report.read_text(encoding="utf-8"))
    assert (time.gmtime().tm_year, "--quick") == (int(kept["date"][:4]), kept["arguments"][0])
    rows = kept["rows"]
    assert {"raw commit", "business, core", "raw halves", "database, core", "listener", "primitives", "send_many"} == {
        row["style"] for row in rows
    }
    for row in rows:
        rates = row["transactions_per_s"]
        assert 0 < rates["min"] <= rates["median"] <= rates["max"], row["key"]
        assert 0 < row["latency_p50_ms"] <= row["latency_p99_ms"], row["key"]
        assert (row["ratio"] is None) == (row["against"] is None), row["key"]
        assert rates["rounds"] == [each["per_s"] for each in row["by_round"]], row["key"]


def test_every_row_has_a_name_of_its_own_and_a_yardstick_before_it():
    """Each row has its own name, in all tables, with all brokers and both kinds of business database."""
    for sizes in (Sizes(), QUICK):
        for has_plain_driver in (True, False):
            rows = make_rows(["memory", "sqlite", *SERVERS], sizes, has_plain_driver=has_plain_driver)
            keys = [row.key for row in rows]
            assert len(set(keys)) == len(keys)
            for number, row in enumerate(rows):
                assert row.against is None or row.against in keys[:number], row.key


def test_larger_bodies_are_compared_with_larger_bodies():
    """A row of 1 KiB is divided by the yardstick of 1 KiB."""
    rows = {row.key: row for row in make_rows(["kafka"], Sizes())}
    large = [row for row in rows.values() if row.body_size == 1_024]
    assert {"raw", "listener", "send_many"} == {row.style for row in large}
    assert {1_024} == {rows[row.against].body_size for row in large if row.against}


def test_a_chosen_style_brings_its_yardstick_only():
    """The rows are those of the style and of its yardstick."""
    rows = make_rows(["memory"], QUICK)
    assert {"send_many", "raw halves"} == {row.style for row in chosen(rows, ["send"])}
    assert rows == chosen(rows, [])


def test_a_load_counts_its_calls_and_its_finish():
    """The time ends with *finish*, and the broker's processor time is a difference."""
    used_s = iter((10.0, 12.5))
    sample = Drive(0.001, lambda: next(used_s)).threads(lambda: None, 2, 5, finish=lambda: time.sleep(0.05))
    assert sample.elapsed_s >= 0.05
    assert sample.count == 5 * len(sample.latencies_s) >= 10
    assert sample.broker_cpu_s == 2.5


def test_a_load_measures_the_database_beside_the_broker():
    """Both processor times are differences, each of its own processes."""
    database_s = iter((1.0, 1.25))
    sample = Drive(0.001, database_cpu_s=lambda: next(database_s)).threads(lambda: None, 1)
    assert (0.0, 0.25) == (sample.broker_cpu_s, sample.database_cpu_s)


def time_of_the_driver(program):
    """Return what a program of its own prints, in which no other test has left threads of a driver."""
    command = [sys.executable, "-c", f"from benchmarks.processes import driver_cpu_s\n{program}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    return float(done.stdout)


def test_the_threads_of_a_driver_in_c_are_measured():
    """The threads that Kafka's client starts have processor time."""
    program = """
from confluent_kafka import Producer
from txcore_conformance.kit import wait_until
client = Producer({"bootstrap.servers": "127.0.0.1:9", "log_level": 0})
print(wait_until(driver_cpu_s, "its threads have worked"))
"""
    assert time_of_the_driver(program) > 0


def test_the_threads_of_python_are_not_the_drivers():
    """A thread of Python's that has worked and still lives adds nothing to the driver's time."""
    program = """
import threading, time
worked, over = threading.Event(), threading.Event()
def work():
    while time.thread_time() < 0.05:
        pass
    worked.set()
    over.wait()
thread = threading.Thread(target=work)
thread.start()
worked.wait()
print(driver_cpu_s())
over.set()
"""
    assert 0.0 == time_of_the_driver(program)


def test_the_table_shows_each_figure_in_full():
    """Nothing is cut off in the rows of Kafka with the longest names and usual figures."""
    rows = make_rows(["kafka"], Sizes(), has_plain_driver=True)
    sizes = {row.key: row.size if row.driver == "batch" else 1 for row in rows}
    used_s = (0.0485, 0.0157, 0.0197, 0.0088)
    samples = {key: [Sample([0.0123] * 100, size, size * 100 / 400_000, *used_s)] for key, size in sizes.items()}
    text = io.StringIO()
    print_table(figures(rows, samples), "", Console(width=WIDTH, file=text))
    assert "485/88/157/197" in text.getvalue()
    assert "…" not in text.getvalue()


def test_a_started_database_server_has_processor_time():
    """A benchmark with PostgreSQL reads the server's processes; a SQLite file has none."""
    assert SqliteFile().pid is None
    try:
        server = start_database("postgresql")
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    try:
        assert processes.cpu_s(server.pid) > 0
    finally:
        server.close()


def test_a_loaded_machine_is_reported():
    """One sentence names the load before the run, where it is above half of a core for each core."""
    assert "" == machine.load_warning([1.0, 9.0, 9.0], 2)
    assert "load average 1.2 " in machine.load_warning([1.2, 0.0, 0.0], 2)


def test_the_report_of_a_loaded_machine_says_so():
    """The lines above the table name the load, and those of an idle machine do not."""
    report = {"machine": machine.facts(ROOT), "servers": {}, "round_count": 1, "row_s": 1.0, "elapsed_s": 1.0}
    report |= {"database": "", "as_advised": False, "load_average_after": [0.0], "cut_short": False}
    assert "LOADED MACHINE" in head(report | {"load_average_before": [1_000.0]})
    assert "LOADED MACHINE" not in head(report | {"load_average_before": [0.0]})


def test_percentiles_are_nearest_ranks():
    """The p99 of a hundred values is the 99th."""
    sample = Sample([number / 1000 for number in range(100, 0, -1)], 1, 1.0)
    assert (50.0, 99.0) == (sample.percentile_ms(50), sample.percentile_ms(99))


def test_the_profiler_finds_the_working_function():
    """The profile has a working thread in its function, and separates our packages, drivers and the rest."""
    profile, own = Profile(), "test_the_profiler_finds_the_working_function"
    with profile:
        end_s = time.process_time() + 10.0
        while not any(own in name for _, name in list(profile.functions_s)) and time.process_time() < end_s:
            partition_of(b"0123456789abcdef", 8)
    figures = profile.figures()
    assert any(own in each["function"] for each in figures["top"])
    assert abs(sum(figures["shares"].values()) - 1) < 1e-9
    assert place_of(sys._getframe())[0] == US  # the tests are ours
    assert OTHER == place_of(_frame_of(json.dumps))[0]


def _frame_of(call):
    """Return a frame inside *call*, which takes a default function."""
    found = []
    call(object(), default=lambda _: found.append(sys._getframe(1)) or 0)
    return found[0]


def test_processor_time_and_memory_of_a_process_are_read():
    """Both values are read for this process."""
    before_s = processes.cpu_s(os.getpid())
    while processes.cpu_s(os.getpid()) - before_s < 0.02:
        sum(range(10_000))
    assert processes.memory_mb(os.getpid()) > 5


def test_inbox_kills_run_and_are_judged():
    """In a small run of the acceptance each message has one effect, and the command prints this."""
    command = ["-m", "benchmarks.inbox_kills", "run", "--deliveries", "200", "--kills", "2"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert "2 kills: 140 effects of 140 messages" in done.stdout
    assert "lost 0, applied again 0" in done.stdout
