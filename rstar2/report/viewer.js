// The trace viewer: a list that draws only the rows in sight, and one trace at a time.
const ROW = 46, KEPT_CHUNKS = 6;

class Viewer {
  constructor(index, section) {
    this.index = index;
    this.rows = index.rows;
    this.section = section;
    this.wanted = new Set();
    this.onlyFailed = false;
    this.words = "";
    this.problem = null;
    this.sort = "order";
    this.chunks = new Map();
    this.shown = [];
    this.current = null;
    this.build();
    this.filter();
  }

  build() {
    this.search = el("input", { type: "search", placeholder: "problem id or words in it", "aria-label": "search", oninput: () => { this.words = this.search.value.toLowerCase(); this.problem = null; this.filter(); } });
    this.order = el("select", { "aria-label": "order", onchange: () => { this.sort = this.order.value; this.filter(); } },
      [["order", "in the order they finished"], ["problem", "by problem and sample"], ["tokens", "longest first"], ["shortest", "shortest first"], ["calls", "most calls first"], ["failed", "most failed calls first"]].map(([value, name]) => el("option", { value }, name)));
    this.chips = el("div", { class: "chips" });
    this.room = el("div", { class: "room" });
    this.list = el("div", { class: "list", role: "list", tabindex: 0, onscroll: () => this.draw(), onkeydown: (event) => this.key(event) }, this.room);
    this.counter = el("span");
    this.pane = el("article", { class: "trace", tabindex: -1 });
    this.node = el("section", { class: "panel viewer", id: "viewer" },
      el("div", { class: "side" }, el("div", { class: "filters" }, this.search, this.order, this.chips), this.list,
        el("div", { class: "count" }, this.counter, el("span", {}, el("kbd", {}, "j"), " ", el("kbd", {}, "k")))), this.pane);
    new ResizeObserver(() => this.draw()).observe(this.list);
  }

  drawChips() {
    const tally = new Map();
    let failed = 0;
    this.mine.forEach((at) => {
      tally.set(this.rows.verdict[at], (tally.get(this.rows.verdict[at]) ?? 0) + 1);
      if (this.rows.failed[at]) failed += 1;
    });
    const chip = (name, number, pressed, flip, kind) => el("button", { "aria-pressed": pressed, "data-tone": kind, onclick: () => { flip(); this.filter(); } }, `${name} ${count(number)}`);
    const chips = [...tally].sort().map(([verdict, number]) => chip(verdictWords(verdict), number, this.wanted.has(verdict),
      () => (this.wanted.has(verdict) ? this.wanted.delete(verdict) : this.wanted.add(verdict)), tone(verdict)));
    if (failed) chips.push(chip("failed calls", failed, this.onlyFailed, () => { this.onlyFailed = !this.onlyFailed; }));
    if (this.problem !== null) chips.push(chip(`${this.problem} ×`, this.shown.length, true, () => { this.problem = null; }));
    this.chips.replaceChildren(...chips);
  }

  filter() {
    const { rows } = this;
    this.mine ??= rows.section.flatMap((section, at) => (section === this.section ? [at] : []));
    const fits = (at) => {
      const problem = this.index.problems[rows.problem[at]];
      return (!this.wanted.size || this.wanted.has(rows.verdict[at])) && (!this.onlyFailed || rows.failed[at] > 0)
        && (this.problem === null || problem.id === this.problem)
        && (!this.words || problem.id.toLowerCase().includes(this.words) || problem.text.toLowerCase().includes(this.words));
    };
    this.shown = this.mine.filter(fits);
    const by = { tokens: (a, b) => rows.tokens[b] - rows.tokens[a], shortest: (a, b) => rows.tokens[a] - rows.tokens[b], calls: (a, b) => rows.calls[b] - rows.calls[a],
      failed: (a, b) => rows.failed[b] - rows.failed[a], problem: (a, b) => rows.problem[a] - rows.problem[b] || rows.sample[a] - rows.sample[b] }[this.sort];
    if (by) this.shown.sort(by);
    this.room.style.height = `${this.shown.length * ROW}px`;
    this.list.scrollTop = 0;
    this.counter.textContent = `${count(this.shown.length)} of ${count(this.mine.length)} traces`;
    this.drawChips();
    this.draw();
    if (!this.shown.includes(this.current)) this.open(this.shown[0]);
  }

