"use strict";
// Asks every two seconds; all text of files goes through textContent.
const find = (id) => document.getElementById(id);
const EVERY = 2000;
const part = (tag, text = "", kind = "") => Object.assign(document.createElement(tag), { textContent: text, className: kind });
const kinds = { running: "good", failed: "bad", damaged: "bad" };
const size = (bytes) => (bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 });
const digits = (value, unit) => value === null || value === undefined ? "" : unit === "%" ? value.toFixed(2) : String(Number(value.toPrecision(4)));
function scores(run) {
  const { name, unit } = run.metric;
  return Object.entries(run.scores).map(([model, parts]) => `${model} ${digits(parts[name], unit)} ${unit}`.trim()).join(", ");
}
function spread(run) {
  const unit = run.metric.unit, known = Object.entries(run.scores).filter(([, parts]) => parts.spread !== undefined);
  return known.map(([model, parts]) => `${model}: ± ${digits(parts.spread, unit)}, worst tenth ${digits(parts.worst, unit)}`).join("; ");
}
function picture(run) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const add = (tag, values, text = "") => {
    const one = svg.appendChild(document.createElementNS(svg.namespaceURI, tag));
    for (const [name, value] of Object.entries(values)) one.setAttribute(name, value);
    one.textContent = text;
  };
  svg.setAttribute("viewBox", "0 0 320 150");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Scores of ${run.name} over rounds`);
  const names = Object.keys(run.curves).filter((name) => name !== "training loss");
  const name = names.at(-1) ?? "training loss", line = run.curves[name] || [];
  if (!line.length) return svg;
  const ys = line.map(([, y]) => y), low = Math.min(...ys), high = Math.max(...ys), last = Math.max(run.rounds || 1, line.at(-1)[0]);
  const at = ([x, y]) => `${(40 + 275 * x / last).toFixed(1)} ${(120 - 105 * (y - low) / (high - low || 1)).toFixed(1)}`;
  add("path", { d: `M${line.map(at).join("L")}`, stroke: run.look.colour || "currentColor", "stroke-dasharray": run.look.dash === "dash" ? "7 4" : "none" });
  add("text", { x: 36, y: 19, "text-anchor": "end" }, digits(high, run.metric.unit));
  add("text", { x: 36, y: 124, "text-anchor": "end" }, digits(low, run.metric.unit));
  add("text", { x: 40, y: 142 }, `${name} until round ${line.at(-1)[0]} of ${run.rounds ?? "?"}`);
  return svg;
}
function card(run) {
  const box = part("article", "", "run");
  box.append(part("p", run.state, `verdict ${kinds[run.state] || "quiet"}`), part("h2", run.name), part("p", run.where, "quiet"));
  const bar = part("progress");
  Object.assign(bar, { max: run.rounds || 1, value: run.done });
  bar.setAttribute("aria-label", `Round ${run.done} of ${run.rounds}`);
  box.append(bar, part("p", `round ${run.done} of ${run.rounds ?? "?"}; loss ${digits(run.loss)}; ${scores(run)}`));
  box.append(part("p", `${size(run.up)} MB up, ${size(run.down)} MB down; ${run.failed} failed clients`, "quiet"));
  if (spread(run)) box.append(part("p", `Spread over clients: ${spread(run)}`, "quiet"));
  box.append(part("p", [run.why, run.folder].filter(Boolean).join("; "), "quiet"), picture(run));
  return box;
}
function row(run) {
  const line = part("tr");
  const cells = [[run.name, "wide"], [run.state, `state ${kinds[run.state] || "quiet"}`], [`${run.done} of ${run.rounds ?? "?"}`, "number"], [digits(run.loss), "number"], [scores(run)], [size(run.up), "number"], [size(run.down), "number"], [String(run.failed), "number"], [spread(run)], [run.seconds === null ? "withheld" : digits(run.seconds), "number"], [run.where, "wide"], [run.folder, "path"]];
  line.append(...cells.map(([text, kind]) => part("td", text, kind || "")));
  return line;
}
function show({ runs, error }) {
  const count = {};
  for (const run of runs) count[run.state] = (count[run.state] || 0) + 1;
  const said = Object.entries(count).map(([state, n]) => `${n} ${state}`).join(", ") || "No run yet";
  if (find("said").textContent !== `${said}.`) find("said").textContent = `${said}.`; // read aloud only when it changes
  warn(error);
  find("cards").replaceChildren(...runs.filter((run) => ["running", "failed"].includes(run.state)).map(card));
  find("rows").replaceChildren(...runs.map(row));
  document.documentElement.dataset.live = String(Number(document.documentElement.dataset.live || 0) + 1);
}
function warn(error) {
  find("error").textContent = error;
  find("error").hidden = !error;
  find("main").classList.toggle("old", Boolean(error));
}
async function follow() {
  try {
    const reply = await fetch("live.json", { signal: AbortSignal.timeout(30_000) }); // a server that hangs is one that is gone
    if (!reply.ok) throw new Error(await reply.text());
    show(await reply.json());
  } catch (error) {
    warn(`The server does not answer (${error.message}). Is fedatoms report --serve still running?`);
  }
  setTimeout(follow, EVERY);
}
follow();
