"""The script of the report's page: search, sort, and every story open on paper. The page is whole without it."""

from __future__ import annotations

from typing import Final

SCRIPT: Final = """
(() => {
  const table = document.getElementById("findings");
  if (!table) return;
  const tools = document.querySelector(".tools"), [kind, group] = tools.querySelectorAll("select");
  const search = tools.querySelector("input"), shown = tools.querySelector("output");
  const bodies = [...table.tBodies], texts = new Map(bodies.map(each => [each, each.textContent.toLowerCase()]));
  tools.hidden = false;
  function filter() {
    const words = search.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let count = 0;
    for (const each of bodies) {
      const fits = (!kind.selectedIndex || each.dataset.kind === kind.value)
        && (!group.selectedIndex || each.dataset.group === group.value)
        && words.every(word => texts.get(each).includes(word));
      each.hidden = !fits;
      count += fits;
    }
    shown.textContent = count + " of " + bodies.length + " findings";
  }
  for (const each of [search, kind, group]) each.addEventListener("input", filter);
  filter();
  const ranks = ["inconclusive", "violation", "warning", "info"];
  table.tHead.addEventListener("click", event => {
    const head = event.target.closest("th");
    if (!head) return;
    const column = head.cellIndex, up = head.getAttribute("aria-sort") !== "ascending";
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = body => {
      const value = body.rows[0].cells[column].dataset.v, rank = ranks.indexOf(value);
      return rank < 0 ? value : rank + body.dataset.kind;
    };
    const compare = (a, b) => key(a).localeCompare(key(b), "en", {numeric: column !== 1});
    for (const each of [...bodies].sort((a, b) => up ? compare(a, b) : compare(b, a))) table.append(each);
  });
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const each of closed) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of closed) each.open = false; });
})();
"""
