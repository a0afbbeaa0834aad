// Plots of one benchmark, drawn as SVG. They are drawn again when their width changes.

/** Margins of a plot: bars start at `left`, and are between `top` and `bottom`. */
const AREA = { height: 208, left: 62, top: 8, bottom: 164 };

/** [name, colour], in the order in which a bar is stacked. */
const VERDICT_COLORS = [
  ["correct", "var(--series-3)"],
  ["wrong", "var(--series-2)"],
  ["other", "var(--none)"],
];
/** Stripes distinguish wrong for people with colour blindness. `#stripes` is the same as an SVG pattern. */
const STRIPES = "repeating-linear-gradient(135deg, rgb(0 0 0 / 38%) 0 2px, transparent 2px 5px)";

/**
 * A panel with a title, a legend [[name, background]], a canvas, and a link that saves the data.
 * @param draw (canvas, width): appends to the empty canvas, which is `width` by `height` pixels.
 * @param data {columns, rows} that the link saves
 */
function plotPanel(title, height, draw, data, { legend = [], wide = false } = {}) {
  const canvas = svgElement("svg", { height, role: "img", "aria-label": title });
  const entries = legend.map(([name, color]) =>
    element("span", {}, element("i", { style: `background:${color}` }), name)
  );
  let drawnWidth = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (!width || width === drawnWidth) return;
    drawnWidth = width;
    canvas.replaceChildren();
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    draw(canvas, width);
  }).observe(canvas);
  return element(
    "section",
    { class: `panel ${wide ? "wide" : ""}` },
    panelHead(title, entries, csvLink({ name: title, ...data })),
    canvas,
  );
}

/** The title of a panel, and its legend with the link that saves the data. */
function panelHead(title, ...legend) {
  return element(
    "div",
    { class: "panel-head" },
    element("h2", {}, title),
    element("div", { class: "legend" }, ...legend),
  );
}

/** About `wanted` round numbers between two values. `whole` leaves out fractions. */
function ticks(low, high, wanted = 4, whole = false) {
  const rough = Math.max((high - low) / wanted || 1, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const factors = whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = power * factors.find((factor) => factor * power >= rough * 0.999);
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) {
    values.push(+value.toPrecision(12));
  }
  return values;
}

const rectangle = (x, y, width, height, attributes) =>
  svgElement("rect", { x, y, width, height, ...attributes });

