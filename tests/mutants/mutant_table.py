"""The table of mutants and their tests in docs/testing.md; `python tests/mutants/mutant_table.py` updates it."""

from __future__ import annotations

from pathlib import Path

from mutant import all_mutants
from txcore_conformance import model_mutants, model_order
from txcore_conformance.sim import mutants as simulated
from txcore_conformance.sim.mutant import ALL

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BEGIN, END = "<!-- mutants -->\n", "<!-- end of mutants -->\n"


def table():
    """Return the lines of the table, from the lists of the model, the simulator and this folder."""
    rows = ["| mutant | rule | dies by |", "|---|---|---|"]
    for name in dict.fromkeys([*simulated.MUTANTS, *model_mutants.MUTANTS]):
        played, explored = simulated.MUTANTS.get(name), model_mutants.MUTANTS.get(name)
        tools = []
        if played is not None:
            profiles = "every broker" if played.needed_in == ALL else ", ".join(played.needed_in)
            tools.append(f"simulator ({profiles})")
        if explored is not None:
            tools.append(f"model (`{explored}`)")
        if name in model_order.MUTANTS:
            tools.append("model of the order")
        rows.append(f"| `{name}` | {played.rule if played else ''} | {'; '.join(tools)} |")
    for each in all_mutants():
        path, _, test = each.killed_by.partition("::")
        rows.append(f"| `{each.name}` | {each.rule} | [`{test}`](../{path}) |")
    return "".join(f"{row}\n" for row in rows)


def page(text):
    """Return the page *text* with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
