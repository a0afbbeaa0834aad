// Results of `rstar2 analyze`: traces shaded by the entropy of their tokens, and the tables and curves of a run.

const MARK_NAMES = ["", "forking", "reflection"];
const SOURCE_NAMES = {
  model: "entropy",
  server: "entropy, at least",
  kept: "as sampled: −log p of the sampled token",
};

/** Whether traces are shaded. The choice applies to all traces. */
let shadesTraces = false;

/**
 * The switch for the shading of a trace, and the node that replaces the trace's parts while the switch is on.
 * @param detail as in traceNodes, with `shading` {source, entropy, characters, marks}. These are lists with one value
 *   per generated token; entropy is in hundredths of a nat. Each turn also has its `text`
 * @param parts the node that shows the trace unshaded
 */
function entropySwitch(detail, parts) {
  const shaded = element("div", { class: "shaded" });
  const button = element("button", { class: "shade" }, "shade by entropy");
  const show = () => {
    if (shadesTraces && !shaded.childNodes.length) shaded.append(...shadedNodes(detail));
    shaded.hidden = !shadesTraces;
    parts.hidden = shadesTraces;
    button.setAttribute("aria-pressed", shadesTraces);
  };
  button.addEventListener("click", () => {
    shadesTraces = !shadesTraces;
    show();
  });
  show();
  return [button, shaded];
}

function shadedNodes(detail) {
  const { source, entropy, characters, marks } = detail.shading;
  const marked = MARK_NAMES.slice(1).map((name) => element("span", { class: `token ${name}` }, name));
  const about = `darker is more uncertain (${SOURCE_NAMES[source]}); words among the top 20 % are marked: `;
  const nodes = [element("p", { class: "muted" }, about, marked[0], ", or soon after a reply ", marked[1])];
  let token = 0;
  detail.turns.forEach((turn, number) => {
    // Splits the text into code points, which Python counts as characters.
    const letters = Array.from(turn.text);
    let at = 0;
    const pieces = [];
    for (const end = token + turn.tokens; token < end; token += 1) {
      const text = letters.slice(at, at + characters[token]).join("");
      at += characters[token];
      if (text) pieces.push(tokenNode(text, entropy[token] / 100, MARK_NAMES[marks[token]]));
    }
    const results = turn.parts.filter((part) => part.kind === "call").map((part) => callNodes(part)[1]);
    nodes.push(
      element("div", { class: "turn" }, turnHead(turn, number)),
      element("div", { class: "part tokens" }, pieces),
      ...results,
    );
  });
  return nodes;
}

function tokenNode(text, nats, mark) {
  const style = `--level:${Math.round(100 * (1 - Math.exp(-nats)))}%`;
  return element("span", { class: `token ${mark}`, style, title: `${nats.toFixed(2)} nats ${mark}` }, text);
}

const STALE = " The run has other traces by now: start `rstar2 analyze` again, then `rstar2 report`.";

/**
 * The panel with a run's analysis, {tables: [{name, title, caption, columns, rows}], charts, stale}. Empty without an
 * analysis.
 */
function analysisPanels(analysis) {
  if (!analysis) return [];
  const charts = analysis.charts.map(plotWithUsual);
  const tables = analysis.tables.map((table) => {
    // Earlier versions of the command wrote no captions.
    const caption = table.caption ? element("p", { class: "muted" }, table.caption) : null;
    return fold(table.title, [caption, csvLink(table), tableOf(table)]);
  });
  const stale = element("p", {}, element("span", { class: "badge warn" }, "out of date"), STALE);
  const parts = [analysis.stale ? stale : null, element("div", { class: "plots small" }, charts), tables];
  const title = "Inside the traces: entropy, tool calls, behaviour";
  return [fold(`${title}${analysis.stale ? ", of earlier traces" : ""}`, parts)];
}

function tableOf({ columns, rows }) {
  const isShare = columns.map((name) => name.endsWith("share"));
  const heads = columns.map((name) => element("th", {}, name.replace(/ share$/, "")));
  const text = (value, place) => {
    if (typeof value === "string") return value;
    return isShare[place] ? formatShare(value) : isNumber(value) ? `${+value.toPrecision(4)}` : "–";
  };
  const lines = rows.map((row) =>
    element("tr", {}, row.map((value, place) => element("td", {}, text(value, place))))
  );
  return element("div", { class: "scroll" }, element("table", {}, tableParts(heads, lines)));
}
