"""A broker is run by this program, by another one, or by `python -m txcore_conformance.brokers` around a command."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool
from txcore_conformance import brokers, progress
from txcore_conformance.brokers import manual
from txcore_conformance.brokers.harness import BrokerHarness
from txcore_conformance.brokers.rabbitmq_node import RabbitmqBroker
from txcore_conformance.machine import PortLocks, base_folder, lock_port
from txcore_conformance.required import obtained

MODULE = [sys.executable, "-m", "txcore_conformance.brokers"]


class NatsHarness(BrokerHarness):
    broker_name = "nats"
    url_options = "?release=atomic"

    def create_topic(self, topic):
        raise NotImplementedError

    def read_topic(self, topic):
        raise NotImplementedError


@pytest.fixture
def given(nats, monkeypatch):
    """A NATS server that the environment names."""
    for name, value in brokers.environment({"nats": nats}).items():
        monkeypatch.setenv(name, value)
    return nats


def test_foreign_broker_is_used_and_not_hurt(given):
    """The URL from the environment is used as it is, the server reports its version, and no call stops it."""
    found = brokers.nats()
    assert (given.url, given.monitor_url, given.version, False) == (
        found.url,
        found.monitor_url,
        found.version,
        found.can_be_killed,
    )
    for call in (found.start, found.kill, found.pause, found.resume):
        with pytest.raises(brokers.ServerUnavailableError, match="not started by this program"):
            call()
    found.stop()
    found.remove()
    assert given.is_running


def test_version_of_a_foreign_broker_is_requested(nats, monkeypatch):
    """With only the URL, the version is requested from the server; without an answer it is empty."""
    monkeypatch.setenv("TXCORE_NATS_URL", nats.url)
    monkeypatch.delenv("TXCORE_NATS_RUNNING", raising=False)
    assert nats.version == brokers.nats().version
    nats.kill()
    assert brokers.nats().version == ""
    nats.start()


def test_broker_of_ones_own_is_started_although_one_is_named(given):
    """A separate broker is started because of `own`, of a setting, or of required credentials."""
    for options in ({"own": True}, {"max_payload": "1024"}, {"credentials": True}):
        made = brokers.nats(**options)
        try:
            assert made.can_be_killed
            assert made.url != given.url
        finally:
            made.remove()


def test_foreign_broker_is_reached_through_a_proxy(given, client):
    """A client reaches the broker by the proxy's URL, until the proxy refuses."""
    found = brokers.nats()
    assert found.proxied_url != given.url
    made = client("nats", found.proxied_url)
    made.create()
    found.proxy.refuse()
    with pytest.raises(Exception, match=r"(?i)connect|no servers"):
        made.put("nowhere")
    found.remove()


def test_kafka_has_a_listener_for_each_of_four_proxies(monkeypatch):
    """Two programs at one broker get different listeners; a request without a free listener fails."""
    ports = PortLocks()
    pairs = ",".join(f"{ports.reserve()}:{ports.reserve()}" for _ in range(2))
    monkeypatch.setenv("TXCORE_KAFKA_URL", "kafka://127.0.0.1:1")
    monkeypatch.setenv("TXCORE_KAFKA_PROXIED", pairs)
    first, second, third = (brokers.kafka() for _ in range(3))
    assert [pair.partition(":")[2] for pair in pairs.split(",")] == [
        made.proxied_url.rpartition(":")[2] for made in (first, second)
    ]
    with pytest.raises(brokers.ServerUnavailableError, match="no listener left"):
        _ = third.proxied_url
    first.remove()
    assert third.proxied_url
    second.remove()
    third.remove()
    ports.release()


def test_rabbitmqctl_of_a_foreign_broker_is_found(monkeypatch):
    """TXCORE_RABBITMQ_CONTROL is the beginning of a command; without it there is no tool."""
    monkeypatch.setenv("TXCORE_RABBITMQ_URL", "rabbitmq://guest:guest@127.0.0.1:1/")
    monkeypatch.setenv("TXCORE_RABBITMQ_CONTROL", "echo 'node one'")
    assert "node one list_users\n" == brokers.rabbitmq().control("list_users")
    monkeypatch.delenv("TXCORE_RABBITMQ_CONTROL")
    with pytest.raises(brokers.ServerUnavailableError, match="no command-line tool"):
        brokers.rabbitmq().control("list_users")


def test_harness_on_the_common_broker_and_on_one_of_its_own(given):
    """The `private` broker may be killed and is removed; the common broker continues."""
    harness = NatsHarness()
    harness.start()
    assert given.url + "?release=atomic" == harness.url
    private = harness.private()
    assert private.broker.can_be_killed
    assert private.url != harness.url
    folder = private.broker.folder
    private.stop()
    harness.stop()
    assert not folder.exists()
    assert given.is_running


