// The whole page: head, curves, one tab per benchmark, configuration.
//
// The page carries two values. `index` is described in viewer.js. `about` is {title, kind, config, summary, charts,
// sections}: config.json and summary.json of the run, the charts of linePlot, and one section per benchmark, which
// is its results.json with its `name`.

/** A benchmark's nodes and its viewer. */
function sectionPage(section, number, index) {
  const viewer = new Viewer(index, number);
  const onPick = (problemId) => viewer.pick(problemId);
  const column = (name) =>
    viewer.traces.map((trace) => ({ value: index.rows[name][trace], verdict: index.rows.verdict[trace] }));
  const plots = () =>
    element(
      "div",
      { class: "plots" },
      accuracyPlot(section.per_problem, onPick),
      lengthPlot(column("tokens")),
      toolCallPlot(column("calls")),
    );
  const { settings = {}, model = {}, versions = {}, judge = {}, timing = {} } = section;
  const nodes = [
    section.complete ? null : incompleteNote(section),
    summaryCards(section.summary),
    viewer.traces.length ? plots() : null,
    viewer.node,
    problemTable(section.per_problem, onPick),
    settingsFold("Settings, versions and timing", { settings, model, versions, judge, timing }),
  ];
  return { viewer, nodes: nodes.filter(Boolean) };
}

function incompleteNote(section) {
  const missing = section.missing === undefined ? "" : `${formatCount(section.missing)} samples are missing`;
  return element("p", {}, element("span", { class: "badge warn" }, "not complete"), ` ${missing}`);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function drawHeader(about) {
  const models = [...new Set(about.sections.map((section) => section.model?.name).filter(Boolean))];
  const toggle = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  byId("top").append(
    element("h1", {}, about.title),
    element("span", { class: "badge" }, about.kind),
    element("span", { class: "muted" }, models.join(", ")),
    element("button", { id: "theme", onclick: toggle }, "light / dark"),
  );
}

/** One benchmark's page at a time, with tabs where there are more. */
class Sections {
  constructor(sections, index) {
    this.sections = sections;
    this.index = index;
    this.body = element("div");
    this.tabs = element("div", { class: "tabs", role: "tablist" });
    this.viewer = null;
    if (sections.length > 1) {
      this.tabs.append(...sections.map((section, number) => {
        const accuracy = element("small", {}, formatShare(section.summary.accuracy));
        return element("button", { role: "tab", onclick: () => this.show(number) }, section.name, accuracy);
      }));
    }
  }

  show(number) {
    const { viewer, nodes } = sectionPage(this.sections[number], number, this.index);
    this.viewer = viewer;
    [...this.tabs.children].forEach((tab, at) => tab.setAttribute("aria-selected", at === number));
    this.body.replaceChildren(...nodes);
    viewer.drawList();
  }

  /** Shows what an address "#section/problem/sample" names, as Viewer.open writes it. */
  async showAddress(hash) {
    const [section, problem, sample] = hash.slice(1).split("/").map(decodeURIComponent);
    this.show(this.sections[+section] ? +section : 0);
    const trace = this.sections[+section] ? this.viewer.find(problem, +sample) : undefined;
    if (trace === undefined) return;
    await this.viewer.open(trace);
    this.viewer.scrollToCurrent();
  }
}

async function start() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const [about, index] = await Promise.all([unpack("about"), unpack("index")]);
  drawHeader(about);
  const sections = new Sections(about.sections, index);
  const page = [
    ...phasePanels(about.summary),
    about.charts.length ? element("div", { class: "plots small" }, about.charts.map(linePlot)) : null,
    sections.tabs,
    sections.body,
    settingsFold("Configuration of the run", about.config),
  ];
  byId("page").append(...page.filter(Boolean));
  if (about.sections.length) {
    await sections.showAddress(location.hash);
    document.addEventListener("keydown", (event) => {
      const isTyping = /INPUT|SELECT/.test(event.target.tagName);
      if (!isTyping && (event.key === "j" || event.key === "k")) sections.viewer.onKey(event);
    });
  }
  document.body.dataset.ready = "yes";
}

start();