  draw() {
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 4);
    const last = Math.min(this.shown.length, Math.ceil((this.list.scrollTop + this.list.clientHeight) / ROW) + 4);
    const drawn = [];
    for (let place = first; place < last; place += 1) drawn.push(this.drawRow(this.shown[place], place));
    this.room.replaceChildren(...drawn);
  }

  drawRow(at, place) {
    const { rows } = this, problem = this.index.problems[rows.problem[at]];
    const failed = rows.failed[at] ? el("span", { class: "bad" }, ` (${rows.failed[at]} failed)`) : null;
    return el("button", { class: "row", role: "listitem", style: `top:${place * ROW}px`, "data-tone": tone(rows.verdict[at]), "aria-current": at === this.current, title: verdictWords(rows.verdict[at]), onclick: () => this.open(at) },
      el("span", { class: "dot" }),
      el("span", { class: "what" }, `${problem.id} · ${rows.sample[at] + 1}`, el("small", {}, rows.extracted[at] ? `answer ${rows.extracted[at]}` : verdictWords(rows.verdict[at]))),
      el("span", { class: "nums" }, `${count(rows.tokens[at])} tok`, el("small", {}, `${rows.calls[at]} call${rows.calls[at] === 1 ? "" : "s"}`, failed)));
  }

  key(event) {
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const place = Math.min(this.shown.length - 1, Math.max(0, this.shown.indexOf(this.current) + step));
    this.open(this.shown[place]);
    this.bringIntoSight();
  }

  bringIntoSight() {
    const top = this.shown.indexOf(this.current) * ROW;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    if (top + ROW > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW - this.list.clientHeight;
  }

  pick(id) {
    this.problem = id;
    this.words = this.search.value = "";
    this.filter();
    this.node.scrollIntoView({ behavior: "smooth" });
  }

  async chunk(number) {
    const kept = this.chunks.get(number) ?? unpack(`chunk-${number}`);
    this.chunks.delete(number);
    this.chunks.set(number, kept);
    if (this.chunks.size > KEPT_CHUNKS) this.chunks.delete(this.chunks.keys().next().value);
    return kept;
  }

  async open(at) {
    this.current = at ?? null;
    this.draw();
    if (at === undefined) {
      this.pane.replaceChildren(el("p", { class: "muted" }, this.mine.length ? "No trace fits the filter." : "This run has no traces yet."));
      return;
    }
    const detail = (await this.chunk(this.rows.chunk[at]))[this.rows.place[at]];
    if (this.current !== at) return;
    history.replaceState(null, "", `#${[this.section, this.index.problems[this.rows.problem[at]].id, this.rows.sample[at]].map(encodeURIComponent).join("/")}`);
    this.pane.replaceChildren(...this.drawTrace(at, detail));
    this.pane.scrollTop = 0;
  }

  drawTrace(at, detail) {
    const { rows } = this, problem = this.index.problems[rows.problem[at]], verdict = rows.verdict[at];
    const ends = { answer: "", max_turns: " · ended by the turn limit", max_tokens: " · ended by the token limit" }[rows.finish[at]];
    const head = el("div", { class: "verdict", "data-tone": tone(verdict) }, el("strong", {}, verdictWords(verdict)),
      el("span", { class: "pair" }, "answer ", el("code", {}, detail.extracted ?? "none"), "  gold ", el("code", {}, problem.gold ?? "none"), detail.rule ? el("span", { class: "muted" }, `  decided by ${detail.rule}`) : null),
      el("span", { class: "facts" }, `${count(rows.tokens[at])} tokens · ${detail.turns.length} turn${detail.turns.length === 1 ? "" : "s"} · ${rows.calls[at]} calls · ${seconds(detail.wall_s)}${ends}`));
    const nodes = [head, el("p", { class: "muted", style: "margin:18px 0 0;font-size:12.5px" }, `${problem.id}, sample ${rows.sample[at] + 1}`), el("div", { class: "problem" }, problem.text)];
    detail.turns.forEach((turn, number) => {
      nodes.push(el("div", { class: "turn" }, `turn ${number + 1} · ${count(turn.tokens)} tokens`));
      for (const part of turn.parts) nodes.push(...drawPart(part, verdict));
    });
    return nodes;
  }
}

function drawPart(part, verdict) {
  if (part.kind === "call") return drawCall(part);
  const label = { thought: "thought", text: "text", answer: "answer" }[part.kind];
  return [el("div", { class: `part ${part.kind}`, "data-tone": tone(verdict) }, el("div", { class: "label" }, label), el("div", { class: "body" }, part.text))];
}

function drawCall(part) {
  const ok = part.status === "ok", lost = part.status === "lost" || part.status === "not run";
  const code = el("pre");
  code.append(...highlighted(part.code));
  const drawn = [el("div", { class: "part code" }, el("div", { class: "label" }, "python"), code)];
  if (part.input) drawn[0].append(el("div", { class: "label" }, "standard input"), el("pre", {}, part.input));
  drawn.push(el("div", { class: `part result ${ok || lost ? "" : "failed"}`, "data-tone": ok ? "correct" : lost ? "none" : "wrong", "data-status": part.status },
    el("div", { class: "label" }, ok ? "result" : part.status.replaceAll("_", " "), el("span", {}, part.wall_s ? seconds(part.wall_s) : "")),
    el("pre", {}, part.output || (lost ? "the rollout ended before it ran" : ""))));
  return drawn;
}

const PYTHON = /(#[^\n]*)|("""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|[rbfRBF]{0,2}(?:"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))|\b(\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?j?)\b|\b(and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|True|False|try|while|with|yield)\b|\b([A-Za-z_]\w*)(?=\()/g;
const PAINT = ["com", "str", "num", "kw", "fn"];

function highlighted(code) {
  const pieces = [];
  let last = 0;
  for (const match of code.matchAll(PYTHON)) {
    pieces.push(code.slice(last, match.index), el("span", { class: PAINT[match.slice(1).findIndex((group) => group !== undefined)] }, match[0]));
    last = match.index + match[0].length;
  }
  pieces.push(code.slice(last));
  return pieces;
}
