"use strict";
// What all charts share: the data, elements, colours, axes, the trial under the pointer, and which trials are kept.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = byId("ns").namespaceURI;
const dark = matchMedia("(prefers-color-scheme: dark)");

function num(value) { // numbers of our JSON: nan, inf and -inf are texts
  if (value === null || value === undefined || value === "nan") return NaN;
  return value === "inf" ? Infinity : value === "-inf" ? -Infinity : Number(value);
}

const trials = data.trials.map((row) => {
  const trial = {};
  data.keys.forEach((key, at) => { trial[key] = row[at]; });
  trial.texts = row[data.keys.length];
  trial.told = trial.objective;
  trial.value = num(trial.objective);
  return trial;
});
const byNumber = new Map(trials.map((trial) => [trial.number, trial]));
const ranked = trials.filter((trial) => trial.rank !== null);
const able = ranked.filter((trial) => Number.isFinite(trial.value));
const finished = able.filter((trial) => trial.outcome === "completed" || trial.outcome === "stopped");
const best = ranked.find((trial) => trial.outcome === "completed" || trial.outcome === "stopped");
const highest = data.direction === "max";

function el(parent, tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  if (name) made.className = name;
  if (parent) parent.append(made);
  return made;
}

function draw(parent, tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function fmt(value, digits) {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential((digits || 4) - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(digits || 4)));
}

function spell(seconds) {
  if (seconds === null) return "–";
  if (seconds < 60) return (seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)) + " s";
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return minutes + " min " + Math.round(seconds % 60) + " s";
  return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
}

const told = (trial) => trial.told === null ? "–" : fmt(trial.value, 6);
const WORDS = { stopped: "stopped early", unsent: "not sent" };
const stateOf = (trial) => (WORDS[trial.outcome] || trial.outcome) + (trial.reason && trial.outcome === "failed" ? " (" + trial.reason + ")" : "");

// Colours: viridis, the best always the one that stands out most from the background.
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function viridis(place) {
  const at = Math.min(Math.max(place, 0), 1) * (STOPS.length - 1), low = Math.min(Math.floor(at), STOPS.length - 2);
  return "rgb(" + STOPS[low].map((part, k) => Math.round(part + (STOPS[low + 1][k] - part) * (at - low))).join(",") + ")";
}
const shade = (place) => dark.matches ? viridis(1 - place * 0.8) : viridis(place * 0.94);
const colour = (trial) => trial.rank === null ? "var(--muted)" : shade(ranked.length < 2 ? 0 : (trial.rank - 1) / (ranked.length - 1));

// Axes. A scale turns a value into pixels; `ticks` are the values that are written.
function quantile(sorted, share) { return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]; }

function wantsLog(values) {
  if (!values.length || values[0] <= 0) return false;
  return quantile(values, 0.9) / quantile(values, 0.1) > 8;
}

// The ends of the objective's axis. The bad side is cut where a few values would press all others together.
function ends(values, log) {
  const sorted = values.filter((value) => Number.isFinite(value) && (!log || value > 0)).map((value) => log ? Math.log10(value) : value).sort((a, b) => a - b);
  if (!sorted.length) return null;
  let low = sorted[0], high = sorted[sorted.length - 1];
  const q1 = quantile(sorted, 0.25), q3 = quantile(sorted, 0.75), reach = (q3 - q1) * 3;
  if (reach > 0 && sorted.length > 7) {
    if (highest) low = sorted.find((value) => value >= q1 - reach); else high = sorted.findLast((value) => value <= q3 + reach);
  }
  const room = (high - low) * 0.06 || Math.abs(low) * 0.1 || 0.5;
  low -= room; high += room;
  return log ? [10 ** low, 10 ** high] : [low, high];
}

function scale(low, high, from, to, log) {
  const way = log ? Math.log10 : (value) => value, a = way(low), b = way(high);
  const place = (value) => {
    const share = b === a ? 0.5 : (way(value) - a) / (b - a);
    return from + (to - from) * Math.min(1.0, Math.max(0.0, Number.isNaN(share) ? 0.5 : share));
  };
  place.beyond = (value) => value < low || value > high;
  place.back = (pixel) => { const at = a + (b - a) * (pixel - from) / (to - from); return log ? 10 ** at : at; };
  place.low = low; place.high = high;
  place.ticks = log ? logTicks(low, high) : ticks(low, high, Math.abs(to - from) / 45);
  return place;
}

