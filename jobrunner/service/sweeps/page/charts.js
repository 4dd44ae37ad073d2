// Best so far, importance, curves, slices.
function empty(box, text) { box.replaceChildren(); el(box, "p", text, "empty"); }
const nothing = () => data.metric ? "No trial has told a finite value of " + data.metric + " yet." : "This sweep has no objective, so there is nothing to compare its trials by.";

function objectiveScale(values, from, to) {
  const found = ends(values, objectiveLog);
  return found && scale(found[0], found[1], from, to, objectiveLog);
}

function frame(svg, width, height, left, bottom, yScale, xTicks, yName, xName, letters) {
  for (const value of yScale.ticks) {
    const y = yScale(value);
    draw(svg, "line", { x1: left, x2: width - 8, y1: y, y2: y, class: "rule" });
    draw(svg, "text", { x: left - 7, y: y + 4, "text-anchor": "end" }, fmt(value, 3));
  }
  for (const [x, text] of xTicks) draw(svg, "text", { x, y: bottom + 17, "text-anchor": "middle" }, cut(text, letters || 14));
  draw(svg, "line", { x1: left, x2: width - 8, y1: bottom, y2: bottom, class: "axis" });
  if (yName) draw(svg, "text", { x: left - 7, y: 11, "text-anchor": "end", class: "name" }, cut(yName, 28)).setAttribute("text-anchor", yName.length > 7 ? "start" : "end");
  if (yName && yName.length > 7) svg.lastChild.setAttribute("x", 2);
  if (xName) draw(svg, "text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle", class: "name" }, cut(xName, 40));
}

// A dot of a trial; a small triangle at the edge if its value lies beyond the axis.
function dot(svg, x, y, value, yScale, r, look) {
  if (!yScale.beyond(value)) return draw(svg, "circle", { cx: x, cy: y, r, ...look });
  const way = value > yScale.high ? -1 : 1;
  return draw(svg, "path", { d: `M${x - 4},${y} L${x + 4},${y} L${x},${y + 6 * way} Z`, ...look });
}

function beyondNote(box, values, yScale) {
  const far = values.filter((value) => yScale.beyond(value)), odd = values.filter((value) => !Number.isFinite(value));
  const words = [];
  if (far.length) words.push(`▲ ${far.length} beyond the axis (up to ${fmt(highest ? Math.min(...far) : Math.max(...far), 3)})`);
  if (odd.length) words.push(`${odd.length} not drawn: nan or infinite`);
  for (const text of words) el(box, "span", text);
}

function historyChart() {
  const box = byId("history");
  const chart = { draw() {
    const steps = data.history.map((step) => ({ ...step, value: num(step.value), best: num(step.best) }));
    const finite = steps.filter((step) => Number.isFinite(step.value));
    if (!finite.length) return empty(box, nothing());
    box.replaceChildren();
    const width = Math.max(280, box.clientWidth), height = 300, left = 62, bottom = height - 40;
    const svg = draw(box, "svg", { width, height, role: "img", "aria-label": "best value so far over trials" });
    const y = objectiveScale(finite.map((step) => step.value), bottom, 22);
    if (!y) return empty(box, "No value has a logarithm.");
    const last = Math.max(...steps.map((step) => step.number)), first = Math.min(...steps.map((step) => step.number));
    const x = scale(first === last ? first - 0.5 : first, first === last ? last + 0.5 : last, left + 8, width - 18, false);
    frame(svg, width, height, left, bottom, y, x.ticks.filter(Number.isInteger).map((value) => [x(value), String(value)]), data.metric, "trial");
    const r = steps.length > 300 ? 2.6 : 4, places = [];
    for (const step of finite) {
      const trial = byNumber.get(step.number), px = x(step.number), py = y(step.value), on = kept(trial);
      const look = step.stopped_early ? { fill: "none", stroke: colour(trial), "stroke-width": 1.5 } : { fill: colour(trial) };
      dot(svg, px, py, step.value, y, r, { ...look, opacity: on ? (steps.length > 300 ? 0.75 : 0.95) : 0.12 });
      if (on) places.push({ x: px, y: py, number: step.number });
    }
    let path = "";
    for (const step of steps) if (Number.isFinite(step.best)) path += path ? `H${x(step.number).toFixed(1)}V${y(step.best).toFixed(1)}` : `M${x(step.number).toFixed(1)},${y(step.best).toFixed(1)}`;
    draw(svg, "path", { d: path + `H${width - 10}`, class: "bestline" });
    chart.over = draw(svg, "g", { class: "over" });
    chart.places = new Map(places.map((item) => [item.number, item]));
    follow(svg, places);
    const legend = el(box, "div", null, "legend");
    key(legend, "best so far", "line");
    key(legend, "trial", "dot");
    if (finite.some((step) => step.stopped_early)) key(legend, "stopped early", "ring");
    beyondNote(legend, steps.map((step) => step.value), y);
  }, light(trial) { halo(chart, trial); } };
  charts.push(chart);
}

