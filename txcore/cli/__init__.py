"""The `txcore` command. This module only builds the app and prints each error as one sentence.

Each command is a module of its own beside this one; `build_app` names them. Nothing here imports SQLAlchemy, and
nothing is imported before `build_app`, so that the demo's processes start fast.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Final

from txcore.errors import BackendNotInstalledError, TxcoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer import Typer

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
HELP: Final = "NoArgsIsHelpError"
"""Name of the parser's error that is no mistake: a group was named without a command, so its help is shown."""


@cache
def build_app() -> Typer:
    """Return the app with all commands; a process has one, as its groups are objects of their modules.

    Raises:
        BackendNotInstalledError: the extra `cli` is not installed.
    """
    try:
        import rich  # noqa: F401, PLC0415 - see the module's docstring
        from typer import Typer  # noqa: PLC0415
    except ImportError as error:
        raise BackendNotInstalledError("txcore", "typer and rich", "cli") from error
    from txcore.cli import (  # noqa: PLC0415
        audit_tables,
        backends,
        certificate,
        checker,
        config,
        effects,
        examples,
        outbox_audit,
        permissions,
        version,
    )
    from txcore.cli.demo import demo  # noqa: PLC0415
    from txcore.cli.doctor import doctor  # noqa: PLC0415
    from txcore.cli.helping import SectionedGroup, make_plain  # noqa: PLC0415
    from txcore.cli.operating import commands as operating  # noqa: PLC0415

    app = Typer(
        name="txcore",
        cls=SectionedGroup,
        help="Transactional (half) messages for the brokers you already run: both or neither.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # help is plain text: brackets are no markup, and paragraphs are wrapped
    )
    app.callback()(version.root)
    app.command("demo")(demo)
    app.command("backends")(backends.backends)
    app.command("checker")(checker.checker)
    app.add_typer(config.config, name="config")
    certificate.audit.command("outbox")(outbox_audit.outbox)
    certificate.audit.command("effects")(effects.effects)
    app.add_typer(audit_tables.audit, name="audit")
    operating.add_to(app)
    app.command("permissions")(permissions.permissions)
    app.command("doctor")(doctor)
    examples.add_to(app)
    make_plain(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 misused, 130 interrupted.

    Every error that txcore raises, and every mistake on the command line, becomes one sentence on standard error,
    without a traceback.
    """
    try:
        sys.exit(_run(None if arguments is None else list(arguments)))
    except UsageError as error:
        _print_error(error)
        sys.exit(MISUSED)
    except TxcoreError as error:
        _print_error(error)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run(arguments: list[str] | None) -> int:
    """Run the command line, and return its exit code.

    Raises:
        TxcoreError: it failed; a UsageError: a mistake on the command line.
    """
    app = build_app()
    from typer import Abort, main  # noqa: PLC0415 - see the module's docstring

    from txcore.cli.helping import Misuse, misuse  # noqa: PLC0415

    try:
        status = main.get_command(app).main(args=arguments, prog_name="txcore", standalone_mode=False)
    except Misuse as error:
        if type(error).__name__ != HELP:
            raise misuse(error) from error
        error.show()  # type: ignore[attr-defined]
        return MISUSED
    except Abort:
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def _print_error(error: TxcoreError) -> None:
    from txcore.operator.formatting import harmless  # noqa: PLC0415 - see the module's docstring

    print("txcore:", harmless(" ".join(str(error).split())), file=sys.stderr)  # noqa: T201 - a command's output