function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(2, wanted);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough) || 10 * power;
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high && found.length < 40; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [], decades = Math.log10(high / low);
  const each = decades > 8 ? Math.ceil(decades / 6) : 1, parts = decades < 1.2 ? [1, 2, 3, 5, 7] : decades < 2.6 ? [1, 3] : [1];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += each) {
    for (const part of parts) { const value = part * 10 ** power; if (value >= low && value <= high) found.push(Number(value.toPrecision(12))); }
  }
  return found.length > 1 ? found : ticks(low, high, 4);
}

// The scale of a parameter, for numbers and kinds alike; `at(trial)` is where a trial lies on it.
function parameterScale(index, from, to) {
  const parameter = data.parameters[index];
  if (parameter.kind === "number") {
    let low = num(parameter.low), high = num(parameter.high);
    if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
    const place = scale(low, high, from, to, parameter.scale === "log" && low > 0);
    const at = (trial) => trial.texts[index] === null ? null : place(Number(trial.texts[index]));
    return { at, ticks: place.ticks.map((value) => [place(value), fmt(value, 3)]), step: 0 };
  }
  const count = parameter.values.length, step = (to - from) / Math.max(1, count);
  const places = new Map(parameter.values.map((text, k) => [text, from + step * (k + 0.5)]));
  const at = (trial) => places.has(trial.texts[index]) ? places.get(trial.texts[index]) + wobble(trial.number) * Math.sign(step) * Math.min(7, Math.abs(step) * 0.3) : null;
  const every = Math.ceil(count / Math.max(1, Math.abs(to - from) / 20));
  return { at, ticks: parameter.values.filter((_, k) => k % every === 0).map((text) => [places.get(text), text.length > 7 && Number.isFinite(Number(text)) ? fmt(Number(text), 3) : text]), step };
}
const wobble = (number) => ((number * 0.618034) % 1) * 2 - 1; // so that trials of the same kind do not hide each other

const cut = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;

// One trial is lit everywhere at once; brushes keep some.
const charts = [];
let lit = null, objectiveLog = false;
const brushes = new Map();
const kept = (trial) => { for (const brush of brushes.values()) if (!brush(trial)) return false; return true; };

function light(number, event, more) {
  if (number !== lit) {
    lit = number;
    for (const chart of charts) if (chart.light) chart.light(number === null ? null : byNumber.get(number));
  }
  const tip = byId("tip");
  tip.hidden = number === null || !event;
  if (tip.hidden) return;
  const trial = byNumber.get(number);
  tip.replaceChildren();
  el(tip, "b", "trial " + number + (trial.rank === null ? "" : " · rank " + trial.rank));
  const list = el(tip, "dl");
  const rows = [[data.metric || "objective", told(trial)], ...data.parameters.map((parameter, at) => [parameter.name, trial.texts[at] === null ? "–" : cut(trial.texts[at], 80)])];
  for (const [name, value] of [...rows.slice(0, 14), ["state", stateOf(trial)], ...(more || [])]) { el(list, "dt", name); el(list, "dd", value); }
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(innerWidth - box.width - 8, event.clientX + 16)) + "px";
  tip.style.top = Math.max(4, event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18) + "px";
}

function redraw() { for (const chart of charts) chart.draw(); }
function refilter() {
  const some = brushes.size > 0, count = trials.filter(kept).length;
  byId("filtered").hidden = byId("clear").hidden = !some;
  byId("filtered").textContent = count + " of " + trials.length + " trials are kept";
  redraw();
}

// The trial nearest to the pointer, among places that a chart has noted.
function follow(svg, places) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let near = null, least = 900;
    for (const item of places) {
      const far = (item.x - x) ** 2 + (item.y - y) ** 2;
      if (far < least) { least = far; near = item; }
    }
    light(near ? near.number : null, event, near && near.more);
  });
  svg.addEventListener("pointerleave", () => light(null));
}
