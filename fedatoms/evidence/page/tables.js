"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const find = (id) => document.getElementById(id);
const reset = (select, names) => select.replaceChildren(...names.map((name) => new Option(name, name)));
const minus = (text) => text.replaceAll("\u2212", "-").replaceAll("\u00a0", " ");

const keyOf = (cell) => cell.dataset.key ?? cell.textContent;

// Tables: a header button sorts by its column, numbers by value; cells without a value stay last.
function sort(head) {
  const table = head.closest("table"), body = table.tBodies[0], place = head.cellIndex;
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const numeric = head.classList.contains("number");
  const key = (row) => keyOf(row.cells[place]);
  const order = (a, b) => numeric ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
  const rows = [...body.rows].sort((a, b) => {
    if (!key(a) || !key(b)) return (key(a) ? 0 : 1) - (key(b) ? 0 : 1);
    return up ? order(key(a), key(b)) : order(key(b), key(a));
  });
  body.append(...rows);
}
for (const head of document.querySelectorAll("th")) head.querySelector("button").addEventListener("click", () => sort(head));

// What is copied has ASCII minus signs, so that it can be computed with.
document.addEventListener("copy", (event) => {
  const text = String(getSelection());
  if (!text.includes("\u2212")) return;
  event.clipboardData.setData("text/plain", minus(text));
  event.preventDefault();
});
const shownRows = (table) => [...table.tBodies[0].rows].filter((row) => row.offsetParent !== null || waiting.includes(row));
const cellsOf = (row) => [...row.cells].map((cell) => minus(cell.textContent.trim()));
function asMarkdown(table) {
  const plain = (cells) => `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`;
  const heads = [...table.tHead.rows[0].cells];
  const rule = heads.map((head) => head.classList.contains("number") ? "---:" : "---");
  return [plain(cellsOf(table.tHead.rows[0])), plain(rule), ...shownRows(table).map((row) => plain(cellsOf(row)))].join("\n") + "\n";
}
function asLatex(table) {
  const special = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$" };
  const safe = (text) => text.replace(/[\\~^±&%$#_{}]/g, (sign) => special[sign] || `\\${sign}`);
  const line = (row) => `${cellsOf(row).map(safe).join(" & ")} \\\\`;
  const align = [...table.tHead.rows[0].cells].map((head) => head.classList.contains("number") ? "r" : "l").join("");
  const body = shownRows(table).map(line).join("\n");
  return `\\begin{tabular}{${align}}\n\\hline\n${line(table.tHead.rows[0])}\n\\hline\n${body}\n\\hline\n\\end{tabular}\n`;
}
function asCsv(table) {
  const quoted = (cell) => /[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;
  return [table.tHead.rows[0], ...shownRows(table)].map((row) => cellsOf(row).map(quoted).join(",")).join("\n") + "\n";
}
function copied(text, button) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy"); // a page that is opened as a file may not use navigator.clipboard
  area.remove();
  button.focus();
  return done;
}
function copy(button, write) {
  const name = button.textContent, done = copied(write(button.closest(".tools").nextElementSibling.querySelector("table")), button);
  button.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = name; }, 1500);
}
// Commands where one looks first have a sign that copies them; elsewhere a click selects one as a whole.
for (const place of document.querySelectorAll("#answer .answers code, #answer td.command, .again code")) {
  const words = place.textContent, button = Object.assign(document.createElement("button"), { type: "button", className: "copy" });
  if (!words.startsWith("fedatoms ")) continue;
  button.setAttribute("aria-label", `Copy: ${words}`);
  button.addEventListener("click", () => {
    button.classList.toggle("done", copied(words, button));
    setTimeout(() => { button.classList.remove("done"); }, 1500);
  });
  if (place.tagName === "TD") place.append(button);
  else place.after(button);
}
function over(box, rows) {
  if (!box) return;
  const button = box.nextElementSibling, words = `Show all ${rows} rows`;
  box.classList.toggle("over", rows > 6); // as page.css has it
  button.textContent = words;
  button.setAttribute("aria-label", `${words}: ${box.getAttribute("aria-label")}`);
}
// On a phone a table of cards shows the first of them, as the page would be long; elsewhere its box scrolls.
function shorten(box) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "more" });
  const all = () => box.classList.remove("few");
  button.addEventListener("click", all);
  box.closest("details.paper")?.querySelector(".only input")?.addEventListener("change", all);
  for (const cell of box.querySelectorAll(".missing")) cell.parentNode.classList.add("unrun");
  box.classList.add("few");
  box.after(button);
  over(box, box.querySelectorAll("tbody tr:not(.unrun)").length);
}
// A box that has more than it shows says so. All are asked before one is changed, so that the page is laid out once.
function sign(boxes) {
  const found = boxes.map((box) => [["down", box.scrollHeight - box.clientHeight, box.scrollTop], ["right", box.scrollWidth - box.clientWidth, box.scrollLeft]].filter(([, room]) => room > 2));
  boxes.forEach((box, n) => {
    const more = found[n].filter(([, room, at]) => room - at > 2).map(([way]) => way).join(" ");
    const what = found[n].map(([way]) => way === "down" ? "rows" : "columns").join(" and ");
    const said = what && `Scroll in the table for more ${what}.`, hint = box.previousElementSibling.firstElementChild;
    if ((box.dataset.more || "") !== more) more ? box.dataset.more = more : delete box.dataset.more;
    if (hint.textContent !== said) hint.textContent = said;
  });
}
const sizes = new ResizeObserver((seen) => sign([...new Set(seen.map((each) => each.target.closest(".box")))]));
for (const box of document.querySelectorAll(".box")) {
  const tools = document.createElement("div");
  tools.className = "tools";
  tools.append(document.createElement("span"));
  for (const [name, write] of [["Markdown", asMarkdown], ["LaTeX", asLatex], ["CSV", asCsv]]) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: `Copy as ${name}` });
    button.setAttribute("aria-label", `Copy as ${name}: ${box.getAttribute("aria-label")}`);
    button.addEventListener("click", () => copy(button, write));
    tools.append(button);
  }
  box.before(tools);
  if (box.classList.contains("stacked")) shorten(box);
  box.addEventListener("scroll", () => sign([box]), { passive: true });
  sizes.observe(box);
  sizes.observe(box.firstElementChild);
}
