// Compare: rows are filtered, and their gains are those over the chosen baseline.
const versus = find("versus")?.querySelector("table");
const rowsOf = versus ? [...versus.tBodies[0].rows] : [];
const own = rowsOf.map((row) => data.changing.map((n) => row.cells[n].cloneNode(true)));
const rowsIn = (id) => [...(find(id)?.querySelectorAll("tbody tr") || [])]; // as they are sorted now
const textOf = new Map([...rowsOf, ...rowsIn("pairs")].map((row) => [row, minus(row.textContent).toLowerCase()]));
let waiting = [], timer = 0; // rows that are still to be shown
let numbers = null; // the packed ones, once they are needed

function listBases() {
  const place = Number(find("setting").value);
  const options = find("setting").value === "" ? [] : data.places[place].bases.map((n) => data.places[place].names[n]);
  reset(find("base"), options);
  find("base").disabled = !options.length;
  if (!options.length) find("base").append(new Option("the usual one of each setting", ""));
  else find("base").value = data.places[place].names[data.places[place].base];
}
const kinds = {
  atoms: (row) => / atoms/.test(row.cells[0].textContent), plain: (row) => !/ atoms| \+ /.test(row.cells[0].textContent),
  gain: (row) => row.cells[2].classList.contains("good"), open: (row) => row.cells[2].className === "number bracketed",
};
function filter() {
  const place = find("setting").value, kind = kinds[find("kind").value];
  const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const on = (row) => (place === "" || row.dataset.place === place) && (!kind || kind(row)) && words.every((word) => textOf.get(row).includes(word));
  const pair = (row) => (place === "" || row.cells[5].textContent === data.places[place].setting) && words.every((word) => textOf.get(row).includes(word));
  find("compare").classList.toggle("one-setting", place !== ""); // its column would say the same in each row
  const some = { versus: rowsIn("versus").filter(on), pairs: rowsIn("pairs").filter(pair) };
  for (const [id, rows] of Object.entries(some)) over(find(id), rows.length);
  const shown = Object.values(some).flat(), kept = new Set(shown);
  for (const row of textOf.keys()) if (!kept.has(row)) row.hidden = true;
  find("matches").textContent = `${shown.filter((row) => row.dataset.place).length} of ${rowsOf.length} experiments`;
  waiting = shown.filter((row) => row.hidden);
  showSome();
}
// Rows come back some at a time, a frame for each: the first ones fill the table's box, so nobody waits for the rest.
function showSome() {
  clearTimeout(timer);
  for (const row of waiting.splice(0, 40)) row.hidden = false;
  if (waiting.length) requestAnimationFrame(() => { timer = setTimeout(showSome); });
}
async function rebase() {
  const place = find("setting").value, base = find("base").value;
  if (place !== "" && base && base !== data.places[place].names[data.places[place].base]) await unpackNumbers();
  rowsOf.forEach((row, n) => {
    const at = row.dataset.place === place ? data.places[place].bases.findIndex((k) => data.places[place].names[k] === base) : -1;
    const cells = numbers && at >= 0 ? numbers.versus[place][at][row.dataset.entry] : null;
    if (!cells && !row.dataset.changed) return;
    row.dataset.changed = "yes";
    data.changing.forEach((column, k) => {
      const cell = row.cells[column];
      const [text, key, kind] = cells ? cells[k] : [own[n][k].textContent, own[n][k].dataset.key, own[n][k].className];
      const [value, seeds, rest] = text.split(/(\(.*?\))/);
      cell.replaceChildren(value, ...(seeds ? [Object.assign(document.createElement("span"), { textContent: seeds }), rest] : []));
      if (key) cell.dataset.key = key;
      else delete cell.dataset.key;
      cell.className = kind;
    });
  });
  filter();
  root.dataset.base = base; // for those who wait for it
}
const baseOf = (setting) => { // the name of the baseline in a setting, as chosen or as usual
  const place = data.places.findIndex((each) => each.setting === setting);
  if (place < 0) return "";
  return find("setting").value === String(place) && find("base").value || data.places[place].names[data.places[place].base];
};
async function inflate(id) {
  const letters = atob(find(id).textContent), bytes = new Uint8Array(letters.length);
  for (let n = 0; n < bytes.length; n++) bytes[n] = letters.charCodeAt(n);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
const summed = ({ per, by }) => { let sum = 0; return by.map((step) => (sum += step) / per); }; // packing.py writes the steps
async function unpackNumbers() { numbers ??= JSON.parse(await inflate("numbers")); }
