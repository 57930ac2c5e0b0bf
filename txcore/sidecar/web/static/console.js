// Renews the page's content every few seconds; the console also works without it. Nothing is renewed while the
// operator writes in a form or has paused the updates.
"use strict";
(() => {
  const live = document.querySelector("#live[data-live]");
  const button = document.getElementById("pause");
  if (!live || !button) return;
  const periodMs = 5000;
  let isPaused = false;
  button.hidden = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.textContent = isPaused ? "Resume updates" : "Pause updates";
    button.setAttribute("aria-pressed", String(isPaused));
  });
  const renew = async () => {
    if (isPaused || document.hidden || live.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
      if (!page || live.contains(document.activeElement) || isPaused) return;
      for (const each of live.querySelectorAll("details[open][id]")) {
        const same = page.querySelector("#" + CSS.escape(each.id));
        if (same) same.open = true;
      }
      live.replaceChildren(...page.childNodes);
    } catch {
      // The checker may be restarting; the next try shows it.
    }
  };
  setInterval(renew, periodMs);
})();
