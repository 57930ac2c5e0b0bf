"""A backend's promises to its users: one `Guarantees` for each form of its URL; `docs/guarantees.md` is made of these.

A plugin's `BackendPlugin` holds them, the usual form first.
"""

from __future__ import annotations

from dataclasses import dataclass

from txcore.records import Capabilities


@dataclass(frozen=True, slots=True)
class Guarantees:
    """One form of a backend's URL, and the guarantees of that form.

    Attributes:
        url: The form, such as `kafka://host:9092?release=transaction`.
        capabilities: The promises of the opened backend.
        duplicates: Each way in which a consumer may see a message twice, in a few words; empty for none.
        zombies: The mechanism that stops a checker that has lost its partition.
        order: The order of a topic's messages.
        message_size_max: The limit on one transaction's messages, and the component that sets it.
        retention: The fate of old and of pending halves.
        version_min: The oldest server that can be used.
        versions_tested: The servers on which the conformance suite ran.
    """

    url: str
    capabilities: Capabilities
    duplicates: tuple[str, ...]
    zombies: str
    order: str
    message_size_max: str
    retention: str
    version_min: str
    versions_tested: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokerObject:
    """An object that a group has on its broker: a topic, a stream, a table.

    A plugin may offer all of them as `BackendPlugin.objects`; `txcore topics describe` shows them.

    Attributes:
        kind: The broker's own word.
        name: The object's name on the broker.
        settings: The required settings, in the broker's own terms.
        purpose: Its purpose.
    """

    kind: str
    name: str
    settings: str
    purpose: str
