"""DTM, a transaction manager in Go: built where the Go module registry has it.

Where it can be built there is no driver for it yet: none could be tried on the machine this was written on.
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
    """See the module."""

    name = "DTM"

    def prepare(self) -> None:
        """Build it, once a machine; raises MissingError in any case."""
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
        raise MissingError("DTM is not measured: it can be built here, but nobody has written and tried its driver yet")

    def measure(self, plan: Plan) -> Figures:
        """Never called."""
        raise NotImplementedError


def _first_line(error: Exception) -> str:
    """Return what the registry said, without its address."""
    said = " ".join(str(error).split())
    return "its module registry does not serve that module" if "403" in said or "404" in said else said[:120]
