// The page: head, one tab a benchmark, numbers, plots, traces.
function card(value, label, hint) {
  const node = el("div", { class: "card" }, el("b", {}, value), el("span", {}, label));
  return hint ? tipped(node, hint) : node;
}

function range(label, bounds, at) {
  const [low, high] = bounds;
  return el("div", { class: "range" }, label, el("i", { style: `--low:${100 * low}%;--high:${100 * high}%;--at:${100 * at}%` }), el("em", {}, `${(100 * low).toFixed(1)} – ${(100 * high).toFixed(1)}`));
}

function cards(summary) {
  if (!summary.samples) return el("p", { class: "muted" }, "No sample has finished yet.");
  const best = Object.entries(summary["pass@k"] ?? {}).filter(([k]) => k !== "1").at(-1);
  const main = el("div", { class: "card main" }, el("div", {}, el("span", {}, `avg@${summary.n}, ${count(summary.problems)} problems × ${summary.n} samples`),
    el("b", {}, (100 * summary.accuracy).toFixed(1), el("small", {}, " %"))),
  el("div", {}, tipped(range("problems like these", summary.interval_clustered, summary.accuracy), "95 % interval, clustered by problem: where the average over all problems like these lies. Compare models with this one."),
    tipped(range("run to run", summary.interval_run_to_run, summary.accuracy), "95 % interval, run to run: how far the average on these same problems moves when they are sampled again.")));
  return el("div", { class: "cards" }, main,
    best ? card(percent(best[1]), `pass@${best[0]}`, "the unbiased chance that one of so many samples is right") : null,
    summary.n > 1 ? card(percent(summary["maj@n"]), `maj@${summary.n}`, "the share of problems whose most frequent answer is right") : null,
    card(count(summary.mean_tokens), "mean tokens"), card(count(summary.p95_tokens), "95th percentile tokens"),
    card(fixed(summary.calls_per_trace), "tool calls a trace"),
    card(percent(summary.failed_call_ratio), "failed calls"), card(percent(summary.failed_call_ratio_correct), "failed calls in correct traces"),
    card(percent(summary.no_answer_share), "no answer"), card(percent(summary.truncated_share), "truncated", "ended by the token or turn limit"),
    card(percent(summary.could_not_verify_share), "could not verify", "an answer that the grader could not decide; it is not counted as correct, and not as known to be wrong"),
    summary.lost_calls ? card(count(summary.lost_calls), "calls the judge lost") : null);
}

function problemTable(problems, onPick) {
  const heads = ["problem", "correct", "mean tokens", "calls", "no answer", "truncated", "not verified"];
  const row = (problem) => el("tr", { tabindex: 0, onclick: () => onPick(problem.id), onkeydown: (event) => { if (event.key === "Enter") onPick(problem.id); } },
    el("td", {}, problem.id), el("td", {}, el("span", { class: "meter" }, el("i", { style: `width:${100 * problem.accuracy}%` })), `${problem.correct}/${problem.samples}`),
    [count(problem.mean_tokens), fixed(problem.calls_per_trace, 1), problem.no_answer, problem.truncated, problem.could_not_verify].map((cell) => el("td", {}, `${cell}`)), el("td", { class: "left" }, problem.gold ?? ""));
  return el("details", { class: "panel" }, el("summary", {}, `Table of ${count(problems.length)} problems`),
    el("div", {}, el("table", {}, el("thead", {}, el("tr", {}, heads.map((name) => el("th", {}, name)), el("th", { class: "left" }, "gold"))), el("tbody", {}, problems.map(row)))));
}

function flat(value, prefix = "") {
  if (value === null || typeof value !== "object") return [[prefix, `${value}`]];
  if (Array.isArray(value)) return [[prefix, value.map((item) => (typeof item === "object" ? JSON.stringify(item) : item)).join(", ")]];
  return Object.entries(value).flatMap(([key, inner]) => flat(inner, prefix ? `${prefix}.${key}` : key));
}

function facts(title, value) {
  const pairs = flat(value);
  return pairs.length ? el("details", { class: "panel" }, el("summary", {}, title), el("div", {}, el("dl", {}, pairs.map(([key, text]) => [el("dt", {}, key), el("dd", {}, text)])))) : null;
}

