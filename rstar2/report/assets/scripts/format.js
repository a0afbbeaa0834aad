// Formats numbers and verdicts as text. A missing number becomes a dash.

const WHOLE_NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const formatCount = (value) => (isNumber(value) ? WHOLE_NUMBER.format(value) : "–");
const formatFixed = (value, digits = 2) => (isNumber(value) ? value.toFixed(digits) : "–");
/** A share between 0 and 1 as a percentage. */
const formatShare = (share, digits = 1) => (isNumber(share) ? `${(100 * share).toFixed(digits)} %` : "–");
/** The largest of the values and `least`. */
const largest = (values, least) => values.reduce((most, value) => Math.max(most, value), least);
/** A text, cut if it is too long for a line. */
const shortened = (text, most = 100) => (text.length > most ? `${text.slice(0, most)}…` : text);
const plural = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

function formatSeconds(value) {
  if (!isNumber(value)) return "–";
  return value < 120 ? `${value.toFixed(1)} s` : `${(value / 60).toFixed(1)} min`;
}

/** A short form of a number for an axis: 1600, 25k, 1.2M. */
function formatShort(value) {
  if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (Math.abs(value) >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return `${+value.toPrecision(4)}`;
}

/** The colour class of a verdict in viewer.css: correct, wrong, none or unsure. */
function verdictTone(verdict) {
  if (verdict === "correct" || verdict === "wrong") return verdict;
  return ["no answer", "ungraded", "engine failed"].includes(verdict) ? "none" : "unsure";
}
