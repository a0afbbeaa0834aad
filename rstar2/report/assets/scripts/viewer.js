// The trace viewer: a list of traces, of which only visible rows are drawn, and one open trace.

const ROW_HEIGHT = 46;
/** Number of rows that are drawn above and below the visible ones. */
const EXTRA_ROWS = 4;
const KEPT_CHUNKS = 6;

const ORDER_NAMES = {
  order: "in the order they finished",
  problem: "by problem and sample",
  tokens: "longest first",
  shortest: "shortest first",
  calls: "most calls first",
  failed: "most failed calls first",
};

/**
 * A trace is identified by its place in the columns of the index.
 * index: {problems: [{id, text, gold}], rows: {section, problem, sample, verdict, tokens, calls, failed, finish,
 * extracted, chunk, place, step}}. Each of `rows` is a column with one value per trace of the run. A step is null
 * outside of training.
 */
class Viewer {
  /** section: the number of the benchmark whose traces are listed. */
  constructor(index, section) {
    this.index = index;
    this.rows = index.rows;
    this.section = section;
    this.traces = this.rows.section.flatMap((number, trace) => (number === section ? [trace] : []));
    this.filters = { verdicts: new Set(), failedCalls: false, words: "", problem: null };
    this.order = "order";
    this.chunks = new Map();
    this.problemTexts = index.problems.map(({ id, text }) => `${id}\n${sourceText(text)}`.toLowerCase());
    /** The search for the filter's words in the texts of traces. Null without words. */
    this.textSearch = null;
    this.listed = [];
    this.current = null;
    this.build();
    this.applyFilters();
  }

  build() {
    const onSearch = () => {
      this.filters.problem = null;
      this.searchFor(this.search.value);
    };
    const placeholder = "words in problems, thoughts, code, output";
    this.search = element("input", {
      type: "search",
      placeholder,
      "aria-label": "search",
      oninput: onSearch,
    });
    const onOrder = (event) => {
      this.order = event.target.value;
      this.applyFilters();
    };
    const isTraining = this.rows.step[this.traces[0]] != null;
    const names = { ...ORDER_NAMES, ...(isTraining ? { order: "by training step" } : {}) };
    const options = Object.entries(names).map(([value, name]) => element("option", { value }, name));
    const order = element("select", { "aria-label": "order", onchange: onOrder }, options);
    this.chips = element("div", { class: "chips" });
    this.spacer = element("div", { class: "spacer" });
    const listeners = { onscroll: () => this.drawList(), onkeydown: (event) => this.onKey(event) };
    this.list = element("div", { class: "list", role: "list", tabindex: 0, ...listeners }, this.spacer);
    this.counter = element("span");
    this.pane = element("article", { class: "trace", tabindex: -1 });
    const keys = element("span", {}, element("kbd", {}, "j"), " ", element("kbd", {}, "k"));
    const side = element(
      "div",
      { class: "side" },
      element("div", { class: "filters" }, this.search, order, this.chips),
      this.list,
      element("div", { class: "count" }, this.counter, keys),
    );
    this.node = element("section", { class: "panel viewer", id: "viewer" }, side, this.pane);
    new ResizeObserver(() => this.drawList()).observe(this.list);
  }

  /** The filter buttons: one per verdict, one for failed calls, and one for the selected problem. */
  drawChips() {
    const { filters, rows } = this;
    const tally = new Map();
    for (const trace of this.traces) {
      const verdict = rows.verdict[trace];
      tally.set(verdict, (tally.get(verdict) ?? 0) + 1);
    }
    const chips = [...tally].sort().map(([verdict, number]) => {
      const pressed = filters.verdicts.has(verdict);
      const toggle = () => (pressed ? filters.verdicts.delete(verdict) : filters.verdicts.add(verdict));
      return this.chip(verdict, number, pressed, toggle, verdictTone(verdict));
    });
    const failed = this.traces.filter((trace) => rows.failed[trace]).length;
    if (failed) {
      const toggle = () => (filters.failedCalls = !filters.failedCalls);
      chips.push(this.chip("failed calls", failed, filters.failedCalls, toggle));
    }
    if (filters.problem !== null) {
      const clear = () => (filters.problem = null);
      chips.push(this.chip(`${filters.problem} ×`, this.listed.length, true, clear));
    }
    this.chips.replaceChildren(...chips);
  }

  chip(name, number, pressed, toggle, tone) {
    const onclick = () => {
      toggle();
      this.applyFilters();
    };
    const attributes = { "aria-pressed": pressed, "data-tone": tone, onclick };
    return element("button", attributes, `${name} ${formatCount(number)}`);
  }

  /** Lists the traces with these words: immediately if the problem has them, otherwise when the search finds them. */
  searchFor(typed) {
    const words = typed.trim().toLowerCase();
    this.stop();
    this.filters.words = words;
    this.textSearch = words ? new TextSearch(this.traces, this.rows, words) : null;
    this.applyFilters();
    this.textSearch?.run(() => this.fillList());
  }

  /** Ends a running search. */
  stop() {
    this.textSearch?.stop();
  }

  fits(trace) {
    const { verdicts, failedCalls, words, problem: picked } = this.filters;
    return (!verdicts.size || verdicts.has(this.rows.verdict[trace])) &&
      (!failedCalls || this.rows.failed[trace] > 0) &&
      (picked === null || this.problemOf(trace).id === picked) &&
      (this.problemTexts[this.rows.problem[trace]].includes(words) || this.textSearch.found.has(trace));
  }

