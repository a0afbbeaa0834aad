// One trace: its verdict, its problem, and each turn's thought, code, results and answer.

const FINISH_TEXTS = {
  answer: "",
  refusal: " · a refusal, as the server calls it",
  content_filter: " · ended by the server's content filter",
  max_turns: " · ended by the turn limit",
  max_tokens: " · ended by the token limit",
  bad_calls: " · ended by the limit of failed calls in a row",
  format: " · ended by the format",
  stopped: " · stopped",
  error: " · ended by a failure of the engine, not graded",
};

/**
 * The nodes of a trace.
 * @param row {problem: {id, text, gold}, sample, verdict, tokens, calls, finish, step}, from the page's index
 * @param detail {turns: [{tokens, parts}], cause, extracted, rule, wall_s, reward, kept}, from a chunk of the page;
 *   `tokens` is null if the server did not return them. `shading` exists if the entropies of its tokens are known.
 *   `problem`, {text, gold}, exists if the problem's text differs from that of the problem's first trace
 */
function traceNodes(row, detail) {
  const sample = [`${row.problem.id}, sample ${row.sample + 1}`, ...trainingFacts(row, detail)].join(" · ");
  const turns = detail.turns.map((turn, number) => [
    element("div", { class: "turn" }, turnHead(turn, number)),
    turn.parts.map((part) => part.kind === "call" ? callNodes(part) : textNode(part, row.verdict)),
  ]);
  const parts = element("div", {}, turns);
  return [
    verdictBar(row, detail),
    element("p", { class: "muted sample" }, sample),
    element("div", { class: "problem" }, textNodes((detail.problem ?? row.problem).text)),
    ...(detail.shading ? entropySwitch(detail, parts) : []),
    parts,
  ];
}

function turnHead(turn, number) {
  const tokens = isNumber(turn.tokens) ? [`${formatCount(turn.tokens)} tokens`] : [];
  return [`turn ${number + 1}`, ...tokens].join(" · ");
}

/** A text about what training did with a rollout. Empty for a trace of a benchmark. */
function trainingFacts(row, detail) {
  return [
    isNumber(row.step) ? `step ${row.step}` : null,
    isNumber(detail.reward) ? `reward ${detail.reward}` : null,
    detail.kept === null ? null : detail.kept ? "used for the update" : "not used for the update",
  ].filter(Boolean);
}

function verdictBar(row, detail) {
  const facts = [
    `${formatCount(row.tokens)} tokens`,
    plural(detail.turns.length, "turn"),
    plural(row.calls, "call"),
    `${formatSeconds(detail.wall_s)}${FINISH_TEXTS[row.finish]}${detail.cause ? `: ${detail.cause}` : ""}`,
  ];
  return element(
    "div",
    { class: "verdict", "data-tone": verdictTone(row.verdict) },
    element("strong", {}, row.verdict),
    element(
      "span",
      { class: "pair" },
      "answer ",
      answerNode(detail.extracted),
      "  gold ",
      answerNode((detail.problem ?? row.problem).gold),
      detail.rule ? element("span", { class: "muted" }, `  decided by ${detail.rule}`) : null,
    ),
    element("span", { class: "facts" }, facts.join(" · ")),
  );
}

/** The beginning of an answer, in one line. A tooltip has the whole answer. */
function answerNode(answer) {
  const text = answer ?? "none";
  return element("code", { title: text === shortened(text) ? null : text }, shortened(text));
}

/** part: {kind: thought, text or answer; text, as textNodes takes it} */
function textNode(part, verdict) {
  return element(
    "div",
    { class: `part ${part.kind}`, "data-tone": verdictTone(verdict) },
    element("div", { class: "label" }, part.kind),
    element("div", { class: "body" }, textNodes(part.text)),
  );
}

/** part: {kind: "call", code, input, status, output, wall_s}. A call that did not run has no wall_s. */
function callNodes(part) {
  const ok = part.status === "ok";
  const notRun = part.status === "lost" || part.status === "not run";
  const code = element("div", { class: "part code" }, element("div", { class: "label" }, "python"));
  code.append(element("pre", {}, highlighted(part.code)));
  if (part.input) {
    code.append(element("div", { class: "label" }, "standard input"), element("pre", {}, part.input));
  }
  const result = element(
    "div",
    {
      class: `part result ${ok || notRun ? "" : "failed"}`,
      "data-tone": ok ? "correct" : notRun ? "none" : "wrong",
      "data-status": part.status,
    },
    element(
      "div",
      { class: "label" },
      ok ? "result" : part.status.replaceAll("_", " "),
      element("span", {}, part.wall_s ? formatSeconds(part.wall_s) : ""),
    ),
    element("pre", {}, part.output || (notRun ? "the rollout ended before it ran" : "")),
  );
  return [code, result];
}

const KEYWORDS = "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|" +
  "global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|True|False|try|while|with|yield";

/** [class in viewer.css, pattern of the text that it colours], tried in this order. */
const TOKENS = [
  ["com", /#[^\n]*/],
  [
    "str",
    /"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|[rbfRBF]{0,2}(?:"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)/,
  ],
  ["num", /\b\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?j?\b/],
  ["kw", new RegExp(`\\b(?:${KEYWORDS})\\b`)],
  ["fn", /\b[A-Za-z_]\w*(?=\()/],
];
const PYTHON = new RegExp(TOKENS.map(([, pattern]) => `(${pattern.source})`).join("|"), "g");

/** Python code as texts and coloured spans. */
function highlighted(code) {
  const pieces = [];
  let end = 0;
  for (const match of code.matchAll(PYTHON)) {
    const kind = match.slice(1).findIndex((group) => group !== undefined);
    pieces.push(code.slice(end, match.index), element("span", { class: TOKENS[kind][0] }, match[0]));
    end = match.index + match[0].length;
  }
  pieces.push(code.slice(end));
  return pieces;
}
