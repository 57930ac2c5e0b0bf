"""The plugin as a third party uses it: each run of the suite is its own process, in another directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PLUGIN = "txcore_conformance.pytest_plugin"

MEMORY = "txcore_conformance.memory:MemoryHarness"
TINY = """
    import txcore
    from txcore_conformance.harness import Delivered, Gap, Harness

    class TinyHarness(Harness):
        immunity_s = 0.03
        def __init__(self):
            self.backend = txcore.connect("memory://tiny")
        def open(self):
            return txcore.connect("memory://tiny")
        def create_topic(self, topic):
            self.backend.broker.create_topic(topic)
        def read_topic(self, topic):
            found = self.backend.broker.topics.get(topic, [])
            return [Delivered(each.position, each.key, each.body, each.headers) for each in found]
"""


@pytest.fixture
def suite(tmp_path, outside):
    """Run pytest in an empty directory, and return its exit status and output."""

    def run(*arguments, module=TINY, extra=""):
        (tmp_path / "tiny.py").write_text(textwrap.dedent(module) + textwrap.dedent(extra), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "-p", PLUGIN, *arguments],
            cwd=tmp_path,
            env={**outside, "PYTHONPATH": os.pathsep.join((str(tmp_path), outside.get("PYTHONPATH", "")))},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


WHOLE = ("--pyargs", "txcore_conformance.suite")


def test_an_outsiders_ten_line_harness_passes_the_suite(suite):
    """A third party writes only a module with one small class; the test leaves the long tests to real backends."""
    status, output = suite(*WHOLE, "-k", "not fifteen_discards and not test_crash", "--harness", "tiny:TinyHarness")
    assert status == 0, output
    assert "failed" not in output
    assert "any topic will do on this backend" in output


@pytest.mark.heavy  # The real brokers run the suite in every run.
@pytest.mark.parametrize("name", ["KafkaLikeHarness", "RabbitmqLikeHarness", "NatsLikeHarness"])
def test_every_profile_of_the_memory_broker_passes_the_suite(suite, name):
    """The suite passes with and without each promise, and reports the skipped tests with their reasons."""
    status, output = suite(*WHOLE, "--harness", f"txcore_conformance.memory:{name}")
    assert status == 0, output
    assert "the backend does not promise atomic_release" in output
    assert "no other process can reach this backend" in output


def test_several_harnesses_run_side_by_side(suite):
    """`--harness` may be repeated: each test runs once for each harness."""
    nats = "txcore_conformance.memory:NatsLikeHarness"
    status, output = suite(*WHOLE, "-k", "test_a_rolled_back_half", "-vv", "--harness", MEMORY, "--harness", nats)
    assert status == 0, output
    assert "[MemoryHarness]" in output
    assert "[NatsLikeHarness]" in output


def test_another_form_of_a_backend_runs_without_the_long_tests(suite):
    """Only the first form of a backend runs the tests that kill processes and brokers."""
    nats = "txcore_conformance.memory:NatsLikeHarness"
    selected = ("--collect-only", "-k", "test_crash or test_live or test_a_rolled_back_half")
    status, output = suite(*WHOLE, *selected, "--harness", MEMORY, "--harness-form", nats)
    assert status == 0, output
    assert "test_a_rolled_back_half_is_never_delivered[NatsLikeHarness]" in output
    assert "test_a_process_killed_at_any_step_breaks_no_invariant[MemoryHarness-listener]" in output
    others = [line for line in output.splitlines() if "NatsLike" in line]
    assert not [line for line in others if "test_crash" in line or "test_live" in line]


OWN = """
    import pytest
    from txcore_conformance import raw
    from txcore_conformance.kit import Kit
    from txcore_conformance.memory import MemoryHarness

    @pytest.fixture(scope="session")
    def harness():
        made = MemoryHarness()
        made.start()
        yield made
        made.stop()

    @pytest.fixture
    def kit(harness):
        made = Kit(harness)
        yield made
        made.close()

    def test_leaks_on_purpose(kit):
        half = raw.half(kit, kit.topic())
        raw.append(kit, half)
        raw.release(kit, raw.commit(half))
        kit.history.rolled_back(half.transaction_id)
