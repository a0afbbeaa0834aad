// Elements of the page, tooltips, and the packed data that the page carries.

const byId = (id) => document.getElementById(id);

/**
 * An HTML element. An attribute "onclick" and the like is a listener; a null or undefined attribute or child
 * is left out, and children may be nested lists.
 */
function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function svgElement(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** The same for MathML, from a tree [tag, attributes, child, ...] where a child is a tree or a text. */
function mathElement([tag, attributes, ...children]) {
  const nodes = children.map((child) => typeof child === "string" ? child : mathElement(child));
  return fill(document.createElementNS("http://www.w3.org/1998/Math/MathML", tag), attributes, nodes);
}

/** Nodes of a text, which is a string or a list of strings and formulas [source, tree]. */
function textNodes(text) {
  if (typeof text === "string") return [text];
  const isBlock = (piece) => Array.isArray(piece) && piece[1][1].display === "block";
  return text.map((piece, number) => {
    if (typeof piece === "string") {
      // A formula on lines of its own has its margins; the ends of those lines would be empty lines.
      const begun = isBlock(text[number - 1]) ? piece.replace(/^[ \t]*\n/, "") : piece;
      return isBlock(text[number + 1]) ? begun.replace(/\n[ \t]*$/, "") : begun;
    }
    const [source, tree] = piece;
    const math = mathElement(tree);
    math.setAttribute("alttext", source);
    return element("span", { class: isBlock(piece) ? "formula block" : "formula", title: source }, math);
  });
}

/** A text as it was written. */
const sourceText = (text) =>
  typeof text === "string"
    ? text
    : text.map((piece) => typeof piece === "string" ? piece : piece[0]).join("");

function fill(node, attributes, children) {
  const present = (value) => value !== undefined && value !== null;
  for (const [name, value] of Object.entries(attributes)) {
    if (!present(value)) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter(present));
  return node;
}

/** A table's head and body from nodes or texts: heads [column], rows [row] of <tr>. */
function tableParts(heads, rows) {
  return [element("thead", {}, element("tr", {}, heads)), element("tbody", {}, rows)];
}

/** A link that saves a table, {name, columns, rows}, as CSV. */
function csvLink({ name, columns, rows }) {
  const quoted = (value) => /[",\n]/.test(`${value}`) ? `"${`${value}`.replaceAll('"', '""')}"` : value ?? "";
  const text = [columns, ...rows].map((row) => row.map(quoted).join(",")).join("\n");
  const href = `data:text/csv;charset=utf-8,${encodeURIComponent(text + "\n")}`;
  return element("a", { class: "muted", download: `${name}.csv`, href }, "CSV");
}

/** Shows a text beside the pointer while it is over the node. Returns the node. */
function withTooltip(node, text) {
  node.addEventListener("pointermove", (event) => {
    const tip = byId("tip");
    tip.textContent = text;
    tip.hidden = false;
    const overflows = event.clientX + 14 + tip.offsetWidth > innerWidth;
    tip.style.left = `${overflows ? event.clientX - 14 - tip.offsetWidth : event.clientX + 14}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 6)}px`;
  });
  node.addEventListener("pointerleave", () => {
    byId("tip").hidden = true;
  });
  return node;
}

/** The JSON value in a script element of the page: gzip in base64. */
function unpack(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}
