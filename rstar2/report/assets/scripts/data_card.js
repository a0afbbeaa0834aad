// The data card of a prepared set: rows read, rows dropped with the reasons, and the result. `set` is card.json.

/** The nodes of a data card. Empty without a card. */
function dataCardPanels(set) {
  if (!set) return [];
  return [
    dataCounts(set),
    dataPanel("Sources", dataSources(set), dataNotes(set)),
    dataPanel("What was dropped, in order", dataSteps(set)),
    set.tokens.histogram ? tokenPlot(set.tokens, set.kind) : null,
    set.shared.length ? fold("Words that rows share with benchmarks", sharedWords(set.shared)) : null,
    set.examples.length ? fold("Examples of dropped rows", droppedExamples(set.examples)) : null,
  ].filter(Boolean);
}

const totalOf = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);
const listCounts = (counts) =>
  Object.entries(counts).map(([name, count]) => `${formatCount(count)} ${name}`).join(", ") || "–";

function dataPanel(title, ...content) {
  return element("section", { class: "panel data" }, element("h2", {}, title), content);
}

/** A table that scrolls if it is wider than the page. Cells are texts, the first one aligned left. */
function dataTable(heads, rows, textColumns) {
  const left = (at) => textColumns.includes(at) ? "left" : null;
  const head = heads.map((name, at) => element("th", { class: left(at) }, name));
  const body = rows.map((cells) =>
    element("tr", {}, cells.map((cell, at) => element("td", { class: left(at) }, cell)))
  );
  return element("div", { class: "scroll" }, element("table", {}, tableParts(head, body)));
}

function dataCounts(set) {
  const sources = Object.values(set.sources);
  const sum = (count) => sources.reduce((total, source) => total + count(source), 0);
  return element(
    "div",
    { class: "cards data" },
    card(formatCount(set.rows), set.kind),
    card(formatCount(sum((source) => source.read)), "rows read"),
    card(formatCount(sum((source) => totalOf(source.refused))), "refused"),
    card(formatCount(sum((source) => totalOf(source.dropped))), "dropped by filters"),
    card(formatCount(sum((source) => source.left - source.taken)), "left and not drawn"),
    set.tokens.histogram
      ? card(formatShare(set.tokens.over), `over ${formatCount(set.tokens.limit)} tokens`)
      : null,
  );
}

const SOURCE_HEADS = ["source", "family", "read", "refused", "left", "taken", "the paper", "licence"];

function dataSources(set) {
  const rows = Object.entries(set.sources).map(([name, source]) => [
    name,
    source.family,
    formatCount(source.read),
    listCounts(source.refused),
    formatCount(source.left),
    formatCount(source.taken),
    source.paper || "–",
    source.licence,
  ]);
  return dataTable(SOURCE_HEADS, rows, [0, 1, 3, 6, 7]);
}

function dataNotes(set) {
  const notes = Object.entries(set.sources).flatMap(([name, source]) => [
    ...(source.note ? [`${name}: ${source.note}`] : []),
    ...source.inputs.map((place) =>
      `${name}: ${place.file ?? place.hub}, SHA-256 ${place.sha256 ?? "not known"}`
    ),
  ]);
  if (!Object.keys(set.config.against).length) notes.push("Not checked against any benchmark.");
  notes.push(`data.parquet: SHA-256 ${set.sha256}`);
  return element("ul", { class: "muted" }, notes.map((note) => element("li", {}, note)));
}

function dataSteps(set) {
  const rows = set.steps.map((step) => [step.filter, formatCount(step.dropped), listCounts(step.by_source)]);
  return dataTable(["filter", "dropped", "by source"], rows, [0, 2]);
}

function sharedWords(shared) {
  const rows = shared.map((each) => [each.words, formatCount(each.rows), each.benchmark, each.benchmark_id]);
  return dataTable(["words", "rows", "benchmark", "problem"], rows, [0, 2, 3]);
}

function droppedExamples(examples) {
  return examples.map((each) => {
    const found = Object.entries(each.detail).map(([key, value]) =>
      `${key}: ${Array.isArray(value) ? value.join(" and ") : value}`
    );
    return element(
      "div",
      { class: "dropped" },
      element("p", {}, element("span", { class: "badge" }, each.reason), ` ${each.id ?? each.place}`),
      element("p", { class: "muted" }, found.join(", ")),
      each.text ? element("blockquote", {}, each.text) : null,
    );
  });
}

/** Bars with the number of rows by their number of tokens. */
function tokenPlot(tokens, kind) {
  const { height, left, top, bottom } = AREA;
  const most = Math.max(1, ...tokens.histogram.map(([, rows]) => rows));
  const y = (value) => bottom - (value / most) * (bottom - top);
  const draw = (canvas, width) => {
    drawYAxis(canvas, width, left, y, ticks(0, most, 4, true), formatShort);
    drawAxisNames(canvas, width, AREA, "tokens, at most", kind);
    const step = (width - left) / tokens.histogram.length;
    const labelEvery = Math.ceil(46 / step);
    tokens.histogram.forEach(([upTo, rows], number) => {
      const x = left + number * step;
      canvas.append(
        rectangle(x + 2, y(rows), Math.max(1, step - 4), bottom - y(rows), { fill: "var(--good)" }),
      );
      const hit = rectangle(x, top, step, bottom - top, { class: "hit" });
      canvas.append(withTooltip(hit, `up to ${formatCount(upTo)} tokens\n${formatCount(rows)} ${kind}`));
      if (number % labelEvery) return;
      const anchor = { x: x + step / 2, "text-anchor": "middle" };
      canvas.append(svgElement("text", { ...anchor, y: bottom + 16 }, formatShort(upTo)));
    });
  };
  const title = `Tokens by ${tokens.name}: mean ${formatCount(tokens.mean)}, longest ${
    formatCount(tokens.most)
  }`;
  const data = { columns: ["tokens, at most", kind], rows: tokens.histogram };
  return element("div", { class: "plots" }, plotPanel(title, height, draw, data, { wide: true }));
}