"""


def test_tests_with_a_harness_of_their_own_run_once_and_are_not_judged(suite, tmp_path):
    """A plugin's own tests and the suite share one run, with any given harnesses."""
    (tmp_path / "test_own.py").write_text(textwrap.dedent(OWN), encoding="utf-8")
    nats = "txcore_conformance.memory:NatsLikeHarness"
    status, output = suite("test_own.py", "--harness", MEMORY, "--harness-form", nats)
    assert status == 0, output
    assert "1 passed" in output


def test_without_a_harness_the_suite_is_ignored(suite):
    """The plugin does nothing in a run without a harness."""
    status, output = suite(*WHOLE)
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED, output


def test_a_module_of_the_suite_without_a_harness_is_a_usage_error(suite):
    """One sentence names the missing option, not an error for each test."""
    status, output = suite("--pyargs", "txcore_conformance.suite.test_port")
    assert status == pytest.ExitCode.USAGE_ERROR, output
    assert "the conformance suite needs --harness MODULE:CLASS" in output


def test_the_suite_begins_with_the_port(suite):
    """The first failure that an author sees is in what all other tests need."""
    status, output = suite(*WHOLE, "--collect-only", "--harness", MEMORY)
    assert status == 0, output
    modules = list(
        dict.fromkeys(line.partition("::")[0].rpartition("/")[2] for line in output.splitlines() if "::" in line)
    )
    assert modules[:4] == ["test_port_control.py", "test_port.py", "test_port_ends.py", "test_port_strange.py"], output
    assert not [each for each in modules[:-7] if each.startswith(("test_live", "test_crash"))]


SKELETON = Path(__file__).parents[2] / "examples" / "backend-skeleton"


def test_the_skeletons_readme_makes_a_backend_of_another_name(suite, tmp_path):
    """What a reader pastes gives a package without the skeleton's names, which passes the suite's first tests."""
    copied = tmp_path / "examples" / "backend-skeleton"
    shutil.copytree(SKELETON, copied, ignore=shutil.ignore_patterns("__pycache__"))
    block = (SKELETON / "README.md").read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    steps = [line for line in block.splitlines() if line.startswith(("cp ", "cd ", "mv ", "sed ", "echo "))]
    assert len(steps) == 5, block
    script = "\n".join(["set -e", *steps]).replace("../txcore-acme", "txcore-acme")
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True)
    made = tmp_path / "txcore-acme"
    texts = [path.read_text(encoding="utf-8") for path in made.rglob("*") if path.is_file()]
    assert not [text for text in texts if "mybroker" in text.lower() or "MyReader" in text]
    (tmp_path / "txcore_acme").symlink_to(made / "txcore_acme")  # in the place of `pip install -e .`
    status, output = suite(*WHOLE, "-k", "test_ping or test_appended", "--harness", "txcore_acme.testing:AcmeHarness")
    assert status == 0, output
    assert "2 passed" in output


MISTAKE = """
    import sys
    sys.path.insert(0, %r)
    import dataclasses
    from txcore.records import LogKind
    from txcore.wire import encode_ops
    from txcore_mybroker.backend import MyBackend, MyReader, Options
    from txcore_mybroker.testing import MyHarness

    class Wrong(MyBackend):
        def log_of(self, half, kind):
            return (half.group, kind, half.partition)
    %s

    class WrongHarness(MyHarness):
        timeout_s = 0.5
        def open(self):
            return Wrong(Options())
"""
OP_FIRST = """
        def _release(self, resolution):
            self._server.append(self.log_of(resolution.half, LogKind.OP), encode_ops([resolution.op]))
            return super()._release(type(resolution)(resolution.half, None, resolution.targets, b""))
"""
NEVER_SETTLED = """
        def _settle(self, batch, action):
            pass
"""
FORGETFUL = """
        def read(self, group, kind, partition, start=None):
            reader = super().read(group, kind, partition, start)
            read = reader.read
            reader.read = lambda count_max: read(count_max)[:-1]
            return reader
"""


