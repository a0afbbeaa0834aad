// Plots and the table of a training run: its curves over the steps, and its phases.

const LINE_COLORS = [1, 2, 3, 4, 5, 6].map((number) => `var(--series-${number})`);

/**
 * Lines with points. A point with an interval has a bar.
 * @param chart {title, x, y, unit, marks: [[x, text]], series: [{name, points: [[x, y] or [x, y, low, high]]}]};
 *   `x` and `y` are the names of the axes. The x of a point is an integer or a word. The unit "share" is drawn in
 *   percent
 */
function linePlot(chart) {
  const height = 218;
  const labels = yLabels(chart);
  const legend = chart.series.length > 1
    ? chart.series.map((series, number) => [series.name, LINE_COLORS[number % LINE_COLORS.length]])
    : [];
  const draw = (canvas, width) => {
    const scales = lineScales(chart, width);
    drawYAxis(canvas, width, scales.left, scales.y, ticks(scales.low, scales.high, 4), labels);
    drawXAxis(canvas, scales);
    drawAxisNames(canvas, width, scales, chart.x, chart.y);
    drawMarks(canvas, width, chart.marks ?? [], scales);
    chart.series.forEach((series, number) => {
      drawLine(canvas, series, LINE_COLORS[number % LINE_COLORS.length], scales, (point) => {
        const interval = isNumber(point[2]) ? ` [${labels(point[2])}, ${labels(point[3])}]` : "";
        return `${series.name}\n${chart.x === "steps" ? "step" : chart.x} ${point[0]}: ${
          labels(point[1])
        }${interval}`;
      });
    });
  };
  const rows = chart.series.flatMap(({ name, points }) => points.map((point) => [name, ...point]));
  const data = { columns: ["line", chart.x, chart.y, "low", "high"], rows };
  return plotPanel(chart.title, height, draw, data, { legend });
}

const yLabels = (chart) => (value) =>
  chart.unit === "share" ? `${+(100 * value).toPrecision(3)} %` : formatShort(value);

const drawnPoints = (series) => series.points.filter((point) => isNumber(point[1]));

/**
 * The positions of values on a canvas of this width.
 * @returns {x, y: value → pixels; low, high: the ends of y; left, top, bottom: the axes; labelled: values on x}
 */
function lineScales(chart, width) {
  const points = chart.series.flatMap(drawnPoints);
  const isNamed = points.some((point) => typeof point[0] === "string");
  const names = isNamed ? [...new Set(points.map((point) => point[0]))] : [];
  const position = (value) => (isNamed ? names.indexOf(value) : value);
  const xs = points.map((point) => position(point[0]));
  const ys = points.flatMap((point) => point.slice(1).filter(isNumber));
  const low = Math.min(0, ...ys);
  const high = chart.unit === "share"
    ? Math.min(1, Math.max(0.01, ...ys) * 1.08)
    : Math.max(...ys, 1e-9) * 1.08;
  const left = 66, top = chart.marks?.length ? 22 : 8, bottom = 174, margin = isNamed ? 36 : 6;
  const first = Math.min(...xs);
  const span = Math.max(...xs) - first || 1;
  return {
    low,
    high,
    left,
    top,
    bottom,
    x: (value) => left + margin + ((position(value) - first) / span) * (width - left - 2 * margin),
    y: (value) => bottom - ((value - low) / (high - low)) * (bottom - top),
    labelled: isNamed ? names : ticks(first, Math.max(...xs), Math.max(2, Math.floor(width / 60)), true),
  };
}

