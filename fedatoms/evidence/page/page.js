"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const reset = (select, names) => select.replaceChildren(...names.map((name) => new Option(name, name)));

// Tables: a header button sorts by its column, numbers by value; cells without a value stay last.
function sort(head) {
  const table = head.closest("table"), body = table.tBodies[0], place = head.cellIndex;
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const numeric = head.classList.contains("number");
  const key = (row) => row.cells[place].dataset.key;
  const order = (a, b) => numeric ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
  const rows = [...body.rows].sort((a, b) => {
    if (!key(a) || !key(b)) return (key(a) ? 0 : 1) - (key(b) ? 0 : 1);
    return up ? order(key(a), key(b)) : order(key(b), key(a));
  });
  body.append(...rows);
}
for (const head of document.querySelectorAll("th")) {
  head.querySelector("button").addEventListener("click", () => sort(head));
}

// Colours follow the system until the button is used.
const system = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
function nameTheme() { find("theme").textContent = isDark() ? "Light colours" : "Dark colours"; }
find("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
  draw();
});
system.addEventListener("change", () => { nameTheme(); draw(); });
nameTheme();

// Figures
function layout(more) {
  const ink = getComputedStyle(document.body).color, quiet = getComputedStyle(find("curve-figure")).borderTopColor;
  const axis = { gridcolor: quiet, zerolinecolor: quiet, linecolor: quiet, automargin: true, fixedrange: false };
  const { xaxis, yaxis, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: "system-ui, sans-serif", size: 13 },
    margin: { l: 56, r: 16, t: 32, b: 56 }, showlegend: false, dragmode: "pan",
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}
const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendChartToCloud"] };
function show(id, traces, more) {
  if (!window.Plotly) return; // not unpacked yet: everything is drawn once it is
  find(id).style.height = `${more.height + 2}px`; // with its border
  return Plotly.react(find(id), traces, layout(more), config);
}
const chosen = (list, name) => list.find((each) => each.setting === name || each.name === name);

function drawCurves() {
  const setting = chosen(data.curves, find("curve-setting").value), model = find("curve-model").value;
  if (!setting) return;
  const hidden = new Set([...find("curve-lines").querySelectorAll("input:not(:checked)")].map((box) => box.value));
  const traces = [];
  for (const line of setting.lines) {
    const band = line.models[model];
    if (!band || hidden.has(line.label)) continue;
    const colour = line.colour;
    if (band.low) traces.push({
      x: [...band.x, ...[...band.x].reverse()], y: [...band.high, ...[...band.low].reverse()], fill: "toself",
      fillcolor: colour + "33", line: { width: 0 }, mode: "lines", hoverinfo: "skip", type: "scatter",
    });
    traces.push({
      x: band.x, y: band.y, name: line.label, type: "scatter", mode: band.x.length > 1 ? "lines" : "markers",
      line: { color: colour, dash: line.dash, width: 2 }, hovertemplate: setting.score + ", round %{x}<extra>%{fullData.name}</extra>",
    });
  }
  const late = find("curve-part").value === "late", last = Math.max(...traces.flatMap((trace) => trace.x), 1);
  if (late) for (const trace of traces) trace.y = trace.y.map((y, n) => trace.x[n] * 2 >= last ? y : null);
  return show("curve-figure", traces, {
    height: 440, xaxis: { title: { text: "round" }, ...(last <= 10 && { dtick: 1 }), ...(late && { range: [last / 2, last] }) }, yaxis: { title: { text: setting.axis } }, hoverlabel: { namelength: -1 },
  });
}

function listLines() {
  const setting = chosen(data.curves, find("curve-setting").value);
  if (!setting) return;
  const models = [...new Set(setting.lines.flatMap((line) => Object.keys(line.models)))];
  const kept = find("curve-model").value;
  reset(find("curve-model"), models);
  find("curve-model").value = models.includes(kept) ? kept : models[models.length - 1];
  const boxes = setting.lines.map((line) => {
    const label = document.createElement("label"), box = document.createElement("input");
    Object.assign(box, { type: "checkbox", value: line.label, checked: line.shown });
    box.addEventListener("change", drawCurves);
    label.append(box, swatch(line), line.label + (line.seeds > 1 ? ` (${line.seeds} seeds)` : ""));
    return label;
  });
  find("curve-lines").replaceChildren(find("curve-lines").querySelector("legend"), ...boxes);
  const notes = ["With several seeds: the mean, and the range as a band."];
  if (!setting.lines.every((line) => line.shown)) notes.push("Lines that are not in the paper's tables are switched off at first.");
  find("curve-note").textContent = notes.join(" ");
}

function swatch(line) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const stroke = document.createElementNS(picture.namespaceURI, "line");
  const dashes = { solid: "none", dash: "7 4", dot: "3 3", dashdot: "8 3 3 3", longdash: "13 3", longdashdot: "13 3 3 3" };
  const ends = { x1: 0, x2: 30, y1: 3, y2: 3 };
  const drawn = { ...ends, stroke: line.colour, "stroke-width": 3, "stroke-dasharray": dashes[line.dash] };
  for (const [name, value] of Object.entries(drawn)) stroke.setAttribute(name, value);
  picture.setAttribute("class", "swatch");
  picture.setAttribute("aria-hidden", "true");
  picture.append(stroke);
  return picture;
}

