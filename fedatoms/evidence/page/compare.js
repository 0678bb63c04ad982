// Compare: rows are filtered, and their gains are those over the chosen baseline.
const versus = find("versus")?.querySelector("table");
const rowsOf = versus ? [...versus.tBodies[0].rows] : [];
const own = rowsOf.map((row) => data.changing.map((n) => row.cells[n].cloneNode(true)));
const textOf = rowsOf.map((row) => minus(row.textContent).toLowerCase());
const pairRows = [...(find("pairs")?.querySelectorAll("tbody tr") || [])];
const pairTexts = pairRows.map((row) => minus(row.textContent).toLowerCase());
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
  gain: (row) => row.cells[2].classList.contains("good"), open: (row) => row.cells[2].className === "number",
};
function filter() {
  const place = find("setting").value, kind = kinds[find("kind").value];
  const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  rowsOf.forEach((row, n) => {
    const on = (place === "" || row.dataset.place === place) && (!kind || kind(row)) && words.every((word) => textOf[n].includes(word));
    row.hidden = !on;
    count += on;
  });
  pairRows.forEach((row, n) => {
    const where = place === "" || row.cells[5].textContent === data.places[place].setting;
    row.hidden = !(where && words.every((word) => pairTexts[n].includes(word)));
  });
  find("matches").textContent = `${count} of ${rowsOf.length} experiments`;
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
      cell.textContent = text;
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
