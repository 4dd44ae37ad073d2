// Parallel coordinates: lines on a canvas, which stays quick with thousands, axes and brushes above it.
function parallel() {
  const box = byId("parallel");
  const spans = new Map(); // axis -> [from, to] in shares of its length
  const chart = { draw() {
    if (!able.length || !data.parameters.length) return empty(box, nothing());
    const axes = data.parameters.length + 1, height = 380, top = 34, bottom = height - 16;
    box.replaceChildren();
    const width = Math.max(box.clientWidth, axes * 96 + 60), left = 74, right = width - 62;
    const canvas = el(box, "canvas"), ratio = Math.min(3, devicePixelRatio || 1);
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.width = width + "px"; canvas.style.height = height + "px";
    const svg = draw(box, "svg", { width, height, role: "img", "aria-label": "parallel coordinates" });
    const xOf = (at) => left + (right - left) * at / (axes - 1);
    const y = objectiveScale(able.map((trial) => trial.value), bottom, top);
    if (!y) return empty(box, "No value has a logarithm.");
    const scales = data.parameters.map((_, index) => parameterScale(index, bottom, top));
    scales.push({ at: (trial) => y(trial.value), ticks: y.ticks.map((value) => [y(value), fmt(value, 3)]) });
    chart.lines = new Map(able.map((trial) => [trial.number, scales.map((item, at) => [xOf(at), item.at(trial)])]));
    paint(canvas.getContext("2d"), ratio, chart.lines);
    scales.forEach((item, at) => axis(svg, item, at, xOf(at), top, bottom, axes));
    chart.over = draw(svg, "g", { class: "over" });
    const places = [];
    for (const [number, line] of chart.lines) if (kept(byNumber.get(number))) for (const [px, py] of line) if (py !== null) places.push({ x: px, y: py, number });
    follow(svg, places);
  }, light(trial) {
    if (!chart.over) return;
    chart.over.replaceChildren();
    const line = trial && chart.lines.get(trial.number);
    if (line) { draw(chart.over, "path", { d: bend(line), fill: "none", stroke: "var(--card)", "stroke-width": 7 }); draw(chart.over, "path", { d: bend(line), fill: "none", stroke: colour(trial), "stroke-width": 3.5 }); }
  } };

  function paint(pen, ratio, lines) {
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement), muted = style.getPropertyValue("--muted").trim();
    const many = able.length > 300, some = brushes.size > 0;
    for (const on of [false, true]) {
      for (const trial of [...able].reverse()) { // the best on top
        if (kept(trial) !== on) continue;
        pen.strokeStyle = on ? colour(trial) : muted;
        pen.globalAlpha = !on ? 0.06 : trial === best ? 1 : some ? 0.8 : many ? 0.16 + 0.5 * (1 - trial.rank / ranked.length) ** 2 : 0.72;
        pen.lineWidth = trial === best && on ? 3.2 : many ? 1.1 : 1.7;
        pen.stroke(new Path2D(bend(lines.get(trial.number))));
      }
    }
  }

  function bend(line) {
    let d = "", before = null;
    for (const [x, y] of line) {
      if (y === null) { before = null; continue; }
      if (before) { const middle = (before[0] + x) / 2; d += `C${middle},${before[1]} ${middle},${y} ${x},${y}`; } else d += `M${x},${y}`;
      before = [x, y];
    }
    return d;
  }

  function axis(svg, item, at, x, top, bottom, axes) {
    const last = at === axes - 1, name = last ? data.metric : data.parameters[at].name;
    draw(svg, "text", { x, y: 14, "text-anchor": "middle", class: "name" }, cut(name, Math.max(8, Math.floor(900 / axes / 7))));
    draw(svg, "line", { x1: x, x2: x, y1: top, y2: bottom, class: "axis" });
    for (const [y, text] of item.ticks) {
      draw(svg, "line", { x1: x - 3, x2: x + 3, y1: y, y2: y, class: "axis" });
      draw(svg, "text", { x: last ? x + 8 : x - 8, y: y + 4, "text-anchor": last ? "start" : "end", class: "value" }, cut(text, 11));
    }
    if (spans.has(at)) { const [a, b] = spans.get(at); draw(svg, "rect", { x: x - 8, width: 16, y: a, height: b - a, rx: 3, class: "brush" }); }
    brushable(svg, item, at, x, top, bottom);
  }

  function brushable(svg, item, at, x, top, bottom) {
    const grab = draw(svg, "rect", { x: x - 13, y: top - 6, width: 26, height: bottom - top + 12, class: "grab" });
    grab.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const box = svg.getBoundingClientRect(), within = (e) => Math.min(bottom + 4, Math.max(top - 4, e.clientY - box.top));
      const begin = within(event), shown = draw(svg, "rect", { x: x - 8, width: 16, y: begin, height: 0, rx: 3, class: "brush" });
      const move = (e) => { const now = within(e); shown.setAttribute("y", Math.min(begin, now)); shown.setAttribute("height", Math.abs(now - begin)); };
      const up = (e) => {
        removeEventListener("pointermove", move); removeEventListener("pointerup", up);
        const a = Math.min(begin, within(e)), b = Math.max(begin, within(e));
        if (b - a < 4) { spans.delete(at); brushes.delete(at); } else {
          spans.set(at, [a, b]);
          const inside = new Set(able.filter((trial) => { const y = item.at(trial); return y !== null && y >= a && y <= b; }).map((trial) => trial.number));
          brushes.set(at, (trial) => inside.has(trial.number));
        }
        refilter();
      };
      addEventListener("pointermove", move); addEventListener("pointerup", up);
    });
  }

  byId("clear").addEventListener("click", () => { spans.clear(); brushes.clear(); refilter(); });
  byId("log").addEventListener("change", () => { // what was kept on the objective's axis lies elsewhere now
    spans.delete(data.parameters.length);
    brushes.delete(data.parameters.length);
    refilter();
  });
  charts.push(chart);
}
