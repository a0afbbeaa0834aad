// Plots and the table of a training run: its curves over the steps, and its phases.

const LINE_COLORS = [
  "var(--accent)",
  "var(--bad)",
  "var(--good)",
  "var(--warn)",
  "var(--thought)",
  "var(--none)",
];

/**
 * Lines with points, and bars where a point has an interval.
 * @param chart {title, x, unit, series: [{name, points: [[x, y] or [x, y, low, high]]}]}; x is a number or a
 *   word, the unit "share" is shown in percent
 */
function linePlot(chart) {
  const height = 210;
  const labels = yLabels(chart);
  const legend = chart.series.length > 1
    ? chart.series.map((series, number) => [series.name, LINE_COLORS[number % LINE_COLORS.length]])
    : [];
  const draw = (canvas, width) => {
    const scales = lineScales(chart, width);
    drawYAxis(canvas, width, scales.left, scales.y, ticks(scales.low, scales.high, 4), labels);
    drawXAxis(canvas, width, chart, scales);
    chart.series.forEach((series, number) => {
      drawLine(canvas, series, LINE_COLORS[number % LINE_COLORS.length], scales, (point) => {
        const interval = isNumber(point[2]) ? ` [${labels(point[2])}, ${labels(point[3])}]` : "";
        return `${series.name}\n${chart.x ?? ""} ${point[0]}: ${labels(point[1])}${interval}`;
      });
    });
  };
  return plotPanel(chart.title, height, draw, { legend });
}

const yLabels = (chart) => (value) =>
  chart.unit === "share" ? `${+(100 * value).toPrecision(3)} %` : formatShort(value);

const drawnPoints = (series) => series.points.filter((point) => isNumber(point[1]));

/**
 * Where values lie on a canvas of this width.
 * @returns {x, y: value → pixels; low, high: the ends of y; left, bottom: the axes; marks: values labelled on x}
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
  const left = 52, top = 8, bottom = chart.x ? 168 : 182, margin = isNamed ? 36 : 6;
  const first = Math.min(...xs);
  const span = Math.max(...xs) - first || 1;
  return {
    low,
    high,
    left,
    bottom,
    x: (value) => left + margin + ((position(value) - first) / span) * (width - left - 2 * margin),
    y: (value) => bottom - ((value - low) / (high - low)) * (bottom - top),
    marks: isNamed ? names : ticks(first, first + span, Math.max(2, Math.floor(width / 90))),
  };
}

function drawXAxis(canvas, width, chart, { x, left, bottom, marks }) {
  for (const mark of marks) {
    const text = typeof mark === "string" ? mark : formatShort(mark);
    canvas.append(svgElement("text", { x: x(mark), y: bottom + 16, "text-anchor": "middle" }, text));
  }
  if (chart.x) {
    const middle = left + (width - left) / 2;
    canvas.append(svgElement("text", { x: middle, y: 206, "text-anchor": "middle" }, chart.x));
  }
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

const PHASE_PLOTS = [
  ["accuracy", "Accuracy on held-out problems", "share"],
  ["failed_call_ratio_correct", "Failed calls inside correct traces", "share"],
  ["mean_tokens", "Mean tokens", undefined],
];

/** The phases of a staged run: a table and plots. `summary` is summary.json or null. */
function phasePanels(summary) {
  const phases = summary?.phases ?? [];
  if (!phases.length) return [];
  const plots = PHASE_PLOTS.map(([key, title, unit]) => {
    const interval = (phase) => (key === "accuracy" ? phase.interval ?? [] : []);
    const points = phases.map((phase) => [phase.name, phase[key], ...interval(phase)]);
    return linePlot({ title, unit, series: [{ name: title, points }] });
  });
  const table = element("section", { class: "panel wide" }, phaseTable(phases));
  return [element("div", { class: "plots small" }, table, plots)];
}

function phaseTable(phases) {
  const columns = [
    ["phase", (phase) => phase.name],
    ["accuracy", (phase) => formatShare(phase.accuracy)],
    ["interval", ({ interval }) => interval ? interval.map((end) => formatShare(end)).join(" – ") : "–"],
    ["failed calls, correct traces", (phase) => formatShare(phase.failed_call_ratio_correct)],
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
