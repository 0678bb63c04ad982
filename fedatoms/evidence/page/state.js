// What is chosen stands in the address, after the section: #compare?base=fedavg&q=lr. It survives a reload, and can be sent.
const kept = ["setting", "base", "kind", "search", "curve-setting", "curve-model", "curve-axis", "curve-part", "curve-smooth", "curve-difference", "bytes-setting", "bytes-way", "split-name"];
const part = () => decodeURIComponent(location.hash.slice(1).split("?")[0]);
const asked = new URLSearchParams(location.hash.split("?").slice(1).join("?"));
let lines = asked.get("lines"); // places of the lines that are on, once one was switched
const usual = {};
const valueOf = (box) => box.type === "checkbox" ? (box.checked ? "on" : "") : box.value;
function remember() { for (const id of kept) usual[id] = valueOf(find(id)); }
function write() {
  const state = new URLSearchParams();
  for (const id of kept) if (valueOf(find(id)) !== usual[id]) state.set(id, valueOf(find(id)));
  if (lines !== null) state.set("lines", lines);
  const text = encodeURIComponent(part()) + (String(state) && `?${state}`);
  history.replaceState(null, "", location.href.split("#")[0] + (text && `#${text}`));
  for (const [id, boxes] of Object.entries(named)) find(id).textContent = boxes.map(nameOf).filter(Boolean).join("; ");
}
const named = { "compare-chosen": ["setting", "base", "kind", "search"] }; // on paper; figures there are still ones
function nameOf(id) {
  const box = find(id), said = box.tagName === "SELECT" ? box.selectedOptions[0]?.textContent : box.value;
  return said ? `${box.closest("label").firstChild.textContent.trim()}: ${said}` : "";
}
function take(id) { // sets a control to what the address says, if it offers that
  const value = asked.get(id), box = find(id);
  if (value === null) return;
  if (box.type === "checkbox") box.checked = value === "on";
  else if (box.tagName !== "SELECT" || [...box.options].some((option) => option.value === value)) box.value = value;
}
function land() { // a section with a state behind it is no place that the browser knows
  const place = part() && find(part());
  if (!place) return;
  place.closest("details")?.setAttribute("open", "");
  place.scrollIntoView();
}
addEventListener("hashchange", () => { land(); write(); });