def test_harness_leaves_a_broker_alone_that_it_was_given(nats):
    """The harness does not stop a broker that another program started."""
    harness = NatsHarness(nats)
    harness.start()
    harness.stop()
    assert nats.is_running


@pytest.mark.parametrize("name", brokers.NAMES)
def test_broker_ends_with_the_program_that_started_it(available, runs, eventually, name):
    """The broker ends even if the program is killed and started it in a thread; the next run removes the remains."""
    available(name)
    code = (
        "import os, signal\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from txcore_conformance import brokers\n"
        "with ThreadPoolExecutor() as threads:\n"
        f"    broker = threads.submit(brokers.start, {name!r}, own=True).result()\n"
        "print(broker.folder, broker.pid, *broker._children(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert -signal.SIGKILL == done.returncode, done.stderr
    folder, *pids = done.stdout.split()
    eventually(lambda: not any(runs(int(pid)) for pid in pids))
    available(name)
    assert not (base_folder() / folder).exists()


def test_command_gets_the_brokers_and_its_status_is_passed_on(available):
    """The command gets the brokers' URLs and passes its status on; the brokers end with it."""
    available("nats")
    code = (
        "import os\n"
        "from txcore_conformance import brokers\n"
        "broker = brokers.nats()\n"
        "assert not broker.can_be_killed\n"
        "print(broker.url, broker.folder)\n"
        "raise SystemExit(7)\n"
    )
    command = [*MODULE, "--run", "nats", "--", sys.executable, "-c", code]
    done = subprocess.run(command, env=without_brokers(), capture_output=True, text=True, check=False)
    assert 7 == done.returncode, done.stderr
    url, folder = done.stdout.split()
    assert url.startswith("nats://127.0.0.1:")
    assert not Path(folder).exists()
    assert "brokers: nats 2." in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_runner_takes_command_and_brokers_along(available, runs, eventually, number):
    """A signal to end is forwarded to the command; after a kill, the kernel ends the command."""
    available("nats")
    code = "import os, time; print(os.getpid(), os.environ['TXCORE_NATS_URL'], flush=True); time.sleep(60)"
    command = [*MODULE, "--run", "nats", "--", sys.executable, "-c", code]
    with subprocess.Popen(
        command, env=without_brokers(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as runner:
        pid, _url = runner.stdout.readline().split()
        runner.send_signal(number)
        runner.wait(20)
        eventually(lambda: not runs(int(pid)))
    if number == signal.SIGTERM:
        assert 128 + signal.SIGTERM == runner.returncode


@pytest.mark.parametrize(("required", "status"), [("", 7), ("nats", 1)])
def test_command_runs_without_a_broker_unless_it_is_required(required, status, tmp_path):
    """A missing broker is reported on standard error."""
    tmp_path.joinpath("apt-get").write_text("#!/bin/sh\nexit 1\n")
    tmp_path.joinpath("apt-get").chmod(0o755)
    (tmp_path / "servers").mkdir()
    environment = without_brokers() | {
        "PATH": str(tmp_path),
        "TXCORE_SERVERS": str(tmp_path / "servers"),
        "TXCORE_REQUIRE": required,
        "TXCORE_NATS_VERSION": "distribution",
    }
    command = [*MODULE, "--run", "nats", "--", sys.executable, "-c", "raise SystemExit(7)"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert status == done.returncode, done.stderr
    assert "nats:" in done.stderr


def test_runner_names_its_mistakes():
    """The runner reports an unknown broker and a missing command."""
    for arguments in (["--run", "pulsar", "--", "true"], ["--run", "nats"], ["--only", "pulsar"]):
        done = subprocess.run([*MODULE, *arguments], capture_output=True, text=True, check=False)
        assert 2 == done.returncode
        assert "pulsar" in done.stderr or "belong together" in done.stderr


def test_without_a_command_urls_are_printed_until_ctrl_c(available):
    """The lines have at most 80 columns, and the `export` lines can be pasted."""
    if any(os.environ.get(f"TXCORE_{name.upper()}_URL") for name in brokers.NAMES):
        pytest.skip("another program runs the brokers")
    for name in brokers.NAMES:
        available(name)
    with subprocess.Popen(MODULE, stdout=subprocess.PIPE, text=True) as runner:
        lines = []
        for line in runner.stdout:
            lines.append(line.rstrip("\n"))
            if "Ctrl-C" in line:
                runner.send_signal(signal.SIGINT)
    assert 0 == runner.returncode
    assert [] == [line for line in lines if len(line) > 80 and not line.startswith("export ")]
    text = "\n".join(lines)
    for name in brokers.NAMES:
        assert f"\n{name} " in text
        assert f"export TXCORE_{name.upper()}_URL={name}://" in text


def printed_by_manual_work(*arguments: str, **environment: str) -> tuple[str, dict[str, str]]:
    """Return what the program prints until it is ready, and the variables to export."""
    command = [*MODULE, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=without_brokers() | environment) as runner:
        lines = []
        for line in runner.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                runner.send_signal(signal.SIGINT)
    assert 0 == runner.returncode
    pairs = [line.removeprefix("export ").rstrip("\n").partition("=") for line in lines if line.startswith("export ")]
    return "".join(lines), {name: value for name, _, value in pairs}


@pytest.mark.parametrize("is_taken", [False, True])
def test_manual_work_is_on_the_usual_port_or_says_which_one_instead(available, is_taken):
    """The variables name the port in use; a port that another program holds is named with its replacement."""
    available("nats")
    with socket.socket() as holder:
        if is_taken:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):  # another program holds it for us
                holder.bind(("127.0.0.1", 4222))
                holder.listen()
        text, variables = printed_by_manual_work("--only", "nats")
    port = variables["TXCORE_NATS_URL"].rpartition(":")[2]
    assert variables["TXCORE_BROKER"] == variables["TXCORE_NATS_URL"]
    assert "shop" == variables["TXCORE_GROUP"]
    is_elsewhere = f"another program uses port 4222, so this one is on {port}" in text
    assert is_elsewhere is (port != "4222")
    assert is_elsewhere or not is_taken


def test_manual_work_has_a_durable_database(obtained_postgresql):
    """PostgreSQL is started with fsync, and the command's variables name it."""
    variables = manual.variables({"postgresql": obtained_postgresql})
    assert variables["TXCORE_DATABASE"] == variables["TXCORE_POSTGRES_URL"] == obtained_postgresql.url
    with create_engine(obtained_postgresql.url, poolclass=NullPool).connect() as connection:
        assert "on" == connection.exec_driver_sql("SHOW fsync").scalar_one()


@pytest.fixture
def obtained_postgresql(monkeypatch):
    """The database of manual work."""
    monkeypatch.delenv("TXCORE_POSTGRES_URL", raising=False)
    server = obtained("postgresql", lambda: manual.start(manual.DATABASE))
    yield server
    server.remove()


def test_a_server_of_the_environment_is_named_and_used(nats):
    """A broker whose URL is in the environment is not started again, and the command gets the variables set before."""
    text, variables = printed_by_manual_work("--only", "nats", TXCORE_NATS_URL=nats.url, TXCORE_GROUP="mine")
    assert f"nats: runs already, as the environment says: {nats.url}" in text
    assert (nats.url, "mine") == (variables["TXCORE_BROKER"], variables["TXCORE_GROUP"])
    assert nats.is_running


def test_a_start_reports_its_long_steps(tmp_path, monkeypatch):
    """A download is announced before it begins, to the thread that waits for it."""
    monkeypatch.setenv("TXCORE_SERVERS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Go, no apt-get: nothing is downloaded
    tmp_path.joinpath("go").write_text("#!/bin/sh\nexit 1\n")
    tmp_path.joinpath("go").chmod(0o755)
    steps = []
    with progress.heard(steps.append), pytest.raises(brokers.ServerUnavailableError):
        brokers.managed("nats", "2.9.25")
    assert "Go fetches and builds nats-server 2.9.25" in steps
    progress.say("no listener")
    assert "no listener" not in steps


def test_ports_are_kept_apart_and_out_of_the_kernels_way():
    """No other holder gets the ports, and the kernel gives none of them to an outgoing connection."""
    locks = PortLocks()
    numbers = [locks.reserve() for _ in range(20)]
    assert 20 == len(set(numbers))
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert [] == [number for number in numbers if low <= number <= high]
    assert lock_port(numbers[0]) is None
    locks.release()
    file = lock_port(numbers[0])
    assert file is not None
    file.close()


def test_broker_that_ended_by_itself_is_known_to_and_starts_again(nats, eventually):
    """A broker that crashed can be paused, resumed and killed without error, and starts again."""
    os.kill(nats.pid, signal.SIGKILL)
    eventually(lambda: not nats.is_running)
    nats.pause()
    nats.resume()
    nats.kill()
    nats.start()
    assert nats.is_running


def test_wanted_rabbitmq_settings_reach_the_server(started):
    """The settings have the names of RabbitMQ's own configuration."""
    broker = started("rabbitmq", channel_max="77")
    try:
        assert isinstance(broker, RabbitmqBroker)
        assert "{channel_max,77}" in broker.control("environment")
    finally:
        broker.remove()


def without_brokers() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TXCORE_")}
