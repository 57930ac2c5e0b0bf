"""Arguments that several public classes take: one sentence for each mistake, at the call that has it."""

from __future__ import annotations

from collections.abc import Sequence

from txcore.errors import ConfigError


def require_type(key: str, value: object, kind: type | tuple[type, ...], noun: str) -> None:
    """Require that *value* is of this *kind*, which *noun* describes.

    Raises:
        ConfigError: it is not; `key` names it.
    """
    if not isinstance(value, kind):
        raise _of_wrong_type(key, value, noun)


def require_place(backend: object, group: object, fence: object = None, plugins: object = ()) -> None:
    """Require an open backend, a group's name, a fence or None, and a list of plugins.

    A URL as the backend and an engine as the fence are common mistakes.

    Raises:
        ConfigError: one is of another type, or the group has no name; `key` names it.
    """
    if not hasattr(backend, "capabilities"):
        raise _of_wrong_type("backend", backend, "an open backend, as txcore.connect(url) returns")
    if not isinstance(group, str) or not group:
        raise ConfigError(f"group must be a name, not {group!r}", key="group")
    if group != group.strip() or not group.isprintable():
        text = f"group {group!r} has white space at an end, or a character that cannot be seen; is it read from a file?"
        raise ConfigError(text, key="group")
    if fence is not None and not hasattr(fence, "check"):
        raise _of_wrong_type("fence", fence, "a fence such as txcore.SqlFence(engine)")
    if not isinstance(plugins, Sequence) or isinstance(plugins, str):
        raise _of_wrong_type("plugins", plugins, "a list of plugins")


def require_listener(listener: object, kind: type, owner: str) -> None:
    """Require that *listener* derives from *kind*, as *owner* calls it, and runs a local transaction.

    Its class alone and Java's names of the methods are common mistakes.

    Raises:
        ConfigError: it does not.
    """
    if not isinstance(listener, kind):
        given = f"the class {listener.__name__}" if isinstance(listener, type) else type(listener).__name__
        text = f"listener must be an object that derives from {kind.__name__}, for {owner}; not {given}"
        raise ConfigError(text, key="listener")
    if not any(_overrides(listener, kind, name) for name in ("execute", "execute_local_transaction")):
        forms = "execute(transaction, message, arg) or execute_local_transaction(message, arg)"
        raise ConfigError(f"{type(listener).__name__} must define {forms}", key="listener")


def _overrides(listener: object, kind: type, name: str) -> bool:
    return getattr(getattr(listener, name), "__func__", None) is not getattr(kind, name)


def require_check_listener(listener: object) -> None:
    """Require that a checker can ask *listener*; its class alone is a common mistake.

    Raises:
        ConfigError: it is a class, or has no `check_local_transaction`.
    """
    if isinstance(listener, type):
        raise ConfigError(f"listener must be an object, not the class {listener.__name__}: make one", key="listener")
    if not callable(getattr(listener, "check_local_transaction", None)):
        raise _of_wrong_type("listener", listener, "an object with check_local_transaction(half)")


def _of_wrong_type(key: str, value: object, noun: str) -> ConfigError:
    return ConfigError(f"{key} must be {noun}, not {type(value).__name__}", key=key)