function drawXAxis(canvas, { x, bottom, labelled }) {
  for (const value of labelled) {
    const text = typeof value === "string" ? value : formatShort(value);
    canvas.append(svgElement("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, text));
  }
}

/** Vertical lines with a text above, such as at the start of a stage. marks: [[x, text]] */
function drawMarks(canvas, width, marks, { x, top, bottom }) {
  marks.forEach(([value, text], number) => {
    const next = number + 1 < marks.length ? x(marks[number + 1][0]) : width;
    const at = x(value);
    const room = Math.floor((next - at) / 6.5);
    const shown = text.length <= room ? text : text.replace(/^\D+/, "");
    canvas.append(
      svgElement("line", { class: "mark", x1: at, x2: at, y1: top - 12, y2: bottom }),
      withTooltip(svgElement("text", { class: "mark", x: at + 4, y: top - 5 }, shown), `${text} begins`),
    );
  });
}

function drawLine(canvas, series, color, { x, y }, tooltip) {
  const points = drawnPoints(series);
  const path = points
    .map((point, number) => `${number ? "L" : "M"}${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`)
    .join("");
  const stroke = { stroke: color, "stroke-width": 2 };
  canvas.append(svgElement("path", { d: path, fill: "none", ...stroke, "stroke-linejoin": "round" }));
  for (const point of points) {
    const [cx, cy] = [x(point[0]), y(point[1])];
    if (isNumber(point[2])) {
      const ends = { x1: cx, x2: cx, y1: y(point[2]), y2: y(point[3]) };
      canvas.append(svgElement("line", { ...ends, ...stroke, opacity: 0.45 }));
    }
    const circle = svgElement("circle", { cx, cy, r: points.length > 24 ? 2.2 : 4, fill: color });
    canvas.append(withTooltip(circle, tooltip(point)));
  }
}

/**
 * Every measurement of the steps of training, {charts, alarms: [text], decisions: [text], columns, rows}. Empty without
 * a step.
 */
function stepPanels(training) {
  if (!training) return [];
  const alarms = training.alarms.map((text) =>
    element("p", { class: "alarm" }, element("span", { class: "badge warn" }, "alarm"), ` ${text}`)
  );
  const decisions = training.decisions.map((text) =>
    element("p", { class: "decision" }, element("span", { class: "badge" }, "decided"), ` ${text}`)
  );
  const panel = fold("Training, step by step", []);
  // The plots are many, so they are drawn only when the panel is opened.
  panel.addEventListener("toggle", () => panel.lastChild.append(...stepPlots(training)), { once: true });
  return [...alarms, ...decisions, panel];
}

/** A chart as in linePlot. It may have `usual`, a text about usual values. */
function plotWithUsual(chart) {
  const usual = chart.usual ? element("p", { class: "muted" }, `usual: ${chart.usual}`) : null;
  return element("div", {}, linePlot(chart), usual);
}

function stepPlots({ charts, columns, rows }) {
  const plots = charts.map(plotWithUsual);
  const all = csvLink({ name: "steps", columns, rows });
  return [
    element("p", {}, "Every step with all its measurements: ", all),
    element("div", { class: "plots small" }, plots),
  ];
}

const PHASE_PLOTS = [
  ["accuracy", "Accuracy on held-out problems", "accuracy", "share"],
  ["failed_call_ratio_correct", "Failed calls in correct traces", "failed calls", "share"],
  ["mean_tokens", "Mean tokens", "tokens", "tokens"],
];

/** The phases of a staged run: a table and plots. `summary` is summary.json or null. */
function phasePanels(summary) {
  const phases = summary?.phases ?? [];
  if (!phases.length) return [];
  const charts = PHASE_PLOTS.map(([key, title, y, unit]) => {
    const interval = (phase) => (key === "accuracy" ? phase.interval ?? [] : []);
    const points = phases.map((phase) => [phase.name, phase[key], ...interval(phase)]);
    return { title, x: "phase", y, unit, series: [{ name: title, points }] };
  });
  const plots = charts.filter((chart) => drawnPoints(chart.series[0]).length).map(linePlot);
  const table = element("section", { class: "panel wide scroll" }, phaseTable(phases));
  return [element("div", { class: "plots small" }, table, plots)];
}

function phaseTable(phases) {
  const columns = [
    ["phase", (phase) => phase.name],
    ["accuracy", (phase) => formatShare(phase.accuracy)],
    ["interval", ({ interval }) => interval ? interval.map((end) => formatShare(end)).join(" – ") : "–"],
    ["failed calls in correct traces", (phase) => formatShare(phase.failed_call_ratio_correct)],
    ["failed turns repaired later", (phase) => formatShare(phase.repaired_share)],
    ["calls per trace", (phase) => formatFixed(phase.calls_per_trace)],
    ["mean tokens", (phase) => formatCount(phase.mean_tokens)],
    ["wall time", (phase) => formatSeconds(phase.wall_s)],
  ];
  const heads = columns.map(([name]) => element("th", {}, name));
  const rows = phases.map((phase) =>
    element("tr", {}, columns.map(([, text]) => element("td", {}, text(phase))))
  );
  return element("table", { class: "phases" }, tableParts(heads, rows));
}
