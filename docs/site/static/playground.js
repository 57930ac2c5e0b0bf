// The playground's page: it draws what txcore_conformance.sim.page says, and sends the visitor's choices there.
// Nothing of the protocol is here. Everything is fetched from this site.
(() => {
  const root = document.getElementById("txcore-playground");
  const files = new URL("playground/", document.currentScript.src).href;
  const CODES = {
    order: "o", step: "s", "kill producer": "P", "kill checker": "C",
    "freeze producer": "F", "start producer": "p", "start checker": "c",
  };
  const CHOICES = Object.fromEntries(Object.entries(CODES).map(([choice, code]) => [code, choice]));
  const BROKERS = { "kafka-like": "Kafka", "rabbitmq-like": "RabbitMQ", "nats-like": "NATS", strong: "SQLite" };
  const PACE_MS = 1100;
  let page, shown, timer, wanted = [], expected = "";

  const at = (name) => root.querySelector(`[data-at="${name}"]`);
  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const say = (state, ...children) => {
    root.dataset.state = state;
    root.replaceChildren(...children);
  };

  // -- loading -----------------------------------------------------------------------------------------------------

  async function offer() {
    if (location.protocol === "file:") {
      return say("file", make("p", {
        innerHTML: "A browser runs this page only from a web server. In the folder of this site run " +
          "<code>python -m http.server</code>, and open <code>http://127.0.0.1:8000/docs/playground.html</code>.",
      }));
    }
    const found = await fetch(files + "manifest.json").catch(() => null);
    if (!found?.ok) {
      return say("missing", make("p", {
        innerHTML: "This copy of the site has no Python for browsers, so its playground cannot run. In a clone of the " +
          "repository <code>make playground</code> adds it.",
      }));
    }
    const { archives } = await found.json();
    const start = make("button", { className: "first", textContent: "Start the playground" });
    start.addEventListener("click", () => load(archives).catch((error) => {
      say("failed", make("p", { textContent: `The playground could not start: ${error.message ?? error}` }));
    }));
    say("offered", make("div", { className: "row" }, start, make("span", {
      textContent: "It loads Python for your browser, 14 MB, from this site alone.",
    })));
  }

  async function load(archives) {
    const note = make("p", { textContent: "Loading Python …" });
    note.setAttribute("role", "status");
    say("loading", note);
    const [{ loadPyodide }, ...bytes] = await Promise.all([
      import(files + "pyodide.mjs"),
      ...archives.map(async (name) => (await fetch(files + name)).arrayBuffer()),
    ]);
    const python = await loadPyodide({ indexURL: files });
    note.textContent = "Loading txcore …";
    await new Promise((drawn) => setTimeout(drawn, 20));
    const folder = python.runPython("import sysconfig; sysconfig.get_path('purelib')");
    for (const each of bytes) python.unpackArchive(each, "zip", { extractDir: folder });
    python.runPython("from txcore_conformance.sim.page import Page");
    page = python.runPython("Page()");
    build();
    begin(...fromAddress());
  }

  // -- a visit -----------------------------------------------------------------------------------------------------

  function fromAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const broker = given.get("broker") in BROKERS ? given.get("broker") : "kafka-like";
    const choices = [...(given.get("play") ?? "")].map((code) => CHOICES[code]).filter(Boolean);
    return [Number.parseInt(given.get("seed"), 10) || 1, broker, given.get("rule") ?? "", choices, given.get("trace") ?? ""];
  }

  function begin(seed, broker, rule = "", choices = [], trace = "") {
    pause();
    [shown, wanted, expected] = [undefined, [...choices], trace];
    at("seed").value = seed;
    at("broker").value = broker;
    at("rule").value = rule;
    at("past").replaceChildren();
    at("same").textContent = "";
    draw(JSON.parse(page.begin(seed, broker, [], rule)));
    if (wanted.length) play();
  }

  function choose(choice) {
    if (!shown.open.includes(choice)) return false;
    draw(JSON.parse(page.choose(choice)));
    return true;
  }

  function play() {
    at("play").textContent = "Pause";
    timer = setInterval(turn, PACE_MS);
    turn();
  }

  function pause() {
    clearInterval(timer);
    timer = undefined;
    if (page && at("play")) at("play").textContent = "Play";
  }

  // A replay carries out its choices; then, and without one, steps follow until all is decided.
  function turn() {
    const isReplay = wanted.length > 0;
    const wasAtRest = shown.is_at_rest;
    if (!choose(wanted.shift() ?? "step")) return pause();
    if (isReplay && !wanted.length) {
      pause();
      if (expected) {
        const isSame = expected === shown.trace.slice(0, expected.length);
        at("same").textContent = isSame ? "The replay has the same trace." : "The replay has another trace: another version?";
      }
    } else if (!isReplay && (wasAtRest || shown.sentences[0].startsWith("Nothing happens"))) pause();
  }

  // -- drawing -----------------------------------------------------------------------------------------------------

  function draw(seen) {
    const before = shown;
    shown = seen;
    const passed = before ? seen.now_s - before.now_s : 0;
    const time = `${seen.now_s.toFixed(2)} s${passed >= 0.5 ? `, ${passed.toFixed(1)} s later` : ""}`;
    const lines = (text) => [make("time", { textContent: time }), ` ${text}`];
    at("now").replaceChildren(...lines(seen.sentences.join(" ")));
    at("past").prepend(make("li", {}, ...lines(seen.sentences.join(" "))));
    for (const name of ["producer", "checker"]) {
      at(name).dataset.state = seen[name].state;
      at(`${name}-text`).textContent = seen[name].text;
    }
    fill("database", seen.database, before?.database, (row) =>
      [row.state, row.row ? `${row.row} · fence row: ${row.fence}` : `order ${row.order} · fence row: ${row.fence}`]);
    fill("halves", seen.halves, before?.halves, (half) =>
      [half.state.split(" ")[0], `${half.position}: half of order ${half.order} · ${half.state}`]);
    fill("ops", seen.ops, before?.ops, (op) =>
      ["", `${op.position}: ${op.kind}${op.order ? ` order ${op.order}` : ""} · by the ${op.by}`]);
    fill("messages", seen.messages, before?.messages, (message) =>
      ["", `${message.position}: ${message.body} · txcore-id …${message.id}${message.is_copy ? " · again" : ""}`]);
    for (const button of root.querySelectorAll("button[data-choice]")) {
      const isOpen = seen.open.includes(button.dataset.choice);
      button.disabled = !isOpen;
      if (button.dataset.choice.startsWith("start ")) button.hidden = !isOpen;
      if (/^(kill|freeze) /.test(button.dataset.choice)) button.hidden = seen.open.includes(`start ${button.dataset.choice.split(" ")[1]}`);
    }
    remember(seen);
  }

  function fill(name, rows, before = [], textOf) {
    const known = new Set(before.map((row) => JSON.stringify(row)));
    const items = rows.map((row) => {
      const [state, textContent] = textOf(row);
      const isNew = shown && before && !known.has(JSON.stringify(row));
      return make("li", { className: `${state} ${isNew ? "new" : ""}`, textContent });
    });
    at(name).replaceChildren(...(items.length ? items : [make("li", { className: "empty", textContent: "empty" })]));
    at(name).scrollTop = at(name).scrollHeight;
  }

  function remember(seen) {
    const play = seen.chosen.map((choice) => CODES[choice]).join("");
    const address = new URLSearchParams({
      seed: at("seed").value, broker: at("broker").value, rule: at("rule").value, play, trace: seen.trace.slice(0, 12),
    });
    at("link").href = `#${address}`;
    at("link").textContent = `seed ${at("seed").value}, ${BROKERS[at("broker").value]}, ${seen.chosen.length} choices, trace ${seen.trace.slice(0, 12)}`;
    history.replaceState(null, "", `#${address}`);
  }

  // -- the page's parts ----------------------------------------------------------------------------------------------

  function build() {
    say("ready");
    root.innerHTML = `
      <div class="row">
        <button class="first" data-choice="order">Place an order</button>
        <button class="first" data-choice="step">Step</button>
        <button data-at="play">Play</button>
        <button data-at="again">Start over</button>
      </div>
      <div class="now" data-at="now" role="status" aria-live="polite"></div>
      <div class="grid">
        <section class="card" data-at="producer"><h4>Producer: the shop</h4><p data-at="producer-text"></p>
          <div class="row"><button class="harm" data-choice="kill producer">Kill the producer</button>
            <button class="harm" data-choice="freeze producer">Freeze it 10 s</button>
            <button data-choice="start producer">Start another</button></div></section>
        <section class="card" data-at="checker"><h4>Checker</h4><p data-at="checker-text"></p>
          <div class="row"><button class="harm" data-choice="kill checker">Kill the checker</button>
            <button data-choice="start checker">Start another</button></div></section>
        <section class="card"><h4>Database</h4><ol data-at="database"></ol></section>
        <section class="card"><h4>Topic orders.created</h4><ol data-at="messages"></ol></section>
        <section class="card"><h4>Half log</h4><ol data-at="halves"></ol></section>
        <section class="card"><h4>Op log</h4><ol data-at="ops"></ol></section>
      </div>
      <details open><summary>What has happened, newest first</summary><ol class="past" data-at="past"></ol></details>
      <details><summary>Seed, broker, rules, replay</summary>
        <div class="row">
          <label>Seed <input data-at="seed" type="number" min="0" step="1"></label>
          <label>Broker like <select data-at="broker"></select></label>
          <label>Without rule <select data-at="rule"><option value="">none</option></select></label>
          <button data-at="begin">Begin anew with these</button>
        </div>
        <p>This visit: <a data-at="link"></a> <button data-at="replay">Replay it</button> <span data-at="same" role="status"></span></p>
      </details>
      <details><summary>Whole seeds of the simulator, with random faults</summary>
        <div class="row">
          <label>Seed <input data-at="whole" type="number" min="0" step="1" value="1"></label>
          <button data-at="one">Play this seed</button><button data-at="many">Play 20 from here</button>
        </div>
        <div class="table"><table><thead><tr><th>seed</th><th>broker</th><th>transactions</th><th>crashes</th>
          <th>freezes</th><th>bad requests</th><th>second deliveries</th><th>broken rules</th><th>trace</th></tr></thead>
          <tbody data-at="results"></tbody></table></div>
      </details>`;
    for (const [value, textContent] of Object.entries(BROKERS)) at("broker").append(make("option", { value, textContent }));
    for (const [value, textContent] of Object.entries(JSON.parse(page.rules()))) {
      at("rule").append(make("option", { value, textContent }));
    }
    for (const button of root.querySelectorAll("button[data-choice]")) {
      button.addEventListener("click", () => {
        if (button.dataset.choice === "step") pause();
        choose(button.dataset.choice);
      });
    }
    const settings = () => [Number.parseInt(at("seed").value, 10) || 0, at("broker").value, at("rule").value];
    at("play").addEventListener("click", () => (timer ? pause() : play()));
    at("again").addEventListener("click", () => begin(...settings()));
    at("begin").addEventListener("click", () => begin(...settings()));
    at("replay").addEventListener("click", () => begin(...settings(), shown.chosen, shown.trace));
    at("one").addEventListener("click", () => playSeeds(1));
    at("many").addEventListener("click", () => playSeeds(20));
  }

  async function playSeeds(count) {
    const first = Number.parseInt(at("whole").value, 10) || 0;
    for (let seed = first; seed < first + count; seed += 1) {
      const found = JSON.parse(page.play(seed));
      const cells = [found.seed, found.broker, found.transactions, found.crashes, found.freezes, found.lost, found.duplicates,
        found.violations.join("; ") || "none", found.trace.slice(0, 12)];
      at("results").prepend(make("tr", {}, ...cells.map((textContent) => make("td", { textContent }))));
      await new Promise((drawn) => setTimeout(drawn, 0));
    }
    at("whole").value = first + count;
  }

  if (root) offer();
})();
