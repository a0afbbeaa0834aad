// The results of one benchmark in numbers: cards, the table of problems, settings.

/** The cards of `summary` of results.json. `quoted` is the number to quote, {label, value, interval}, or null. */
function summaryCards(summary, quoted) {
  if (!summary.samples) return element("p", { class: "muted" }, "No sample has finished yet.");
  const share = (key, label, hint) => card(formatShare(summary[key]), label, hint);
  const largestK = Object.entries(summary["pass@k"] ?? {}).filter(([k]) => k !== "1").at(-1);
  return element(
    "div",
    { class: "cards" },
    quoted?.label ? quotedCard(quoted) : accuracyCard(summary),
    quoted?.label ? share("accuracy", `avg@${summary.n}`, "the average of the verdicts on its traces") : null,
    largestK
      ? card(
        formatShare(largestK[1]),
        `pass@${largestK[0]}`,
        "an unbiased estimate of the chance that at least one of these samples is correct",
      )
      : null,
    summary.n > 1
      ? share("maj@n", `maj@${summary.n}`, "the share of problems whose most frequent answer is correct")
      : null,
    card(formatCount(summary.mean_tokens), "mean tokens"),
    card(formatCount(summary.p95_tokens), "95th percentile tokens"),
    card(formatFixed(summary.calls_per_trace), "tool calls per trace"),
    share("failed_call_ratio", "failed calls"),
    share("failed_call_ratio_correct", "failed calls in correct traces"),
    share("repaired_share", "failed turns repaired by a later call"),
    share("answered_after_failure_share", "failed turns in traces with a correct answer"),
    share(
      "paper_accuracy",
      "by the paper's reading rule",
      "the average if only a box in the <answer> of a finished turn counts as an answer",
    ),
    ...Object.entries(summary.read_by ?? {}).map(([rule, count]) =>
      card(formatCount(count), `answers read by the rule ${rule}`)
    ),
    share("no_answer_share", "no answer"),
    share("truncated_share", "truncated", "ended by the token or turn limit"),
    share(
      "could_not_verify_share",
      "could not verify",
      "answers that the grader could not decide; they count neither as correct nor as wrong",
    ),
    ...Object.entries(summary.could_not_verify ?? {}).map(([cause, count]) =>
      card(formatCount(count), `could not verify: ${cause.replaceAll("_", " ")}`)
    ),
    summary.left_out
      ? card(
        formatCount(summary.left_out),
        "problems left out",
        "no output can be graded correct against their answer; unreadable_answers in results.json lists them",
      )
      : null,
    ...serverStops(summary),
    summary.lost_calls ? card(formatCount(summary.lost_calls), "calls that the judge lost") : null,
  );
}

/** The cards of replies that the model's server ended or refused. */
function serverStops(summary) {
  const count = (key, label, hint) => summary[key] ? card(formatCount(summary[key]), label, hint) : null;
  return [
    count("content_filtered", "ended by a content filter", "the filter of the model's server"),
    count("refusals", "refusals", "replies that the model's server marks as refusals"),
  ];
}

function card(value, label, hint) {
  const node = element("div", { class: "card" }, element("b", {}, value), element("span", {}, label));
  return hint ? withTooltip(node, hint) : node;
}

/** The score that people quote for a benchmark, if it is not the average of the verdicts. */
function quotedCard({ label, value, interval }) {
  const number = (100 * value).toFixed(1);
  return element(
    "div",
    { class: "card main" },
    element("div", {}, element("span", {}, label), element("b", {}, number, element("small", {}, " %"))),
    intervalBar("problems like these", interval, value, "95 % interval, clustered by problem."),
  );
}

function accuracyCard(summary) {
  const sizes = `avg@${summary.n}, ${formatCount(summary.problems)} problems × ${
    plural(summary.n, "sample")
  }`;
  const accuracy = (100 * summary.accuracy).toFixed(1);
  return element(
    "div",
    { class: "card main" },
    element(
      "div",
      {},
      element("span", {}, sizes),
      element("b", {}, accuracy, element("small", {}, " %")),
    ),
    element(
      "div",
      {},
      intervalBar(
        "problems like these",
        summary.interval_clustered,
        summary.accuracy,
        "95 % interval, clustered by problem: where the average over all problems like these lies. " +
          "Compare models with this one.",
      ),
      intervalBar(
        "run to run",
        summary.interval_run_to_run,
        summary.accuracy,
        "95 % interval, run to run: how far the average on these same problems moves when they are " +
          "sampled again.",
      ),
    ),
  );
}

/** A bar from 0 to 1 with an interval and a value. All are shares. */
function intervalBar(label, [low, high], value, hint) {
  const style = intervalStyle(low, high, value);
  const ends = `${(100 * low).toFixed(1)} – ${(100 * high).toFixed(1)}`;
  const bar = element("div", { class: "range" }, label, element("i", { style }), element("em", {}, ends));
  return withTooltip(bar, hint);
}

const intervalStyle = (low, high, value) => `--low:${100 * low}%;--high:${100 * high}%;--at:${100 * value}%`;

const PROBLEM_COLUMNS = [
  "problem",
  "correct",
  "mean tokens",
  "calls",
  "no answer",
  "truncated",
  "not verified",
];

/**
 * A folded table, one row per problem.
 * @param problems `per_problem` of results.json
 * @param onPick called with a problem's id
 */
function problemTable(problems, onPick) {
  const heads = PROBLEM_COLUMNS.map((name) => element("th", {}, name));
  heads.push(element("th", { class: "left" }, "gold"));
  const rows = problems.map((problem) => problemRow(problem, onPick));
  return fold(
    `Table of ${formatCount(problems.length)} problems`,
    element("table", {}, tableParts(heads, rows)),
  );
}

function problemRow(problem, onPick) {
  const numbers = [
    formatCount(problem.mean_tokens),
    formatFixed(problem.calls_per_trace, 1),
    problem.no_answer,
    problem.truncated,
    problem.could_not_verify,
  ];
  const pick = () => onPick(problem.id);
  const pickOnEnter = (event) => {
    if (event.key === "Enter") pick();
  };
  const meter = element(
    "span",
    { class: "meter" },
    element("i", { style: `width:${100 * problem.accuracy}%` }),
  );
  return element(
    "tr",
    { tabindex: 0, onclick: pick, onkeydown: pickOnEnter },
    element("td", {}, problem.id),
    element("td", {}, meter, `${problem.correct}/${problem.samples}`),
    numbers.map((text) => element("td", {}, `${text}`)),
    element("td", { class: "left" }, shortened(problem.gold ?? "")),
  );
}

function fold(title, content) {
  return element(
    "details",
    { class: "panel" },
    element("summary", {}, title),
    element("div", {}, content),
  );
}

/** A folded list of the leaves of a JSON value, by dotted path. Null if there are none. */
function settingsFold(title, value) {
  const leaves = flatten(value);
  if (!leaves.length) return null;
  const entries = leaves.map(([path, text]) => [element("dt", {}, path), element("dd", {}, text)]);
  return fold(title, element("dl", {}, entries));
}

/** [[path, text]] of the leaves of a JSON value. A list is one leaf. */
function flatten(value, path = "") {
  if (value === null || typeof value !== "object") return [[path, `${value}`]];
  if (Array.isArray(value)) {
    const items = value.map((item) => (typeof item === "object" ? JSON.stringify(item) : item));
    return [[path, items.join(", ")]];
  }
  return Object.entries(value).flatMap(([key, inner]) => flatten(inner, path ? `${path}.${key}` : key));
}