@pytest.mark.parametrize(
    ("mistake", "test", "found"),
    [
        (OP_FIRST, "test_a_target_that_does_not_exist_writes_no_op", "an op is written although a target is refused"),
        (NEVER_SETTLED, "test_appended_halves_are_read_back", "20 of 20 items were never settled"),
        (
            NEVER_SETTLED,
            "test_a_closed_producer_refuses_new_work",
            "still waits after 7.5 s: the backend has not settled",
        ),
        (FORGETFUL, "test_appended_halves_are_read_back", "19 records of the half log were read, not the 20"),
    ],
)
def test_the_suite_names_an_authors_mistake(suite, mistake, test, found):
    """A backend with one mistake fails the test of it, with a sentence that names the mistake."""
    status, output = suite(
        *WHOLE, "-k", test, "--harness", "tiny:WrongHarness", module="", extra=MISTAKE % (str(SKELETON), mistake)
    )
    assert status == 1, output
    assert found in output


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nonsense", "MODULE:CLASS"),
        ("no.such:Class", "no.such"),
        ("tiny:Nothing", "Nothing"),
        ("os:sep", "not a txcore"),
    ],
)
def test_a_harness_that_cannot_be_loaded_is_a_usage_error(suite, name, reason):
    """The error names the option and the problem."""
    status, output = suite(*WHOLE, "--harness", name)
    assert status == pytest.ExitCode.USAGE_ERROR, output
    assert reason in output


GAPPY = """
    class Gappy(TinyHarness):
        gaps = {%s}
        def read_topic(self, topic):
            return super().read_topic(topic)[%s]
"""
ONE = ("-k", "test_a_prepared_half_is_invisible")
GAP = "'test_a_prepared_half_is_invisible_until_commit': Gap('notimpl', 'reads nothing')"


def test_a_gap_is_an_expected_failure(suite):
    """A test in `gaps` may fail, with its reason in the report."""
    status, output = suite(*WHOLE, *ONE, "--harness", "tiny:Gappy", extra=GAPPY % (GAP, ":0"))
    assert status == 0, output
    assert "notimpl: reads nothing" in output
    assert "1 xfailed" in output


def test_a_gap_that_is_closed_fails_the_run_until_it_is_deleted(suite):
    """A closed gap is a failure, because gaps are strict."""
    status, output = suite(*WHOLE, *ONE, "--harness", "tiny:Gappy", extra=GAPPY % (GAP, ":"))
    assert status == 1, output
    assert "XPASS(strict)" in output


def test_a_gap_that_fails_in_another_way_is_a_failure(suite):
    """A gap names the exception that its test raises; any other failure is a bug."""
    gap = GAP.replace("'reads nothing'", "'reads nothing', raises=KeyError")
    status, output = suite(*WHOLE, *ONE, "--harness", "tiny:Gappy", extra=GAPPY % (gap, ":0"))
    assert status == 1, output


def test_a_gap_for_an_unknown_test_is_a_usage_error(suite):
    """A renamed test does not keep its old gap."""
    gap = "'test_that_never_was': Gap('notyet', 'no reason')"
    status, output = suite(*WHOLE, *ONE, "--harness", "tiny:Gappy", extra=GAPPY % (gap, ":"))
    assert status == pytest.ExitCode.USAGE_ERROR, output
    assert "test_that_never_was" in output


def test_the_oracle_fails_a_test_whose_own_assertions_pass(suite):
    """The oracle reports S7 for a backend that changes a message, although the test itself does not notice."""
    changed = """
        import dataclasses

        class Changing(TinyHarness):
            def read_topic(self, topic):
                return [dataclasses.replace(each, headers={**each.headers, "extra": "1"})
                        for each in super().read_topic(topic)]
    """
    status, output = suite(
        *WHOLE, "-k", "test_a_second_commit_is_already_done", "--harness", "tiny:Changing", extra=changed
    )
    assert status == 1, output
    assert "S7" in output
