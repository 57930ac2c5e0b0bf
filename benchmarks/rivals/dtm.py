"""DTM, a transaction manager in Go, which is built if the Go module registry has it.

There is no driver for it yet, because none could be tried on the machine on which this file was written.
"""

from __future__ import annotations

import os
from typing import Final

from txcore_conformance.machine import base_folder, run
from txcore_conformance.server_packages import ServerUnavailableError, find_program

from benchmarks.rivals.system import Figures, MissingError, Plan

_MODULE: Final = "github.com/dtm-labs/dtm@latest"
_BUILD_TIME_MAX_S: Final = 600.0
_PROGRAM: Final = "dtm"


class Dtm:
    """The system DTM; see the module."""

    name = "DTM"

    def prepare(self) -> None:
        """Build DTM, once per machine, and always raise MissingError."""
        go = find_program("go")
        if go is None:
            raise MissingError("DTM is not measured: there is no Go here")
        folder = base_folder() / "dtm"
        if not (folder / _PROGRAM).exists():
            try:
                environment = os.environ | {"GOBIN": str(folder)}
                run([str(go), "install", _MODULE], environment=environment, timeout_s=_BUILD_TIME_MAX_S)
            except ServerUnavailableError as error:
                raise MissingError(f"DTM is not measured, it cannot be built here: {_first_line(error)}") from error
        raise MissingError("DTM is not measured: it can be built here, but it has no tested driver yet")

    def measure(self, plan: Plan) -> Figures:
        """Raise NotImplementedError; the method is never called."""
        raise NotImplementedError


def _first_line(error: Exception) -> str:
    """Return the registry's first line of error, without its address."""
    said = " ".join(str(error).split())
    return "its module registry does not serve that module" if "403" in said or "404" in said else said[:120]
