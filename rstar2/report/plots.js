// Plots, drawn as SVG at the width they are given, and again when that changes.
const TONES = [["correct", "var(--good)"], ["wrong", "var(--bad)"], ["other", "var(--none)"]];

function plot(title, height, draw, options = {}) {
  const canvas = svg("svg", { height, role: "img", "aria-label": title });
  const legend = el("div", { class: "legend" }, (options.legend ?? []).map(([name, color]) =>
    el("span", {}, el("i", { style: `background:${color}` }), name)));
  const panel = el("section", { class: `panel ${options.wide ? "wide" : ""}` }, legend, el("h2", {}, title), canvas);
  let drawn = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (!width || width === drawn) return;
    drawn = width;
    canvas.replaceChildren();
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    draw(canvas, width, height);
  }).observe(canvas);
  return panel;
}

function ticks(low, high, wanted = 4) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(+at.toPrecision(12));
  return found;
}

const short = (value) => (Math.abs(value) >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : Math.abs(value) >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : `${+value.toPrecision(4)}`);

function yAxis(canvas, width, scale, values, label, left) {
  for (const value of values) {
    canvas.append(svg("line", { class: "grid", x1: left, x2: width, y1: scale(value), y2: scale(value) }),
      svg("text", { x: left - 7, y: scale(value) + 4, "text-anchor": "end" }, label(value)));
  }
}

// problems: [{id, correct, samples, mean_tokens}]; onPick(id)
function accuracyPlot(problems, onPick) {
  const sorted = problems.length > 60;
  const shown = sorted ? [...problems].sort((a, b) => b.accuracy - a.accuracy) : problems;
  const title = `Accuracy by problem${sorted ? ", sorted" : ""}`;
  return plot(title, 190, (canvas, width) => {
    const left = 44, top = 8, bottom = 164;
    const y = (value) => bottom - value * (bottom - top);
    yAxis(canvas, width, y, [0, 0.5, 1], (value) => `${100 * value} %`, left);
    const step = (width - left) / Math.max(1, shown.length);
    const gap = step > 6 ? Math.min(5, step * 0.22) : 0;
    shown.forEach((problem, at) => {
      const x = left + at * step;
      const tall = Math.max(problem.accuracy * (bottom - top), problem.accuracy > 0 ? 1 : 0);
      canvas.append(svg("rect", { x: x + gap / 2, y: top, width: Math.max(step - gap, 0.5), height: bottom - top - tall, fill: "var(--bad)", opacity: 0.13 }),
        svg("rect", { x: x + gap / 2, y: bottom - tall, width: Math.max(step - gap, 0.5), height: tall, fill: "var(--good)" }));
      const hit = svg("rect", { class: "hit", x, y: top, width: step, height: bottom - top, "data-problem": problem.id, onclick: () => onPick(problem.id) });
      canvas.append(tipped(hit, `${problem.id}\n${problem.correct} of ${problem.samples} correct · ${count(problem.mean_tokens)} tokens · ${fixed(problem.calls_per_trace, 1)} calls`));
      const every = Math.ceil(30 / step);
      if (!sorted && at % every === 0) canvas.append(svg("text", { x: x + step / 2, y: bottom + 16, "text-anchor": "middle" }, at + 1));
    });
  }, { wide: true, legend: [["correct", "var(--good)"], ["not", "color-mix(in srgb, var(--bad) 20%, var(--panel))"]] });
}

// rows: [{value, verdict}] → stacked bars by verdict
function histogram(title, rows, bins, label) {
  const counts = bins.map(() => [0, 0, 0]);
  for (const row of rows) {
    const place = Math.max(0, bins.findLastIndex((low) => row.value >= low));
    counts[place][row.verdict === "correct" ? 0 : row.verdict === "wrong" ? 1 : 2] += 1;
  }
  const most = Math.max(1, ...counts.map((each) => each[0] + each[1] + each[2]));
  const used = TONES.filter((_, at) => counts.some((each) => each[at]));
  return plot(title, 190, (canvas, width) => {
    const left = 44, top = 8, bottom = 164;
    const y = (value) => bottom - (value / most) * (bottom - top);
    yAxis(canvas, width, y, ticks(0, most, 3).filter(Number.isInteger), short, left);
    const step = (width - left) / bins.length, gap = Math.min(4, step * 0.16);
    counts.forEach((each, at) => {
      let base = bottom;
      each.forEach((number, which) => {
        const tall = (number / most) * (bottom - top);
        base -= tall;
        if (number) canvas.append(svg("rect", { x: left + at * step + gap / 2, y: base, width: step - gap, height: tall, fill: TONES[which][1] }));
      });
      const words = TONES.map(([name], which) => (each[which] ? `${count(each[which])} ${name}` : "")).filter(Boolean).join(" · ");
      canvas.append(tipped(svg("rect", { class: "hit", x: left + at * step, y: top, width: step, height: bottom - top }), `${label(at)}\n${words || "none"}`));
      const every = Math.ceil(46 / step);
      if (at % every === 0) canvas.append(svg("text", { x: left + at * step + (step > 46 ? step / 2 : 0), y: bottom + 16, "text-anchor": step > 46 ? "middle" : "start" }, label(at, true)));
    });
  }, { legend: used });
}

