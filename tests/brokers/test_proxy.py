"""The proxy with faults, between a plain socket and a server that answers each line with itself."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading

import pytest
from txcore_conformance.brokers.proxy import Proxy


class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        with contextlib.suppress(ConnectionError):
            for line in self.rfile:
                self.server.heard.append(line)
                self.wfile.write(line)


@pytest.fixture
def server():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as made:
        made.daemon_threads = True
        made.heard = []
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def proxy(server):
    made = Proxy(server.server_address)
    yield made
    made.close()


@pytest.fixture
def connect(proxy):
    made = []

    def connected():
        made.append(socket.create_connection(("127.0.0.1", proxy.port), 5))
        return made[-1]

    yield connected
    for each in made:
        each.close()


def says(connection, line):
    connection.sendall(line)
    return heard(connection, len(line))


def heard(connection, size):
    found = b""
    while len(found) < size:
        found += connection.recv(size - len(found))
    return found


def is_silent(connection):
    connection.settimeout(0.2)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(5)


def test_forwards_both_ways(connect):
    """The proxy forwards small and large data on several connections."""
    first, second = connect(), connect()
    large = b"x" * 3_000_000 + b"\n"
    assert (b"one\n", b"two\n") == (says(first, b"one\n"), says(second, b"two\n"))
    sender = threading.Thread(target=first.sendall, args=(large,))
    sender.start()
    assert large == heard(first, len(large))
    sender.join()


def test_end_of_one_side_ends_the_other_after_its_last_bytes(connect):
    """A half-closed connection still gets its answer."""
    connection = connect()
    connection.sendall(b"last\n")
    connection.shutdown(socket.SHUT_WR)
    assert b"last\n" == connection.makefile("rb").read()


def test_swallowed_reply_never_comes_though_the_request_arrived(connect, proxy, server, eventually):
    """A swallowed reply is lost like an acknowledgement; the proxy resets its connection before it forwards again."""
    connection = connect()
    says(connection, b"before\n")
    proxy.swallow_replies()
    connection.sendall(b"asked\n")
    eventually(lambda: server.heard[-1:] == [b"asked\n"])
    assert is_silent(connection)
    proxy.forward()
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    assert b"after\n" == says(connect(), b"after\n")


def test_untouched_connection_survives_a_time_of_swallowing(connect, proxy):
    """The proxy resets only a connection that lost a reply."""
    connection = connect()
    says(connection, b"before\n")
    proxy.swallow_replies()
    proxy.forward()
    assert b"after\n" == says(connection, b"after\n")


def test_cut_resets_open_connections_and_accepts_new_ones(connect, proxy):
    """The proxy resets the client's connection and the server's at once."""
    connection = connect()
    says(connection, b"one\n")
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    assert 0 == proxy.connections()
    assert b"two\n" == says(connect(), b"two\n")


def test_refuses_new_connections_and_keeps_open_ones(connect, proxy):
    """The proxy refuses new connections until it forwards again, on the same port."""
    connection = connect()
    says(connection, b"one\n")
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect()
    assert b"two\n" == says(connection, b"two\n")
    proxy.forward()
    assert b"three\n" == says(connect(), b"three\n")


def test_frozen_connections_stay_open_and_lose_nothing(connect, proxy, server):
    """The proxy delivers the bytes that were sent while it was frozen."""
    connection = connect()
    says(connection, b"one\n")
    proxy.freeze()
    connection.sendall(b"two\n")
    late = connect()
    late.sendall(b"three\n")
    assert is_silent(connection)
    assert is_silent(late)
    assert [b"one\n"] == server.heard
    proxy.forward()
    assert (b"two\n", b"three\n") == (heard(connection, 4), heard(late, 6))


def test_absent_server_resets_the_client(connect, proxy, server):
    """A client whose server is down gets a reset."""
    server.shutdown()
    server.server_close()
    with pytest.raises(ConnectionResetError):  # even connect() may raise it
        connect().recv(1)


def test_closed_proxy_is_closed_twice_and_used_no_more(proxy):
    """The proxy's port is free again after it is closed."""
    proxy.close()
    proxy.close()
    with pytest.raises(ValueError, match="closed"):
        proxy.cut()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", proxy.port))
