// Formulas: temml converts LaTeX to MathML when a text is displayed.

/** What formulas may have. Links, images and HTML elements are excluded, because models write these texts. */
const MATH_TAGS = new RegExp(
  "^(math|mrow|mi|mn|mo|mtext|mspace|mfrac|msqrt|mroot|msup|msub|msubsup|mover|munder|munderover|mtable|mtr|mtd|" +
    "mstyle|mpadded|mphantom|menclose|mmultiscripts|mprescripts|none)$",
);
const MATH_ATTRIBUTES = new RegExp(
  "^(accent|alttext|class|columnalign|depth|display|displaystyle|fence|form|height|largeop|linethickness|lspace|" +
    "mathvariant|maxsize|minsize|movablelimits|notation|rowspacing|rspace|scriptlevel|separator|stretchy|style|" +
    "symmetric|voffset|width)$",
);
/** CSS properties that are removed, because a formula must be readable on every background. */
const COLOURS = ["color", "background-color"];
const MAX_EM = 5;
const MAX_PX = 80;
/** Environments whose lines temml would number. */
const NUMBERED = /\\(begin|end)\{(align|alignat|gather|equation)\}/g;
const MATH_OPTIONS = { throwOnError: true, trust: false, wrap: "tex", maxExpand: 200, maxSize: [4, 48] };

/** Parses a formula with delimiters: whether it is a display formula, and its LaTeX without the delimiters. */
function formulaParts(source) {
  if (source.startsWith("$$") || source.startsWith("\\[")) {
    return { isBlock: true, latex: source.slice(2, -2) };
  }
  if (source.startsWith("$")) return { isBlock: false, latex: source.slice(1, -1) };
  return { isBlock: false, latex: source.startsWith("\\(") ? source.slice(2, -2) : source };
}

/** The node of a formula. Null if temml cannot parse it, or if it has an element that is not allowed. */
function formulaNode(source) {
  const { isBlock, latex } = formulaParts(source);
  const node = element("span", { class: isBlock ? "formula block" : "formula", title: source });
  try {
    temml.render(latex.replace(NUMBERED, "\\$1{$2*}"), node, { ...MATH_OPTIONS, displayMode: isBlock });
  } catch {
    return null;
  }
  if (![...node.querySelectorAll("*")].every(isHarmless)) return null;
  node.firstChild.setAttribute("alttext", source);
  return node;
}

/** Whether an element is allowed. Removes its colours and unneeded attributes. */
function isHarmless(node) {
  for (const { name } of [...node.attributes]) {
    if (!MATH_ATTRIBUTES.test(name)) node.removeAttribute(name);
  }
  for (const name of COLOURS) node.style.removeProperty(name);
  const values = [...node.attributes].map(({ name, value }) => name === "alttext" ? "" : value);
  return MATH_TAGS.test(node.localName) && values.every(hasShortLengths);
}

/** Whether all lengths in attributes are small enough to keep a formula away from other parts of the page. */
function hasShortLengths(value) {
  return [...value.matchAll(/(-?[\d.]+)(em|ex|rem|[a-z]{2})\b/g)].every(([, number, unit]) =>
    Math.abs(+number) <= (/e[mx]$/.test(unit) ? MAX_EM : MAX_PX)
  );
}

/** Nodes of a text, which is a string or a list of strings and formulas [source]. */
function textNodes(text) {
  if (typeof text === "string") return [text];
  const pieces = text.map((piece) => typeof piece === "string" ? piece : formulaNode(piece[0]) ?? piece[0]);
  const isBlock = (piece) => piece?.classList?.contains("block");
  return pieces.map((piece, number) => {
    if (typeof piece !== "string") return piece;
    // A display formula has margins, so line ends beside it are dropped. They would look like empty lines.
    const begun = isBlock(pieces[number - 1]) ? piece.replace(/^[ \t]*\n?[ \t]*/, "") : piece;
    return isBlock(pieces[number + 1]) ? begun.replace(/\n?[ \t]*$/, "") : begun;
  });
}

/** The original text of a rich text. */
const sourceText = (text) => typeof text === "string" ? text : text.flat().join("");
