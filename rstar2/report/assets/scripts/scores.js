// A benchmark's own scores, such as BFCL's categories, and the paper's numbers beside a run's.

const formatInterval = ([low, high]) => `${formatShare(low)} – ${formatShare(high)}`;
/** A difference of shares in percentage points. */
const formatPoints = (value) => `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(1)}`;

/** A panel with a table and a link that saves it: heads [column], rows [[node or text]], data {columns, rows}. */
function tablePanel(title, heads, rows, data) {
  const cells = rows.map((row) => element("tr", {}, row.map((each) => element("td", {}, each))));
  return element(
    "section",
    { class: "panel scroll scores" },
    panelHead(title, csvLink({ name: title, ...data })),
    element("table", {}, tableParts(heads.map((head) => element("th", {}, head)), cells)),
  );
}

/** A panel with the scores of a summary, {score: {value, interval, problems}}. Null without scores. */
function scoresPanel(name, scores) {
  const entries = Object.entries(scores ?? {});
  if (!entries.length) return null;
  const rows = entries.map(([label, { value, interval, problems }]) => [
    label,
    formatShare(value),
    intervalMark(interval, value),
    formatInterval(interval),
    formatCount(problems),
  ]);
  const data = {
    columns: ["score", "value", "low", "high", "problems"],
    rows: entries.map(([label, { value, interval, problems }]) => [label, value, ...interval, problems]),
  };
  return tablePanel(`Scores of ${name}`, ["score", "value", "0 to 100 %", "95 %", "problems"], rows, data);
}

/** A mark for an interval and its value, on a line from 0 to 1. */
function intervalMark([low, high], value) {
  return element("i", { class: "mark", style: intervalStyle(low, high, value) });
}

/** The table "paper | this run", from the rows of `_beside_paper` in page.py. Empty without rows. */
function paperPanels(rows) {
  if (!rows.length) return [];
  const heads = ["benchmark", "paper", "this run", "95 %", "difference", "95 %"];
  const cells = rows.map(({ name, paper, run, difference }) => {
    if (!run) return [name, formatShare(paper), "–", "–", "–", "–"];
    const [value, low, high] = difference.map(formatPoints);
    return [
      name,
      formatShare(paper),
      formatShare(run.value),
      formatInterval(run.interval),
      value,
      `[${low}, ${high}]`,
    ];
  });
  const data = {
    columns: ["benchmark", "paper", "run", "low", "high", "difference", "difference low", "difference high"],
    rows: rows.map(({ name, paper, run, difference }) =>
      run ? [name, paper, run.value, ...run.interval, ...difference] : [name, paper]
    ),
  };
  return [tablePanel("The paper's numbers beside this run's", heads, cells, data)];
}