function lengthPlot(rows) {
  const most = Math.max(1, ...rows.map((row) => row.value));
  const step = ticks(0, most, 24)[1] ?? 1;
  const bins = Array.from({ length: Math.max(1, Math.ceil((most + 1e-9) / step)) }, (_, at) => at * step);
  return histogram("Length in tokens", rows, bins, (at, brief) => (brief ? short(bins[at]) : `${count(bins[at])} to ${count(bins[at] + step)} tokens`));
}

function toolPlot(rows) {
  const most = Math.min(16, Math.max(...rows.map((row) => row.value), 1));
  const bins = Array.from({ length: most + 1 }, (_, at) => at);
  const more = rows.some((row) => row.value > most);
  return histogram("Tool calls a trace", rows, bins, (at, brief) => `${at}${more && at === most ? "+" : ""}${brief ? "" : at === 1 ? " call" : " calls"}`);
}

const LINES = ["var(--accent)", "var(--bad)", "var(--good)", "var(--warn)", "var(--thought)", "var(--none)"];

// chart: {title, x, y, series: [{name, points: [[x, y] or [x, y, low, high]]}]}; x is a number or a word
function linePlot(chart) {
  const all = chart.series.flatMap((series) => series.points).filter((point) => isNumber(point[1]));
  const words = all.some((point) => typeof point[0] === "string");
  const names = words ? [...new Set(all.map((point) => point[0]))] : [];
  const place = (value) => (words ? names.indexOf(value) : value);
  const xs = all.map((point) => place(point[0])), ys = all.flatMap((point) => point.slice(1).filter(isNumber));
  const share = chart.unit === "share";
  const low = Math.min(0, ...ys), high = share ? Math.min(1, Math.max(0.01, ...ys) * 1.08) : Math.max(...ys, 1e-9) * 1.08;
  const label = (value) => (share ? `${+(100 * value).toPrecision(3)} %` : short(value));
  const legend = chart.series.length > 1 ? chart.series.map((series, at) => [series.name, LINES[at % LINES.length]]) : [];
  return plot(chart.title, 210, (canvas, width) => {
    const left = 52, top = 8, bottom = chart.x ? 168 : 182, pad = words ? 36 : 6;
    const first = Math.min(...xs), span = Math.max(...xs) - first || 1;
    const x = (value) => left + pad + ((place(value) - first) / span) * (width - left - 2 * pad);
    const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
    yAxis(canvas, width, y, ticks(low, high, 4), label, left);
    const marks = words ? names : ticks(first, first + span, Math.max(2, Math.floor(width / 90)));
    for (const mark of marks) canvas.append(svg("text", { x: x(mark), y: bottom + 16, "text-anchor": "middle" }, words ? mark : short(mark)));
    if (chart.x) canvas.append(svg("text", { x: left + (width - left) / 2, y: 206, "text-anchor": "middle" }, chart.x));
    chart.series.forEach((series, at) => {
      const color = LINES[at % LINES.length], points = series.points.filter((point) => isNumber(point[1]));
      const path = points.map((point, number) => `${number ? "L" : "M"}${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join("");
      canvas.append(svg("path", { d: path, fill: "none", stroke: color, "stroke-width": 2, "stroke-linejoin": "round" }));
      for (const point of points) {
        if (isNumber(point[2])) canvas.append(svg("line", { x1: x(point[0]), x2: x(point[0]), y1: y(point[2]), y2: y(point[3]), stroke: color, "stroke-width": 2, opacity: 0.45 }));
        const range = isNumber(point[2]) ? ` [${label(point[2])}, ${label(point[3])}]` : "";
        canvas.append(tipped(svg("circle", { cx: x(point[0]), cy: y(point[1]), r: points.length > 24 ? 2.2 : 4, fill: color }), `${series.name}\n${chart.x ?? ""} ${point[0]}: ${label(point[1])}${range}`));
      }
    });
  }, { legend });
}
