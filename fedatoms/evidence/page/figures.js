// Colours follow the system until the button is used.
const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
function nameTheme() { find("theme").textContent = isDark() ? "Light colours" : "Dark colours"; }
find("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
  draw();
});
system.addEventListener("change", () => { nameTheme(); draw(); });
nameTheme();

function layout(more) {
  const ink = getComputedStyle(document.body).color, quiet = getComputedStyle(find("curve-figure")).borderTopColor;
  const ground = getComputedStyle(document.body).backgroundColor;
  const axis = { gridcolor: quiet, zerolinecolor: quiet, linecolor: quiet, spikecolor: ink, automargin: true, fixedrange: false };
  const { xaxis, yaxis, hoverlabel, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: "system-ui, sans-serif", size: 13 },
    margin: { l: 56, r: 16, t: 32, b: 56 }, showlegend: false, dragmode: false, modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: ink },
    hoverlabel: { bgcolor: ground, bordercolor: quiet, font: { color: ink }, ...hoverlabel },
    xaxis: { ...axis, ...xaxis, title: { standoff: 8, ...xaxis?.title } }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}
const config = { responsive: true, ...(matchMedia("(hover: none)").matches && { displayModeBar: false }), displaylogo: false, doubleClick: "reset", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendChartToCloud"] };
async function show(id, traces, more) {
  if (!window.Plotly) return; // not unpacked yet: everything is drawn once it is
  await Plotly.react(find(id), traces, layout(more), config);
  for (const tool of find(id).querySelectorAll(".modebar-btn")) tool.setAttribute("tabindex", "-1"); // the tables have the numbers
}

const most = matchMedia("(max-width: 40rem)").matches ? 6 : 14; // experiments in the figure of bytes at a time: on a phone their names are folded
function listParts() {
  const count = chosen(data.bytes, find("bytes-setting").value)?.runs || 0, starts = [];
  for (let n = 0; n < count; n += most) starts.push(n);
  find("bytes-part").replaceChildren(...starts.map((n) => new Option(`${n + 1} to ${Math.min(n + most, count)} of ${count}`, n)));
}
const fold = (label) => label.replace(/(.{14,}?) /g, "$1<br>");
function drawBytes() {
  const setting = chosen(numbers?.bytes || [], find("bytes-setting").value), way = find("bytes-way").value;
  if (!setting) return;
  const start = Number(find("bytes-part").value), runs = setting.runs.slice(start, start + most), labels = runs.map((run) => run.label);
  const top = Math.max(...setting.runs.map((run) => Object.values(run[way]).reduce((a, b) => a + b, 0)));
  const [unit, size] = top > 1e9 ? ["GB", 1e9] : ["MB", 1e6];
  const ink = getComputedStyle(document.body).color, grey = (name) => data.textures[name][0] || ink;
  const traces = data.groups.filter((name) => runs.some((run) => run[way][name])).map((name) => ({
    type: "bar", orientation: "h", name, y: labels, x: runs.map((run) => (run[way][name] || 0) / size),
    marker: { color: grey(name), pattern: { shape: data.textures[name][1], size: 7, solidity: .35 }, line: { color: grey(name), width: 1 } }, hovertemplate: `%{x:.4g} ${unit}<extra>${name}</extra>`,
  }));
  const narrow = find("bytes-figure").clientWidth < 600;
  return show("bytes-figure", traces, {
    height: 480, barmode: "stack", showlegend: true, legend: { orientation: "h", y: 1, yanchor: "bottom", traceorder: "normal", itemclick: false, itemdoubleclick: false },
    xaxis: { title: { text: `${unit} ${way}, all clients and rounds` } },
    yaxis: { autorange: "reversed", type: "category", ...(narrow && { tickfont: { size: 10 }, ticktext: labels.map(fold), tickvals: labels }) },
  });
}

function drawSplit() {
  const split = chosen(data.splits, find("split-name").value), dark = isDark();
  if (!split) return;
  return show("split-figure", [{
    type: "heatmap", z: split.counts, colorscale: [[0, "rgba(0,0,0,0)"], [1e-9, dark ? "#1f4a66" : "#cfe6f5"], [1, dark ? "#8fd0f7" : "#00467a"]],
    zmin: 0, colorbar: { title: { text: "images" }, thickness: 12 }, hovertemplate: "client %{y}, class %{x}: %{z}<extra></extra>", xgap: 1, ygap: split.counts.length > 50 ? 0 : 1,
  }], {
    height: 480, xaxis: { title: { text: "class" }, dtick: split.counts[0].length > 20 ? undefined : 1, showgrid: false, zeroline: false },
    yaxis: { title: { text: "client" }, autorange: "reversed", showgrid: false, zeroline: false },
  });
}

// The traces are made in Python; only the colours of contours and heatmaps depend on the theme.
function drawMeasure(plot) {
  const grounds = { contour: isDark() ? ["#1b1f26", "#474e5a"] : ["#fafbfc", "#b4bac4"], heatmap: isDark() ? ["#1f4a66", "#8fd0f7"] : ["#cfe6f5", "#00467a"] };
  const scale = ([low, high]) => ({ colorscale: [[0, low], [1, high]], colorbar: { thickness: 12, title: { text: "loss" } } });
  const contour = { line: { width: 0.5 }, hovertemplate: "loss %{z:.4g}<extra></extra>" };
  const traces = plot.traces.map((trace) => trace.type in grounds ? { ...trace, ...scale(grounds[trace.type]), ...(trace.type === "contour" && contour) } : trace);
  const lines = plot.traces.every((trace) => trace.type === "scatter" && trace.x.length > 1) && { hovermode: "x unified" };
  return show(plot.id, traces, { showlegend: true, hoverlabel: { namelength: -1 }, ...lines, ...plot.layout, height: 384 });
}

// One figure after the other, visible ones first, so that the page stays responsive; a newer pass ends an older one.
let passes = 0;
const figures = () => [
  ["curve-figure", drawCurves], ...numbers.measures.map((plot) => [plot.id, () => drawMeasure(plot)]), ["bytes-figure", drawBytes], ["split-figure", drawSplit],
];
async function draw() {
  if (!window.Plotly) return;
  const mine = ++passes, away = ([id]) => Math.abs(find(id).getBoundingClientRect().top);
  for (const [, figure] of figures().sort((one, other) => away(one) - away(other))) {
    await figure();
    await new Promise((done) => setTimeout(done));
    if (mine !== passes) return;
  }
  root.dataset.drawn = "yes";
}

function offer(id, names, change) {
  reset(find(id), names);
  find(id).addEventListener("change", change);
  find(id).closest("section").classList.toggle("empty", !names.length);
}
const changed = (...steps) => async () => { for (const step of steps) await step(); write(); };
find("setting").replaceChildren(new Option("all settings", ""), ...data.places.map((place, n) => new Option(place.setting, n)));
find("setting").addEventListener("change", changed(listBases, rebase, () => {
  const place = data.places[find("setting").value];
  if (place && chosen(data.curves, place.setting)) { find("curve-setting").value = place.setting; lines = null; listLines(); }
}, () => { drawCurves(); }));
find("base").addEventListener("change", changed(rebase, () => { drawCurves(); }));
find("kind").addEventListener("change", changed(filter));
find("search").addEventListener("input", changed(filter));
const first = data.places.map((place) => place.setting).filter((name) => chosen(data.curves, name));
offer("curve-setting", first, changed(() => { lines = null; listLines(); }, () => { drawCurves(); }));
for (const id of ["curve-model", "curve-axis", "curve-part", "curve-smooth", "curve-difference"]) find(id).addEventListener("change", changed(() => { drawCurves(); }));
offer("bytes-setting", data.places.map((each) => each.setting), changed(listParts, drawBytes));
for (const id of ["bytes-way", "bytes-part"]) find(id).addEventListener("change", changed(drawBytes));
offer("split-name", data.splits.map((each) => each.name), changed(drawSplit));
find("compare").classList.toggle("empty", !data.places.length);
find("setting").value = data.places.length ? "0" : "";
listBases();
listLines();
listParts();
remember();
for (const id of ["setting", "curve-setting", "bytes-setting"]) take(id);
listBases();
listLines();
listParts();
for (const id of kept) take(id);
if (lines !== null) find("curve-lines").querySelectorAll("input").forEach((box, n) => { box.checked = lines.split(".").includes(String(n)); });
rebase().then(() => { write(); if (location.hash) land(); });

// The library is large: it is unpacked when a figure comes near, so that the page itself opens at once.
async function unpack() {
  const script = document.createElement("script");
  await unpackNumbers();
  script.textContent = await inflate("plotly");
  document.head.append(script);
  draw();
}
const near = new IntersectionObserver((seen) => {
  if (!seen.some((figure) => figure.isIntersecting)) return;
  near.disconnect();
  unpack().catch(() => root.classList.add("undrawn"));
}, { rootMargin: "400px" });
for (const figure of document.querySelectorAll(".figure")) {
  near.observe(figure);
  // Plotly would keep a swipe to itself; a tap still shows the numbers, by the mouse that browsers make of it.
  figure.addEventListener("touchstart", (event) => event.stopPropagation(), { capture: true, passive: true });
}

// On paper everything is open, and figures are the still ones.
let closed = [];
addEventListener("beforeprint", () => {
  while (waiting.length) showSome();
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const one of closed) one.open = true;
});
addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