function halo(chart, trial) {
  if (!chart.over) return;
  chart.over.replaceChildren();
  const place = trial && chart.places.get(trial.number);
  if (place) { draw(chart.over, "circle", { cx: place.x, cy: place.y, r: 5, fill: colour(trial) }); draw(chart.over, "circle", { cx: place.x, cy: place.y, r: 7, class: "halo" }); }
}

function key(legend, text, mark) {
  const item = el(legend, "span"), svg = draw(item, "svg", { width: 20, height: 14 });
  if (mark === "line") draw(svg, "path", { d: "M0,7H20", class: "bestline" });
  else if (mark === "dot") draw(svg, "circle", { cx: 10, cy: 7, r: 4, fill: shade(0.35) });
  else if (mark === "ring") draw(svg, "circle", { cx: 10, cy: 7, r: 4, fill: "none", stroke: shade(0.35), "stroke-width": 1.5 });
  else endMark(svg, 10, 7, mark);
  el(item, "span", text);
}

// How a curve ends, where it does not end at its end.
function endMark(svg, x, y, how) {
  const line = (d, stroke) => draw(svg, "path", { d, stroke, "stroke-width": 2, fill: "none" });
  if (how === "stopped") return line(`M${x - 3.5},${y - 3.5}l7,7m0,-7l-7,7`, "var(--warn)");
  if (how === "paused") return line(`M${x - 2.5},${y - 4.5}v9m5,0v-9`, "var(--warn)");
  if (how === "running") return draw(svg, "circle", { cx: x, cy: y, r: 3.5, fill: "var(--card)", stroke: "var(--accent)", "stroke-width": 2 });
  if (["failed", "timeout", "lost"].includes(how)) return draw(svg, "rect", { x: x - 3.5, y: y - 3.5, width: 7, height: 7, fill: "var(--bad)" });
  if (how === "cancelled") return draw(svg, "rect", { x: x - 3, y: y - 3, width: 6, height: 6, fill: "var(--card)", stroke: "var(--muted)", "stroke-width": 1.5 });
  return null;
}

function importanceBars() {
  const box = byId("importance"), found = data.importance;
  box.replaceChildren();
  if (!found || !found.shares.length) return empty(box, data.metric ? "Not known: " + (found ? found.note : "nothing was told") + "." : nothing());
  const top = found.method === "fanova" ? Math.max(...found.shares.map((item) => item.share)) || 1 : 1;
  for (const item of found.shares.slice(0, 12)) {
    const row = el(box, "div", null, "share"), head = el(row, "div");
    el(head, "span", item.name);
    el(head, "span", (item.share * 100).toFixed(item.share < 0.0995 ? 1 : 0) + " %");
    const track = el(row, "div", null, "track");
    el(track, "i").style.width = Math.max(0.5, 100 * item.share / top) + "%";
  }
  if (found.shares.length > 12) el(box, "p", `and ${found.shares.length - 12} more, each less`, "hint");
  el(box, "p", found.note, "muted").style.fontSize = "12.5px";
}