/** Grid lines with labels. `y` returns the position of a value on the canvas, `label` its text. */
function drawYAxis(canvas, width, left, y, values, label) {
  for (const value of values) {
    canvas.append(
      svgElement("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }),
      svgElement("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, label(value)),
    );
  }
}

/** The names of the axes of a plot whose axes cross at `left`, `bottom`. */
function drawAxisNames(canvas, width, { left, top, bottom }, xName, yName) {
  const turned = `translate(12,${(top + bottom) / 2}) rotate(-90)`;
  const attributes = { class: "axis", "text-anchor": "middle" };
  canvas.append(
    svgElement("text", { ...attributes, transform: turned }, yName),
    svgElement("text", { ...attributes, x: (left + width) / 2, y: bottom + 36 }, xName),
  );
}

/**
 * One bar per problem. More than 60 problems are sorted by accuracy.
 * @param problems [{id, accuracy, correct, samples, mean_tokens, calls_per_trace}]
 * @param onPick called with a problem's id
 */
function accuracyPlot(problems, onPick) {
  const sorted = problems.length > 60;
  const shown = sorted ? [...problems].sort((a, b) => b.accuracy - a.accuracy) : problems;
  const title = `Accuracy by problem${sorted ? ", sorted" : ""}`;
  const { height, left, top, bottom } = AREA;
  const y = (share) => bottom - share * (bottom - top);
  const draw = (canvas, width) => {
    drawYAxis(canvas, width, left, y, [0, 0.5, 1], (share) => `${100 * share} %`);
    drawAxisNames(canvas, width, AREA, sorted ? "problems, the easiest first" : "problem", "accuracy");
    const step = (width - left) / Math.max(1, shown.length);
    const labelEvery = Math.ceil(30 / step);
    shown.forEach((problem, number) => {
      drawProblemBar(canvas, problem, left + number * step, step, onPick);
      if (!sorted && number % labelEvery === 0) {
        const place = { x: left + number * step + step / 2, y: bottom + 16, "text-anchor": "middle" };
        canvas.append(svgElement("text", place, number + 1));
      }
    });
  };
  const pale = "color-mix(in srgb, var(--series-2) 20%, var(--panel))";
  const legend = [["correct", "var(--series-3)"], ["not correct", pale]];
  const columns = ["id", "samples", "correct", "accuracy", "mean_tokens", "calls_per_trace"];
  const rows = shown.map((problem) => columns.map((name) => problem[name]));
  return plotPanel(title, height, draw, { columns, rows }, { wide: true, legend });
}

function drawProblemBar(canvas, problem, x, step, onPick) {
  const { top, bottom } = AREA;
  const gap = step > 6 ? Math.min(5, step * 0.22) : 0;
  const width = Math.max(step - gap, 0.5);
  const height = Math.max(problem.accuracy * (bottom - top), problem.accuracy > 0 ? 1 : 0);
  const onclick = () => onPick(problem.id);
  const hit = rectangle(x, top, step, bottom - top, { class: "hit", "data-problem": problem.id, onclick });
  canvas.append(
    rectangle(x + gap / 2, top, width, bottom - top - height, { fill: "var(--series-2)", opacity: 0.13 }),
    rectangle(x + gap / 2, bottom - height, width, height, { fill: "var(--series-3)" }),
    withTooltip(
      hit,
      `${problem.id}\n${problem.correct} of ${problem.samples} correct · ` +
        `${formatCount(problem.mean_tokens)} tokens · ${formatFixed(problem.calls_per_trace, 1)} calls`,
    ),
  );
}

/**
 * Bars of counts, stacked by verdict.
 * @param rows [{value, verdict}]
 * @param xName name of the values, for the axis
 * @param bins the lowest value of each bar
 * @param label (number, brief): the text of a bar, in an axis when brief
 */
function histogram(title, xName, rows, bins, label) {
  const counts = bins.map(() => [0, 0, 0]);
  for (const row of rows) {
    const bin = Math.max(0, bins.findLastIndex((low) => row.value >= low));
    counts[bin][row.verdict === "correct" ? 0 : row.verdict === "wrong" ? 1 : 2] += 1;
  }
  const most = Math.max(1, ...counts.map(([correct, wrong, other]) => correct + wrong + other));
  const { height, left, top, bottom } = AREA;
  const y = (value) => bottom - (value / most) * (bottom - top);
  const draw = (canvas, width) => {
    drawYAxis(canvas, width, left, y, ticks(0, most, 4, true), formatShort);
    drawAxisNames(canvas, width, AREA, xName, "traces");
    const step = (width - left) / bins.length;
    const labelEvery = Math.ceil(46 / step);
    counts.forEach((stack, number) => {
      const x = left + number * step;
      drawStack(canvas, stack, x, step, most, label(number, false));
      if (number % labelEvery === 0) {
        const centred = step > 46;
        const anchor = { x: x + (centred ? step / 2 : 0), "text-anchor": centred ? "middle" : "start" };
        canvas.append(svgElement("text", { ...anchor, y: bottom + 16 }, label(number, true)));
      }
    });
  };
  const legend = VERDICT_COLORS.filter((_, kind) => counts.some((stack) => stack[kind])).map((
    [name, color],
  ) => [
    name,
    name === "wrong" ? `${STRIPES}, ${color}` : color,
  ]);
  const data = {
    columns: [`${xName}, at least`, ...VERDICT_COLORS.map(([name]) => name)],
    rows: counts.map((stack, number) => [bins[number], ...stack]),
  };
  return plotPanel(title, height, draw, data, { legend });
}

function drawStack(canvas, stack, x, step, most, label) {
  const { top, bottom } = AREA;
  const gap = Math.min(4, step * 0.16);
  let base = bottom;
  const texts = [];
  stack.forEach((number, kind) => {
    const [name, color] = VERDICT_COLORS[kind];
    const height = (number / most) * (bottom - top);
    base -= height;
    if (!number) return;
    for (const fill of name === "wrong" ? [color, "url(#stripes)"] : [color]) {
      canvas.append(rectangle(x + gap / 2, base, step - gap, height, { fill }));
    }
    texts.push(`${formatCount(number)} ${name}`);
  });
  const hit = rectangle(x, top, step, bottom - top, { class: "hit" });
  canvas.append(withTooltip(hit, `${label}\n${texts.join(" · ") || "none"}`));
}

/** rows: [{value: tokens, verdict}] */
function lengthPlot(rows) {
  const most = largest(rows.map((row) => row.value), 1);
  const step = ticks(0, most, 24, true)[1] ?? 1;
  const bins = Array.from(
    { length: Math.max(1, Math.ceil((most + 1e-9) / step)) },
    (_, number) => number * step,
  );
  const range = (number) => `${formatCount(bins[number])} to ${formatCount(bins[number] + step)} tokens`;
  return histogram(
    "Length in tokens",
    "tokens",
    rows,
    bins,
    (number, brief) => brief ? formatShort(bins[number]) : range(number),
  );
}

/** rows: [{value: calls, verdict}] */
function toolCallPlot(rows) {
  const most = Math.min(16, largest(rows.map((row) => row.value), 1));
  const bins = Array.from({ length: most + 1 }, (_, number) => number);
  const more = rows.some((row) => row.value > most);
  return histogram("Tool calls per trace", "calls", rows, bins, (number, brief) => {
    const calls = `${number}${more && number === most ? "+" : ""}`;
    return brief ? calls : `${calls} ${number === 1 ? "call" : "calls"}`;
  });
}
