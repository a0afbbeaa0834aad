// Makes elements and tooltips, and unpacks the data in the page.

const byId = (id) => document.getElementById(id);

/**
 * Makes an HTML element. Attributes such as "onclick" are listeners. Null and undefined attributes and children are
 * left out. Children may be nested lists.
 */
function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Makes an SVG element, as `element` does for HTML. */
function svgElement(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

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

/** The head and body of a table. `heads` are nodes or texts, `rows` are <tr> elements. */
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