function sectionPage(section, number, index) {
  const mine = index.rows.section.flatMap((part, at) => (part === number ? [at] : []));
  const rows = (column) => mine.map((at) => ({ value: index.rows[column][at], verdict: index.rows.verdict[at] }));
  const viewer = new Viewer(index, number);
  const onPick = (id) => viewer.pick(id);
  const plots = mine.length ? el("div", { class: "plots" }, accuracyPlot(section.per_problem, onPick), lengthPlot(rows("tokens")), toolPlot(rows("calls"))) : null;
  return { viewer, nodes: [section.complete ? null : el("p", {}, el("span", { class: "badge warn" }, "not complete"), ` ${section.missing === undefined ? "" : `${count(section.missing)} samples are missing`}`),
    cards(section.summary), plots, viewer.node, problemTable(section.per_problem, onPick),
    facts("Settings, versions and timing", { settings: section.settings ?? {}, model: section.model ?? {}, versions: section.versions ?? {}, judge: section.judge ?? {}, timing: section.timing ?? {} })].filter(Boolean) };
}

function phasePanels(summary) {
  const phases = summary?.phases ?? [];
  if (!phases.length) return [];
  const line = (key, title, unit) => linePlot({ title, unit, series: [{ name: title, points: phases.map((phase) => [phase.name, phase[key], ...(key === "accuracy" ? phase.interval ?? [] : [])]) }] });
  const heads = ["phase", "accuracy", "interval", "failed calls, correct traces", "calls a trace", "mean tokens", "wall"];
  const cells = (phase) => [phase.name, percent(phase.accuracy), phase.interval ? `${percent(phase.interval[0])} – ${percent(phase.interval[1])}` : "–", percent(phase.failed_call_ratio_correct), fixed(phase.calls_per_trace), count(phase.mean_tokens), seconds(phase.wall_s)];
  return [el("div", { class: "plots small" },
    el("section", { class: "panel wide" }, el("table", { class: "phases" }, el("thead", {}, el("tr", {}, heads.map((name) => el("th", {}, name)))), el("tbody", {}, phases.map((phase) => el("tr", {}, cells(phase).map((cell) => el("td", {}, cell))))))),
    line("accuracy", "Accuracy on held-out problems", "share"), line("failed_call_ratio_correct", "Failed calls inside correct traces", "share"), line("mean_tokens", "Mean tokens"))];
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function drawHead(about) {
  const models = [...new Set(about.sections.map((section) => section.model?.name).filter(Boolean))];
  const flip = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  $("top").append(el("h1", {}, about.title), el("span", { class: "badge" }, about.kind), el("span", { class: "muted" }, models.join(", ")), el("button", { id: "theme", onclick: flip }, "light / dark"));
}

async function start() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const [about, index] = await Promise.all([unpack("about"), unpack("index")]);
  drawHead(about);
  const tabs = el("div", { class: "tabs", role: "tablist" }), body = el("div");
  let viewer = null;
  const show = (number) => {
    const page = sectionPage(about.sections[number], number, index);
    viewer = page.viewer;
    [...tabs.children].forEach((tab, at) => tab.setAttribute("aria-selected", at === number));
    body.replaceChildren(...page.nodes);
    viewer.draw();
  };
  if (about.sections.length > 1) {
    tabs.append(...about.sections.map((section, at) => el("button", { role: "tab", onclick: () => show(at) }, section.name, el("small", {}, percent(section.summary.accuracy)))));
  }
  $("page").append(...phasePanels(about.summary), ...(about.charts.length ? [el("div", { class: "plots small" }, about.charts.map(linePlot))] : []), tabs, body,
    ...[facts("Configuration of the run", about.config)].filter(Boolean));
  if (about.sections.length) {
    const [section, problem, sample] = location.hash.slice(1).split("/").map(decodeURIComponent);
    show(about.sections[+section] ? +section : 0);
    const at = index.rows.section.findIndex((part, place) => part === +section && index.problems[index.rows.problem[place]].id === problem && index.rows.sample[place] === +sample);
    if (at >= 0) {
      await viewer.open(at);
      viewer.bringIntoSight();
    }
    document.addEventListener("keydown", (event) => { if (!/INPUT|SELECT/.test(event.target.tagName) && (event.key === "j" || event.key === "k")) viewer.key(event); });
  }
  document.body.dataset.ready = "yes";
}

start();
