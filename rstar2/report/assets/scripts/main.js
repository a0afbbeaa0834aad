// The whole page: head, curves, one tab per benchmark, configuration.
//
// The page has two values. `index` is described in viewer.js. `about` is {title, kind, models, config, summary,
// charts, training, analysis, card, paper, sections}. `config` and `summary` are config.json and summary.json of the
// run, `charts` are for linePlot, and `paper` has the rows of paperPanels. `training` has the measurements of training
// steps, `analysis` the result of `rstar2 analyze`, and `card` the data card of prepared data; each may be null. A
// section is a benchmark's results.json with its `name` and `quoted` (the number to quote, {label, value, interval},
// or null). Or it is {name, folder} for a stage of training that stored rollouts in a folder.

/** The nodes of a section, and its viewer. */
function sectionPage(section, number, index) {
  const viewer = new Viewer(index, number);
  return { viewer, nodes: section.folder ? trainingNodes(section, viewer) : benchmarkNodes(section, viewer) };
}

/** The data of a section's plots: [{value, verdict}] from a column of the index. */
function columnOf(viewer, name) {
  const { rows, traces } = viewer;
  return traces.map((trace) => ({ value: rows[name][trace], verdict: rows.verdict[trace] }));
}

function trainingNodes(section, viewer) {
  const text =
    "A selection of training rollouts: the first few of each step, and some that the engine could not " +
    `finish. All stored rollouts are in ${section.folder}. This selection is no measurement.`;
  return [
    element("p", { class: "muted" }, text),
    element(
      "div",
      { class: "plots" },
      lengthPlot(columnOf(viewer, "tokens")),
      toolCallPlot(columnOf(viewer, "calls")),
    ),
    viewer.node,
  ];
}

function benchmarkNodes(section, viewer) {
  const onPick = (problemId) => viewer.pick(problemId);
  const plots = () =>
    element(
      "div",
      { class: "plots" },
      accuracyPlot(section.per_problem, onPick),
      lengthPlot(columnOf(viewer, "tokens")),
      toolCallPlot(columnOf(viewer, "calls")),
    );
  const { settings = {}, model = {}, versions = {}, judge = {}, timing = {} } = section;
  const nodes = [
    section.complete ? null : incompleteNote(section),
    summaryCards(section.summary, section.quoted),
    scoresPanel(section.name, section.summary.scores),
    viewer.traces.length ? plots() : null,
    viewer.node,
    problemTable(section.per_problem, onPick),
    settingsFold("Settings, versions and timing", { settings, model, versions, judge, timing }),
  ];
  return nodes.filter(Boolean);
}

function incompleteNote(section) {
  const missing = section.missing === undefined ? "" : `${formatCount(section.missing)} samples are missing`;
  return element("p", {}, element("span", { class: "badge warn" }, "not complete"), ` ${missing}`);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function drawHeader(about) {
  const toggle = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  byId("top").append(
    element("h1", {}, about.title),
    element("span", { class: "badge" }, about.kind),
    element("span", { class: "muted model" }, about.models.join(", ")),
    element("button", { id: "theme", onclick: toggle }, "light / dark"),
  );
}

/** Shows one section at a time. If there are several, they have tabs. */
class Sections {
  constructor(sections, index) {
    this.sections = sections;
    this.index = index;
    this.body = element("div");
    this.tabs = element("div", { class: "tabs", role: "tablist" });
    this.viewer = null;
    if (sections.length > 1) {
      this.tabs.append(...sections.map((section, number) => {
        const value = section.quoted ? element("small", {}, formatShare(section.quoted.value)) : null;
        return element("button", { role: "tab", onclick: () => this.show(number) }, section.name, value);
      }));
    }
  }

  show(number) {
    this.viewer?.stop();
    const { viewer, nodes } = sectionPage(this.sections[number], number, this.index);
    this.viewer = viewer;
    [...this.tabs.children].forEach((tab, at) => tab.setAttribute("aria-selected", at === number));
    this.body.replaceChildren(...nodes);
    viewer.drawList();
  }

  /** Opens the trace of an address "#section/problem/sample", which Viewer.open writes. */
  async showAddress(hash) {
    const [section, problem, sample, step] = addressParts(hash);
    this.show(this.sections[+section] ? +section : 0);
    const trace = this.sections[+section] ? this.viewer.find(problem, +sample, step) : undefined;
    if (trace === undefined) return;
    await this.viewer.open(trace);
    this.viewer.scrollToCurrent();
  }
}

/** The parts of an address "#a/b". Empty if it is malformed. */
function addressParts(hash) {
  try {
    return hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    return [];
  }
}

async function start() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const [about, index] = await Promise.all([unpack("about"), unpack("index")]);
  drawHeader(about);
  const sections = new Sections(about.sections, index);
  const page = [
    ...phasePanels(about.summary),
    ...dataCardPanels(about.card),
    about.chosen ? element("p", {}, about.chosen) : null,
    about.charts.length ? element("div", { class: "plots small" }, about.charts.map(linePlot)) : null,
    ...stepPanels(about.training),
    ...analysisPanels(about.analysis),
    ...paperPanels(about.paper),
    sections.tabs,
    sections.body,
    settingsFold(about.card ? "Settings" : "Configuration of the run", about.config),
  ];
  byId("page").append(...page.filter(Boolean));
  if (about.sections.length) {
    await sections.showAddress(location.hash);
    globalThis.addEventListener("hashchange", () => sections.showAddress(location.hash));
    document.addEventListener("keydown", (event) => {
      const isTyping = /INPUT|SELECT/.test(event.target.tagName);
      if (!isTyping && (event.key === "j" || event.key === "k")) sections.viewer.onKey(event);
    });
  }
  document.body.dataset.ready = "yes";
}

start();