const groupColours = { atoms: "#d55e00", coefficients: "#e69f00", head: "#009e73", rest: "#0072b2", statistics: "#cc79a7" };
function drawBytes() {
  const setting = chosen(data.bytes, find("bytes-setting").value), way = find("bytes-way").value;
  if (!setting) return;
  const labels = setting.runs.map((run) => run.label);
  const most = Math.max(...setting.runs.map((run) => Object.values(run[way]).reduce((a, b) => a + b, 0)));
  const [unit, size] = most > 1e9 ? ["GB", 1e9] : ["MB", 1e6];
  const traces = data.groups.filter((name) => setting.runs.some((run) => run[way][name])).map((name) => ({
    type: "bar", orientation: "h", name, y: labels, x: setting.runs.map((run) => (run[way][name] || 0) / size),
    marker: { color: groupColours[name] }, hovertemplate: `%{x:.4g} ${unit}<extra>${name}</extra>`,
  }));
  const narrow = find("bytes-figure").clientWidth < 600;
  return show("bytes-figure", traces, {
    height: (narrow ? 190 : 130) + labels.length * (narrow ? 46 : 26), barmode: "stack", showlegend: true, legend: { orientation: "h", y: 1, yanchor: "bottom" },
    xaxis: { title: { text: `${unit} ${way}, all clients and rounds` } },
    yaxis: { autorange: "reversed", type: "category", ...(narrow && { tickfont: { size: 10 }, ticktext: labels.map(fold), tickvals: labels }) },
  });
}
const fold = (label) => label.replace(/(.{12,}?) /g, "$1<br>");

function drawSplit() {
  const split = chosen(data.splits, find("split-name").value);
  if (!split) return;
  const dark = isDark();
  return show("split-figure", [{
    type: "heatmap", z: split.counts, colorscale: [[0, "rgba(0,0,0,0)"], [1e-9, dark ? "#1f4a66" : "#cfe6f5"], [1, dark ? "#8fd0f7" : "#00467a"]],
    zmin: 0, colorbar: { title: { text: "images" }, thickness: 12 }, hovertemplate: "client %{y}, class %{x}: %{z}<extra></extra>", xgap: 1, ygap: split.counts.length > 50 ? 0 : 1,
  }], {
    height: Math.max(320, Math.min(900, 90 + split.counts.length * 16)),
    xaxis: { title: { text: "class" }, dtick: split.counts[0].length > 20 ? undefined : 1, showgrid: false, zeroline: false },
    yaxis: { title: { text: "client" }, autorange: "reversed", showgrid: false, zeroline: false },
  });
}

// The traces are made in Python; only the colours of contours and heatmaps depend on the theme.
function drawMeasure(plot) {
  const grounds = { contour: isDark() ? ["#1b1f26", "#474e5a"] : ["#fafbfc", "#b4bac4"], heatmap: isDark() ? ["#1f4a66", "#8fd0f7"] : ["#cfe6f5", "#00467a"] };
  const scale = ([low, high]) => ({ colorscale: [[0, low], [1, high]], colorbar: { thickness: 12, title: { text: "loss" } } });
  const contour = { line: { width: 0.5 }, hovertemplate: "loss %{z:.4g}<extra></extra>" };
  const traces = plot.traces.map((trace) => trace.type in grounds ? { ...trace, ...scale(grounds[trace.type]), ...(trace.type === "contour" && contour) } : trace);
  return show(plot.id, traces, { height: 384, showlegend: true, hoverlabel: { namelength: -1 }, ...plot.layout });
}

// One figure after the other, visible ones first, so that the page stays responsive; a newer pass ends an older one.
let passes = 0;
const figures = [
  ["curve-figure", drawCurves], ...data.measures.map((plot) => [plot.id, () => drawMeasure(plot)]), ["bytes-figure", drawBytes], ["split-figure", drawSplit],
];
async function draw() {
  if (!window.Plotly) return;
  const mine = ++passes, away = ([id]) => Math.abs(find(id).getBoundingClientRect().top);
  for (const [, figure] of figures.sort((one, other) => away(one) - away(other))) {
    await figure();
    await new Promise((done) => setTimeout(done));
    if (mine !== passes) return;
  }
  root.dataset.drawn = "yes";
}

function offer(select, names, change) {
  reset(find(select), names);
  find(select).addEventListener("change", change);
  find(select).closest("section").classList.toggle("empty", !names.length);
}
offer("curve-setting", data.curves.map((each) => each.setting), () => { listLines(); drawCurves(); });
for (const id of ["curve-model", "curve-part"]) find(id).addEventListener("change", drawCurves);
offer("bytes-setting", data.bytes.map((each) => each.setting), drawBytes);
find("bytes-way").addEventListener("change", drawBytes);
offer("split-name", data.splits.map((each) => each.name), drawSplit);
listLines();

// The library is large: it is unpacked when a figure comes near, so that the page itself opens at once.
async function unpack() {
  const letters = atob(find("plotly").textContent), packed = new Uint8Array(letters.length);
  for (let n = 0; n < packed.length; n++) packed[n] = letters.charCodeAt(n);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  draw();
}
const near = new IntersectionObserver((figures) => {
  if (!figures.some((figure) => figure.isIntersecting)) return;
  near.disconnect();
  unpack().catch(() => root.classList.add("undrawn"));
}, { rootMargin: "400px" });
for (const figure of document.querySelectorAll(".figure")) near.observe(figure);
