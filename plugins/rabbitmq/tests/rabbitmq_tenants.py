"""A virtual host that three groups share, one user per group and role, each with the permissions that txcore prints."""

from __future__ import annotations

import json
import secrets
import shlex
from urllib.parse import quote

from txcore_conformance.kit import PARTITION_COUNT, Kit
from txcore_rabbitmq import PLUGIN
from txcore_rabbitmq.testing import connect

from txcore.permissions import Access, Role

PASSWORD = "of-tests-only"
GROUPS = ("orders", "billing", "orders.eu")
KEY = "created"


def events(group):
    """Return the name of the exchange that is the target of a group."""
    return f"{group}-events"


def mail(group):
    """Return the name of the queue that is bound to that exchange."""
    return f"{group}-mail"


def quoted(text):
    """Return *text* as a string of Erlang."""
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


class Tenants:
    """The users of the groups, made by `rabbitmqctl`; several test processes share a broker, each with its own."""

    def __init__(self, harness):
        self._harness = harness
        self._connections = []
        self._token = secrets.token_hex(4)
        self._vhost = f"three groups {self._token}"
        self.control = harness.broker.control
        self.control("add_vhost", self._vhost)
        self.control("set_permissions", "-p", self._vhost, "guest", ".*", ".*", ".*")
        channel = self.channel()
        for group in GROUPS:
            channel.exchange_declare(events(group), "topic", durable=True)
            channel.queue_declare(mail(group), durable=True, arguments={"x-queue-type": "classic"})
            channel.queue_bind(mail(group), events(group), "#")

    def url(self, user="guest"):
        """Return the URL under which *user* connects to the virtual host."""
        login, password = ("guest", "guest") if user == "guest" else (self._login(user), PASSWORD)
        address = self._harness.broker.url.rpartition("@")[2].rstrip("/")
        return f"rabbitmq://{quote(login)}:{password}@{address}/{quote(self._vhost)}?claim_heartbeat_s=2&drain_s=1"

    def channel(self, user="guest"):
        """Return a plain channel of *user*."""
        self._connections.append(connect(self.url(user)))
        return self._connections[-1].channel()

    def add(self, group, role, *, creates=False, targets=None):
        """Make a user with the permissions as printed, pasted into a shell; return its name."""
        user, login, words = self._printed(group, role, creates=creates, targets=targets)
        self.control("add_user", login, PASSWORD)
        self.control(*words)
        return user

    def _printed(self, group, role, *, creates=False, targets=None):
        """Return a user's name, its login, and the words of `rabbitmqctl` that give it its permissions."""
        user = f"{group} {role.value}{' creates' * creates}{' queues' * (targets is not None)}"
        login = self._login(user)
        wanted = (f"{events(group)}/{KEY}",) if targets is None else targets
        access = Access(user=login, group=group, role=role, targets=wanted, creates=creates)
        program, *words = shlex.split(PLUGIN.permissions_of(self.url(), access), comments=True)
        assert program == "rabbitmqctl"
        return user, login, words

    def _import(self, printed):
        """Make many users in one call, as each call of `rabbitmqctl` takes a second of the processor."""
        users, rights = [], []
        for _, login, words in printed:
            command, option, vhost, user, configure, write, read = words
            assert (command, option, user) == ("set_permissions", "-p", login)
            users.append({"name": login, "password": PASSWORD, "tags": []})
            rights.append({"vhost": vhost, "user": user, "configure": configure, "write": write, "read": read})
        definitions = json.dumps({"users": users, "permissions": rights})
        self.control("eval", f"ok = rabbit_definitions:import_raw(<<{quoted(definitions)}>>).")

    def _login(self, user):
        return f"{user} {self._token}"

    def make_groups(self):
        """Make the groups, each under a user that may create it, and the users that may not."""
        creators = {group: self._printed(group, Role.PRODUCER, creates=True) for group in GROUPS}
        self._import([*creators.values(), *(self._printed(group, role) for group in GROUPS for role in Role)])
        for group, (user, _, _) in creators.items():
            with PLUGIN.connect(self.url(user)) as backend:
                assert backend.ensure_group(group, PARTITION_COUNT).result(60) == PARTITION_COUNT

    def kit(self, group, role):
        """Return a kit whose connections are those of a user of *group*; the caller closes it."""
        made = Kit(self._harness, group)
        made.url = self.url(f"{group} {role.value}")
        return made

    def mailed(self, group):
        """Return the bodies of the messages that have arrived from *group*, and take them."""
        channel = self.channel()
        found = []
        while (got := channel.basic_get(mail(group), auto_ack=True))[0] is not None:
            found.append(got[2])
        return found

    def close(self):
        """Delete the users and the virtual host."""
        for connection in self._connections:
            connection.close()
        users = [line.split("\t")[0] for line in self.control("list_users").splitlines()]
        own = ", ".join(f"<<{quoted(user)}>>" for user in users if user.endswith(self._token))
        self.control("eval", f'[rabbit_auth_backend_internal:delete_user(User, <<"tests">>) || User <- [{own}]].')
        self.control("delete_vhost", self._vhost)
