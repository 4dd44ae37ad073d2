// The head of the page, the table, and the start.
function head() {
  const sweep = data.sweep;
  byId("name").textContent = sweep.name;
  byId("state").textContent = sweep.state;
  byId("state").classList.add(sweep.state);
  const objective = sweep.objective ? "objective " + sweep.objective : "no objective";
  byId("about").textContent = [`sweep ${sweep.id}`, `method ${sweep.method}`, objective, "begun " + sweep.created_at.slice(0, 16).replace("T", " ") + " UTC", sweep.why].filter(Boolean).join(" · ");
  const tiles = byId("tiles");
  const tile = (value, name, first) => { const box = el(tiles, "div", null, "tile" + (first ? " first" : "")); el(box, "b", value); el(box, "span", name); return box; };
  if (data.metric) {
    const box = tile(best ? told(best) : "–", best ? `best ${data.metric}, trial ${best.number}` : "no trial that ran to its end has told " + data.metric, true);
    if (best) el(box, "small", cut(data.parameters.map((parameter, at) => `${parameter.name} = ${best.texts[at] === null ? "–" : cut(best.texts[at], 40)}`).join(" · "), 300));
  }
  tile(`${sweep.completed} / ${Math.max(sweep.planned || 0, sweep.made)}`, "trials completed");
  if (sweep.stopped_early) tile(sweep.stopped_early, "of them stopped early");
  if (sweep.paused) tile(sweep.paused, "paused");
  if (sweep.counts.RUNNING) tile(sweep.counts.RUNNING, "running");
  if (sweep.failed) tile(sweep.failed, "failed");
  const spent = trials.map((trial) => trial.seconds).filter((value) => value !== null);
  if (spent.length) tile(spell(spent.reduce((a, b) => a + b, 0)), "of computing, all trials together");
  byId("foot").textContent = `Made by jobrunner, ${data.made}. This file is whole: it loads nothing from anywhere.` + (data.all_trials > trials.length ? ` It has the ${trials.length} best of ${data.all_trials} trials.` : "");
  byId("bar").hidden = !able.length;
  byId("bar").style.display = able.length ? "" : "none";
}

const COLUMNS = [
  ...(data.metric ? [{ name: "rank", num: true, sort: (t) => t.rank === null ? NaN : t.rank, text: (t) => t.rank === null ? "–" : String(t.rank) }] : []),
  { name: "trial", num: true, sort: (t) => t.number, text: (t) => String(t.number) },
  ...(data.metric ? [{ name: data.metric, num: true, sort: (t) => t.value, text: told }] : []),
  ...data.parameters.map((parameter, at) => {
    const plain = parameter.kind === "number" || parameter.values.every((text) => text !== "" && Number.isFinite(Number(text)));
    return { name: parameter.name, num: plain, sort: (t) => t.texts[at] === null ? NaN : plain ? Number(t.texts[at]) : t.texts[at], text: (t) => t.texts[at] === null ? "–" : cut(t.texts[at], 200) };
  }),
  ...(data.metric ? [{ name: "step", num: true, sort: (t) => num(t.step), text: (t) => t.step === null ? "–" : fmt(num(t.step)) }] : []),
  { name: "state", sort: stateOf, text: stateOf },
  { name: "host", sort: (t) => t.host || "", text: (t) => t.host || "–" },
  { name: "ran", num: true, sort: (t) => t.seconds === null ? NaN : t.seconds, text: (t) => spell(t.seconds) },
  { name: "job", sort: (t) => t.job || "", text: (t) => t.job || "–" },
];

function table() {
  let by = null, down = false, count = 50, words = "";
  const rows = new Map(), columns = byId("columns");
  const headers = COLUMNS.map((column) => {
    const cell = el(columns, "th", null, column.num ? "num" : ""), button = el(cell, "button", column.name);
    button.type = "button";
    button.addEventListener("click", () => { down = by === column && !down; by = column; chart.draw(); });
    return cell;
  });
  function order(list) {
    if (!by) return list;
    const sign = down ? -1 : 1;
    return list.map((trial) => [by.sort(trial), trial]).sort(([a], [b]) => {
      const emptyA = Number.isNaN(a), emptyB = Number.isNaN(b);
      if (emptyA || emptyB) return emptyA - emptyB; // what has no value comes last, whichever way
      return sign * (a < b ? -1 : a > b ? 1 : 0);
    }).map(([, trial]) => trial);
  }
  const chart = { draw() {
    const matches = (trial) => !words || COLUMNS.some((column) => column.text(trial).toLowerCase().includes(words));
    const list = order(trials.filter((trial) => kept(trial) && matches(trial)));
    const body = byId("rows");
    body.replaceChildren();
    rows.clear();
    for (const trial of list.slice(0, count)) {
      const row = el(body, "tr", null, trial === best ? "top" : "");
      COLUMNS.forEach((column, at) => {
        const cell = el(row, "td", null, column.num ? "num" : column.name === "state" ? trial.outcome : "");
        if (at === 0) { const mark = el(cell, "i", null, "dot"); mark.style.background = colour(trial); }
        const text = column.text(trial);
        cell.append(text);
        if (text.length > 30) cell.title = text;
      });
      row.addEventListener("pointerenter", () => light(trial.number));
      row.addEventListener("pointerleave", () => light(null));
      rows.set(trial.number, row);
    }
    headers.forEach((cell, at) => cell.setAttribute("aria-sort", COLUMNS[at] !== by ? "none" : down ? "descending" : "ascending"));
    byId("shown").textContent = `${Math.min(count, list.length)} of ${list.length} trials`;
    byId("more").hidden = list.length <= count;
  }, light(trial) {
    for (const row of rows.values()) row.classList.remove("lit");
    if (trial && rows.has(trial.number)) rows.get(trial.number).classList.add("lit");
  } };
  byId("more").addEventListener("click", () => { count += 200; chart.draw(); });
  byId("search").addEventListener("input", (event) => { words = event.target.value.toLowerCase().trim(); chart.draw(); });
  charts.push(chart);
}

function start() {
  const values = able.map((trial) => trial.value).sort((a, b) => a - b);
  const box = byId("log");
  objectiveLog = box.checked = wantsLog(values);
  box.disabled = !values.some((value) => value > 0);
  box.addEventListener("change", () => { objectiveLog = box.checked; });
  head(); historyChart(); importanceBars(); parallel(); curvesChart(); slices(); table();
  const paint = () => {
    byId("gradient").style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(shade).join(", ")})`;
    redraw();
  };
  paint();
  dark.addEventListener("change", paint);
  let width = innerWidth, soon = 0;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; cancelAnimationFrame(soon); soon = requestAnimationFrame(redraw); } });
}
start();
