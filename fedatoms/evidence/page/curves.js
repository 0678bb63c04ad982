// Curves: over rounds, bytes or seconds; smoothed, or as a difference to the baseline; one crosshair for all lines.
const chosen = (list, name) => list.find((each) => each.setting === name || each.name === name);
function smoothed(values, count) {
  if (count < 2) return values;
  return values.map((_, n) => {
    const some = values.slice(Math.max(0, n - count + 1), n + 1);
    return some.reduce((a, b) => a + b, 0) / some.length;
  });
}
function at(xs, ys, x) { // linear between two points; null outside
  const n = xs.findIndex((each) => each >= x);
  if (n < 0 || (n === 0 && xs[0] > x)) return null;
  if (xs[n] === x) return ys[n];
  return ys[n - 1] + (ys[n] - ys[n - 1]) * (x - xs[n - 1]) / (xs[n] - xs[n - 1]);
}
function lineOf(setting, n, model) {
  const found = numbers.values[data.curves.indexOf(setting)][n], band = found.models[model];
  const axis = find("curve-axis").value, count = Number(find("curve-smooth").value);
  if (!band || (axis !== "rounds" && !found[axis].by.length)) return null; // seconds may be withheld
  const spent = axis !== "rounds" && summed(found[axis]);
  const until = new Map(found.rounds.map((round, k) => [round, spent ? spent[k] / (axis === "bytes" ? 1e9 : 1) : round]));
  const x = band.x.map((round) => axis === "rounds" ? round : until.get(round) ?? null);
  const part = (values) => values && smoothed(summed(values), count);
  return { x, y: part(band.y), low: part(band.low), high: part(band.high) };
}
async function drawCurves() {
  const setting = chosen(data.curves, find("curve-setting").value), model = find("curve-model").value;
  if (!setting || !window.Plotly) return;
  await unpackNumbers();
  const boxes = [...find("curve-lines").querySelectorAll("input")], traces = [];
  const difference = find("curve-difference").checked, name = baseOf(setting.setting);
  const base = difference ? lineOf(setting, Math.max(0, setting.lines.findIndex((line) => line.label === name)), model) : null;
  setting.lines.forEach((line, n) => {
    const band = boxes[n]?.checked ? lineOf(setting, n, model) : null;
    if (!band) return;
    const less = base ? band.x.map((x, k) => { const b = at(base.x, base.y, x); return b === null ? null : band.y[k] - b; }) : band.y;
    const known = band.x.map((_, k) => k).filter((k) => less[k] !== null); // nothing where the baseline has ended
    if (band.low && !base) traces.push({
      x: [...band.x, ...[...band.x].reverse()], y: [...band.high, ...[...band.low].reverse()], fill: "toself",
      fillcolor: line.colour + "2e", line: { width: 0 }, mode: "lines", hoverinfo: "skip", type: "scatter",
    });
    traces.push({
      x: known.map((k) => band.x[k]), y: known.map((k) => less[k]), name: line.label, type: "scatter", mode: band.x.length < 2 ? "markers" : line.mark ? "lines+markers" : "lines",
      line: { color: line.colour, dash: line.dash, width: 2 }, marker: { symbol: line.mark || "circle", size: 8, maxdisplayed: 9, color: line.colour },
      hovertemplate: `%{y:${difference ? "+" : ""}${setting.form}} ${difference && setting.unit === "%" ? "points" : setting.unit}`.trimEnd(),
    });
  });
  const last = Math.max(...traces.flatMap((trace) => trace.x), Number.MIN_VALUE), late = find("curve-part").value === "late";
  if (late) for (const trace of traces) trace.y = trace.y.map((y, k) => trace.x[k] * 2 >= last ? y : null);
  const axis = find("curve-axis").value, titles = { rounds: "round", bytes: "GB sent, both ways", seconds: traces.length ? "seconds" : "seconds: withheld, or no line is chosen" };
  const spike = { showspikes: true, spikemode: "across", spikesnap: "cursor", spikethickness: 1, spikedash: "solid" };
  return show("curve-figure", traces, {
    height: 440, hovermode: "x unified", hoverlabel: { namelength: -1 },
    xaxis: { title: { text: titles[axis] }, ...spike, ...(axis === "rounds" && last <= 10 && { dtick: 1 }), ...(late && { range: [last / 2, last] }) },
    yaxis: { title: { text: base ? `${setting.axis.replace("(%)", "(points)")}, minus ${name}` : setting.axis } },
  });
}

function listLines() {
  const setting = chosen(data.curves, find("curve-setting").value);
  if (!setting) return;
  const models = [...new Set(setting.lines.flatMap((line) => line.models))], before = find("curve-model").value;
  find("curve-model").replaceChildren(...models.map((name) => new Option(data.models[name] ? `${name}: ${data.models[name]}` : name, name)));
  find("curve-model").value = models.includes(before) ? before : models[models.length - 1];
  const boxes = setting.lines.map((line) => {
    const label = document.createElement("label"), box = document.createElement("input");
    Object.assign(box, { type: "checkbox", value: line.label, checked: line.shown });
    box.addEventListener("change", () => {
      lines = [...find("curve-lines").querySelectorAll("input")].flatMap((each, n) => each.checked ? [n] : []).join(".");
      write();
      drawCurves();
    });
    label.append(box, swatch(line), line.label + (line.seeds > 1 ? ` (${line.seeds} seeds)` : ""));
    return label;
  });
  find("curve-lines").replaceChildren(...boxes);
  const notes = ["With several seeds: the mean, and the range as a band."];
  if (!setting.lines.every((line) => line.shown)) notes.push("Lines of paper-results that are in none of the paper's tables are switched off at first, but for the best.");
  find("curve-note").textContent = notes.join(" ");
}

const glyphs = { circle: "●", square: "■", diamond: "◆", "triangle-up": "▲", x: "✖", cross: "✚", star: "★", "triangle-down": "▼", pentagon: "⬟" };
function swatch(line) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const add = (tag, values, text = "") => {
    const part = picture.appendChild(document.createElementNS(picture.namespaceURI, tag));
    for (const [name, value] of Object.entries(values)) part.setAttribute(name, value);
    part.textContent = text;
  };
  const dashes = { solid: "none", dash: "7 4", dot: "3 3" };
  add("line", { x1: 0, x2: 34, y1: 7, y2: 7, stroke: line.colour, "stroke-width": 3, "stroke-dasharray": dashes[line.dash] });
  const [mark, how] = line.mark.split(/-(?=open|dot)/), filled = how ? "none" : line.colour;
  if (mark) add("text", { x: 17, y: 11.5, "text-anchor": "middle", "font-size": 12, fill: filled, stroke: line.colour }, glyphs[mark]);
  picture.setAttribute("class", "swatch");
  picture.setAttribute("aria-hidden", "true");
  return picture;
}
