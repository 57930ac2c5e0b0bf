"""Lists the public API as one page, `docs/api.md`: `python docs/site/api.py > docs/api.md`, or `make api`.

A test compares the page with the code, so that no change of the API stays unnoticed: its diff shows the change.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, get_args, get_origin

from txcore.fence import Fence
from txcore.message_table import ModeName
from txcore.port import Backend
from txcore.testing.dying import Step

MODULES: Final = (
    "txcore",
    "txcore.testing",
    "txcore.connections",
    "txcore.memory",
    "txcore.integrations.session",
    "txcore.integrations.async_session",
    "txcore.integrations.fastapi",
    "txcore.integrations.django.transactions",
    "txcore.integrations.opentelemetry",
    "txcore.fence",
    "txcore.port",
    "txcore.hookspecs",
    "txcore.plugin",
    "txcore.backends.options",
    "txcore.backends.tls",
)
#: Classes whose objects users receive and do not make; their constructors are not shown.
RECEIVED: Final = {"Transaction", "AsyncTransaction", "Outgoing"}
#: Members and names that are no promise to users, although another part of txcore calls them.
HIDDEN: Final = {
    # Run the protocol's steps for the producer's own transactions.
    "TransactionProducer": {"run", "finish"},
    "AsyncTransactionProducer": {"run", "finish"},
    # Called by the integration itself, around the user's block.
    "Outgoing": {"prepare", "release"},
    # Return the folded logs to the commands and the console; the form of these follows the protocol.
    "Operator": {
        *("still_parked", "look", "watch", "search", "finished", "replay", "resume_journey", "ask", "follow"),
    },
    # The broker's side of `memory://`, called by its backend only.
    "MemoryBroker": {
        *("ensure_group", "unknown_group", "refusal", "append", "topic_refusal", "publish", "superseded", "fenced"),
        *("append_ops", "join", "leave", "rebalance", "given_up"),
    },
    "MemoryBackend": {"request"},
    # A module's hook and descriptor, which the registry looks for; membership, which a checker asks its backend for.
    "txcore.memory": {"MemoryClaim", "PLUGIN", "txcore_backend"},
}
#: Ports, whose members are listed there only.
PORTS: Final = (Backend, Fence)
INTRODUCTION: Final = """# API

Every public name with its signature and the first sentence of its docstring. `make api` writes this page, and a test
compares it with the code. The [reference](site/reference.md) has the whole docstrings.
"""


class _Text:
    """A text whose `repr` is itself, for annotations and defaults."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def page() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *(line for name in MODULES for line in _module(name))])


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    yield from (f"## {name}", "", _sentence(module), "")
    for each in (each for each in _names(module) if each not in HIDDEN.get(name, ())):
        value = getattr(module, each)
        if inspect.isclass(value):
            yield from _class(each, value)
        elif inspect.isroutine(value):
            yield f"* `{each}{_signature(value)}`: {_sentence(value)}"
        elif name == "txcore.connections":
            yield f"* `{each} = {value}`"
        else:
            yield f"* `{each}: {type(value).__name__}`"
    yield ""


def _names(module: Any) -> list[str]:
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=lambda name: (name.lower(), name))
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith(module.__name__)
        and (not name.startswith("txcore_") or module.__name__ == "txcore.hookspecs")
    }
    return sorted(own, key=lambda name: (name.lower(), name))


def _class(name: str, value: type[Any]) -> Iterator[str]:
    kind = value.__base__.__name__ if issubclass(value, BaseException | enum.Enum) and value.__base__ else ""
    is_received = name in RECEIVED or getattr(value, "_is_protocol", False)
    made = f"({kind})" if kind else "" if is_received else _signature(value, _chosen(value))
    yield f"* class `{name}{made.removesuffix(' -> None')}`: {_sentence(value)}"
    if issubclass(value, enum.Enum):
        yield "  * " + ", ".join(f"`{member.name}`" for member in value)
    seen = {*HIDDEN.get(name, ())}
    for port in PORTS:
        members = {each for each, member in vars(port).items() if inspect.isfunction(member) and each[0] != "_"}
        if value is not port and not members - {*dir(value)}:
            yield f"  * The members of the port `{port.__module__}.{port.__name__}`."
            seen |= members
    for base in value.__mro__:
        for each, member in vars(base).items():
            if each.startswith("_") or each in seen or not base.__module__.startswith("txcore"):
                continue
            seen.add(each)
            bound, chosen = getattr(value, each), _chosen(value)
            if isinstance(member, property):
                yield f"  * `{each}{_signature(member.fget, chosen).removeprefix('(self)')}`: {_sentence(member)}"
            elif inspect.isroutine(bound) and hasattr(bound, "__annotations__"):
                prefix = "async " if inspect.iscoroutinefunction(bound) else ""
                yield f"  * `{prefix}{each}{_signature(bound, chosen)}`: {_sentence(bound)}"


def _chosen(value: type[Any]) -> dict[str, str]:
    """Return the types that a class gives to the parameters of its generic bases."""
    bases = [base for base in getattr(value, "__orig_bases__", ()) if get_origin(base) not in {None, Generic}]
    return {
        parameter.__name__: getattr(argument, "__forward_arg__", None) or str(_annotation(argument))
        for base in bases
        for parameter, argument in zip(getattr(get_origin(base), "__parameters__", ()), get_args(base), strict=False)
    }


def _signature(value: Any, chosen: Mapping[str, str] = MappingProxyType({})) -> str:
    signature = inspect.signature(value)
    parameters = [
        each.replace(annotation=_annotation(each.annotation), default=_default(each.default))
        for each in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=_annotation(signature.return_annotation)))
    return re.sub(r"\w+", lambda word: chosen.get(word[0], word[0]), text)


def _annotation(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    given = getattr(annotation, "__forward_arg__", annotation)
    text = given if isinstance(given, str) else inspect.formatannotation(given)
    text = text.replace("ModeName", str(ModeName)).replace("Step", str(Step))
    return _Text(re.sub(r"\b(?:\w+\.)+(?=\w)", "", text))


def _default(default: Any) -> Any:
    if isinstance(default, enum.Enum):
        return _Text(str(default) if not isinstance(default, str) else f"{type(default).__name__}.{default.name}")
    return _Text(default.__name__) if inspect.isroutine(default) else default


def _sentence(value: Any) -> str:
    paragraph = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`*])", paragraph)[0]


if __name__ == "__main__":
    sys.stdout.write(page())