function curvesChart() {
  const box = byId("curves"), shown = data.curves.shown.filter((curve) => byNumber.has(curve.number));
  byId("curvestitle").textContent = "Learning curves" + (data.metric ? ": " + data.metric : "");
  const lines = shown.map((curve) => ({ trial: byNumber.get(curve.number), points: curve.points.map(([step, value]) => [num(step), num(value)]) }));
  lines.sort((a, b) => (b.trial.rank || 1e9) - (a.trial.rank || 1e9));
  const chart = { draw() {
    const all = lines.flatMap((line) => line.points).filter(([step, value]) => Number.isFinite(step) && Number.isFinite(value));
    if (!all.length) return empty(box, nothing());
    box.replaceChildren();
    const width = Math.max(280, box.clientWidth), height = 360, left = 62, bottom = height - 40;
    const svg = draw(box, "svg", { width, height, role: "img", "aria-label": "learning curves" });
    const y = objectiveScale(all.map((point) => point[1]), bottom, 22);
    if (!y) return empty(box, "No value has a logarithm.");
    let low = Infinity, high = -Infinity;
    const whole = all.every(([step]) => Number.isInteger(step)); // epochs: there is nothing at 1.5
    for (const [step] of all) { low = Math.min(low, step); high = Math.max(high, step); }
    const x = scale(low === high ? low - 0.5 : low, low === high ? high + 0.5 : high, left + 8, width - 18, false);
    frame(svg, width, height, left, bottom, y, x.ticks.filter((value) => Number.isInteger(value) || !whole).map((value) => [x(value), fmt(value)]), data.metric, "step");
    const places = [], marks = draw(svg, "g", {}), many = lines.length > 60;
    chart.paths = new Map();
    for (const { trial, points } of lines) {
      const on = kept(trial), ours = points.filter((point) => point.every(Number.isFinite));
      if (!ours.length) continue;
      let d = "", pen = false;
      for (const point of points) {
        if (!point.every(Number.isFinite)) { pen = false; continue; }
        d += (pen ? "L" : "M") + x(point[0]).toFixed(1) + "," + y(point[1]).toFixed(1);
        pen = true;
      }
      const first = trial === best;
      svg.insertBefore(draw(svg, "path", { d, fill: "none", stroke: colour(trial), "stroke-width": first ? 3 : many ? 1.2 : 1.7, opacity: on ? (first ? 1 : many ? 0.6 : 0.85) : 0.07, "stroke-linejoin": "round" }), marks);
      chart.paths.set(trial.number, d);
      if (!on) continue;
      const [step, value] = ours[ours.length - 1];
      if (ours.length === 1) draw(svg, "circle", { cx: x(step), cy: y(value), r: 2.5, fill: colour(trial) });
      endMark(marks, x(step), y(value), trial.outcome);
      for (const [at, told] of ours) places.push({ x: x(at), y: y(told), number: trial.number, more: [["here", fmt(told, 5) + " at " + fmt(at)]] });
    }
    chart.over = draw(svg, "g", { class: "over" });
    follow(svg, places);
    const legend = el(box, "div", null, "legend");
    const seen = new Set(lines.map((line) => line.trial.outcome));
    for (const [how, text] of [["stopped", "stopped early"], ["paused", "paused"], ["running", "running"], ["cancelled", "cancelled"]]) if (seen.has(how)) key(legend, text, how);
    if (["failed", "timeout", "lost"].some((how) => seen.has(how))) key(legend, "failed", "failed");
    if (data.curves.told > lines.length) el(legend, "span", `${lines.length} of ${data.curves.told} trials: the best, and others from the best to the worst`);
    beyondNote(legend, all.map((point) => point[1]), y);
  }, light(trial) {
    if (!chart.over) return;
    chart.over.replaceChildren();
    const d = trial && chart.paths.get(trial.number);
    if (d) { draw(chart.over, "path", { d, fill: "none", stroke: "var(--card)", "stroke-width": 7 }); draw(chart.over, "path", { d, fill: "none", stroke: colour(trial), "stroke-width": 3.5 }); }
  } };
  charts.push(chart);
}

const MOST_SLICES = 24;
function slices() {
  const box = byId("slices");
  if (!able.length) return empty(box, nothing());
  const order = data.importance && data.importance.shares.length ? data.importance.shares.map((item) => data.parameters.findIndex((parameter) => parameter.name === item.name)) : data.parameters.map((_, at) => at);
  order.slice(0, MOST_SLICES).forEach((index) => slice(el(box, "div", null, "slice"), index));
  if (order.length > MOST_SLICES) el(box, "p", `and ${order.length - MOST_SLICES} parameters more, each less important`, "hint");
}

function slice(box, index) {
  const chart = { draw() {
    box.replaceChildren();
    const width = Math.max(220, box.clientWidth), height = 230, left = 56, bottom = height - 40;
    const svg = draw(box, "svg", { width, height, role: "img", "aria-label": "objective by " + data.parameters[index].name });
    const y = objectiveScale(able.map((trial) => trial.value), bottom, 12), x = parameterScale(index, left + 10, width - 18);
    if (!y) return empty(box, "No value has a logarithm.");
    const room = Math.max(1, Math.ceil(x.ticks.length / Math.max(2, (width - left) / 48)));
    const apart = (width - left - 28) * room / Math.max(1, x.ticks.length);
    frame(svg, width, height, left, bottom, y, x.ticks.filter((_, at) => at % room === 0), "", data.parameters[index].name, Math.max(4, Math.floor(apart / 7.2)));
    const r = able.length > 300 ? 2.2 : 3.6, places = [];
    for (const trial of [...able].reverse()) {
      const px = x.at(trial), py = y(trial.value), on = kept(trial);
      if (px === null) continue;
      dot(svg, px, py, trial.value, y, r, { fill: colour(trial), opacity: on ? (able.length > 300 ? 0.7 : 0.9) : 0.08 });
      if (on) places.push({ x: px, y: py, number: trial.number });
      if (trial === best) draw(svg, "circle", { cx: px, cy: py, r: 7, fill: "none", stroke: "var(--best)", "stroke-width": 2 });
    }
    chart.over = draw(svg, "g", { class: "over" });
    chart.places = new Map(places.map((item) => [item.number, item]));
    follow(svg, places);
  }, light(trial) { halo(chart, trial); } };
  charts.push(chart);
}