  compare(a, b) {
    const { tokens, calls, failed, problem, sample } = this.rows;
    switch (this.order) {
      case "problem":
        return problem[a] - problem[b] || sample[a] - sample[b];
      case "tokens":
        return tokens[b] - tokens[a];
      case "shortest":
        return tokens[a] - tokens[b];
      case "calls":
        return calls[b] - calls[a];
      case "failed":
        return failed[b] - failed[a];
      default:
        return a - b;
    }
  }

  applyFilters() {
    this.list.scrollTop = 0;
    this.fillList();
  }

  /** Lists the traces that pass the filter, without scrolling. */
  fillList() {
    this.listed = this.traces.filter((trace) => this.fits(trace)).sort((a, b) => this.compare(a, b));
    this.spacer.style.height = `${this.listed.length * ROW_HEIGHT}px`;
    const total = formatCount(this.traces.length);
    const searching = this.textSearch?.isRunning
      ? ` · searched ${formatCount(this.textSearch.searched)} …`
      : "";
    this.counter.textContent = `${formatCount(this.listed.length)} of ${total} traces${searching}`;
    this.drawChips();
    this.drawList();
    if (!this.listed.includes(this.current)) this.open(this.listed[0]);
  }

  drawList() {
    const { scrollTop, clientHeight } = this.list;
    const first = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - EXTRA_ROWS);
    const end = Math.ceil((scrollTop + clientHeight) / ROW_HEIGHT) + EXTRA_ROWS;
    const nodes = this.listed.slice(first, end).map((trace, number) => this.rowNode(trace, first + number));
    this.spacer.replaceChildren(...nodes);
  }

  rowNode(trace, place) {
    const row = this.row(trace);
    const verdict = row.verdict;
    const answer = row.extracted ? `answer ${row.extracted}` : verdict;
    const failed = row.failed ? element("span", { class: "bad" }, ` (${row.failed} failed)`) : null;
    return element(
      "button",
      {
        class: "row",
        role: "listitem",
        style: `top:${place * ROW_HEIGHT}px`,
        "data-tone": verdictTone(row.verdict),
        "aria-current": trace === this.current,
        title: verdict,
        onclick: () => this.open(trace),
      },
      element("span", { class: "dot" }),
      element(
        "span",
        { class: "what" },
        `${row.step === null ? "" : `step ${row.step} · `}${row.problem.id} · ${row.sample + 1}`,
        element("small", {}, answer),
      ),
      element(
        "span",
        { class: "nums" },
        `${formatCount(row.tokens)} tok`,
        element("small", {}, plural(row.calls, "call"), failed),
      ),
    );
  }

  onKey(event) {
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const place = this.listed.indexOf(this.current) + step;
    this.open(this.listed[Math.min(this.listed.length - 1, Math.max(0, place))]);
    this.scrollToCurrent();
  }

  scrollToCurrent() {
    const { list } = this;
    const top = this.listed.indexOf(this.current) * ROW_HEIGHT;
    const bottom = top + ROW_HEIGHT;
    if (top < list.scrollTop) list.scrollTop = top;
    if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
  }

  /** Lists one problem's traces. */
  pick(problemId) {
    this.filters.problem = problemId;
    this.search.value = "";
    this.searchFor("");
    this.node.scrollIntoView({ behavior: "smooth" });
  }

  /** Opens a trace and writes its address. Undefined clears the pane. */
  async open(trace) {
    this.current = trace ?? null;
    this.drawList();
    if (trace === undefined) {
      const none = this.textSearch?.isRunning ? "Searching …" : "No trace fits the filter.";
      const reason = this.traces.length ? none : "This run has no traces yet.";
      this.pane.replaceChildren(element("p", { class: "muted" }, reason));
      return;
    }
    const row = this.row(trace);
    const detail = (await this.chunk(row.chunk))[row.place];
    if (this.current !== trace) return;
    const step = row.step === null ? [] : [row.step];
    const address = [this.section, row.problem.id, row.sample, ...step].map(encodeURIComponent).join("/");
    history.replaceState(null, "", `#${address}`);
    this.pane.replaceChildren(...traceNodes(row, detail));
    this.pane.scrollTop = 0;
  }

  /** A chunk of details, [detail]. The last used chunks are cached. */
  chunk(number) {
    const chunk = this.chunks.get(number) ?? unpack(`chunk-${number}`);
    this.chunks.delete(number);
    this.chunks.set(number, chunk);
    if (this.chunks.size > KEPT_CHUNKS) this.chunks.delete(this.chunks.keys().next().value);
    return chunk;
  }

  problemOf(trace) {
    return this.index.problems[this.rows.problem[trace]];
  }

  /** A trace's values of all columns. The problem replaces the problem's number. */
  row(trace) {
    const values = Object.entries(this.rows).map(([name, column]) => [name, column[trace]]);
    return { ...Object.fromEntries(values), problem: this.problemOf(trace) };
  }

  /** The trace of an address with problem, sample and, in training, step. Undefined if there is none. */
  find(problemId, sample, step) {
    return this.traces.find((trace) =>
      this.problemOf(trace).id === problemId && this.rows.sample[trace] === sample &&
      (step === undefined || this.rows.step[trace] === +step)
    );
  }
}
