// A page that is read from a file may fetch no other: a search lists the titles alone.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// Gives each block of code a button that copies it. In a shell's session it copies the commands, without prompts.
// A browser without a clipboard for pages (plain HTTP from another host) gets no button.
document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return;
  for (const block of document.querySelectorAll("article div.highlight")) {
    const shown = block.querySelector("pre").textContent.trimEnd();
    const commands = [...shown.matchAll(/^\$ ((?:.*\\\n)*.*)$/gm)].map((found) => found[1]);
    const isSession = block.closest(".highlight-console") && commands.length > 0;
    const button = document.createElement("button");
    const say = (text, isDone) => {
      button.textContent = text;
      button.classList.toggle("done", isDone);
    };
    button.type = "button";
    button.className = "copy";
    say("Copy", false);
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(isSession ? commands.join("\n") : shown);
      say("Copied", true);
      setTimeout(() => say("Copy", false), 2000);
    });
    block.append(button);
  }
});
