// Small helpers: elements, numbers, and the packed data of the page.
const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  return dress(node, attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return dress(node, attributes, children);
}

function dress(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const percent = (share, digits = 1) => (isNumber(share) ? `${(100 * share).toFixed(digits)} %` : "–");
const count = (value) => (isNumber(value) ? whole.format(value) : "–");
const fixed = (value, digits = 2) => (isNumber(value) ? value.toFixed(digits) : "–");
const seconds = (value) => (isNumber(value) ? (value < 120 ? `${value.toFixed(1)} s` : `${(value / 60).toFixed(1)} min`) : "–");

function tone(verdict) {
  if (verdict === "correct" || verdict === "wrong") return verdict;
  return verdict === "no answer" || verdict === "ungraded" ? "none" : "unsure";
}

function verdictWords(verdict) {
  const words = { unparsed: "could not verify", timeout: "could not verify (timeout)", invalid: "could not verify (gold unusable)" };
  return words[verdict] ?? verdict;
}

// A tooltip for anything: tipped(node, "text").
function tipped(node, text) {
  node.addEventListener("pointermove", (event) => {
    const tip = $("tip");
    tip.textContent = text;
    tip.hidden = false;
    const right = event.clientX + 14 + tip.offsetWidth > innerWidth;
    tip.style.left = `${right ? event.clientX - 14 - tip.offsetWidth : event.clientX + 14}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 6)}px`;
  });
  node.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  return node;
}
