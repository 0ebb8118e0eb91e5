/* Tables that are sorted by their headings and taken along as CSV. Without this script they are plain tables.

   Of a table with `data-table`: a heading with `data-names` (a JSON list) is a column of the CSV file, or several; its
   cells hold the values in `data-value` (the first, by which they are sorted) and `data-more` (a JSON list of the
   others), and sort by `data-order` where that is given. Rows with `data-last` stay last, and what is folded below a row
   stays with it. With `data-sorts`, headings become buttons: once sorts as `data-first` says, twice the other way round,
   three times as at first. */
(() => {
"use strict";
const WORDS = {
  number: {descending: "highest first", ascending: "lowest first"},
  text: {ascending: "A to Z", descending: "Z to A"},
  order: {ascending: "first to last", descending: "last to first"},
};
const compare = new Intl.Collator("en", {numeric: true}).compare;

function make(name, properties, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

const headings = table => [...table.tHead.rows[0].cells];
const other = direction => (direction === "ascending" ? "descending" : "ascending");

/* Rows, each with what is folded below it. */
function groups(table) {
  const found = [];
  for (const row of table.tBodies[0].rows) {
    if (row.classList.contains("fold")) found[found.length - 1].push(row);
    else found.push([row]);
  }
  return found;
}

/* What a cell is sorted by: a number or a text; null where there is nothing. */
function key(cell) {
  const text = cell.dataset.order ?? cell.dataset.value ?? "";
  if (text === "") return null;
  return Number.isNaN(Number(text)) ? text : Number(text);
}

function kind(table, column) {
  const cells = groups(table).map(([row]) => row.cells[column]);
  if (cells.some(cell => cell.dataset.order !== undefined)) return "order";
  return cells.every(cell => typeof key(cell) !== "string") ? "number" : "text";
}

function sorted(rows, column, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  const by = ([row]) => key(row.cells[column]);
  return [...rows].sort((one, two) => {
    const last = ("last" in one[0].dataset) - ("last" in two[0].dataset);
    if (last) return last;
    const [a, b] = [by(one), by(two)];
    if (a === null || b === null) return (a === null) - (b === null);  // nothing comes last, either way round
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : compare(String(a), String(b)));
  });
}

function arrange(table, rows) {
  table.tBodies[0].append(...rows.flat());
}

/* Makes headings of a table sort it, and those folded away in it; gives a menu that does the same. */
function sortable(table) {
  const all = [table, ...table.querySelectorAll("table")];
  const first = new Map(all.map(one => [one, groups(one)]));
  const menu = make("select", {});
  const option = (column, direction) => `${column} ${direction}`;

  function sort(column, direction) {
    for (const one of all) {
      const rows = first.get(one);
      arrange(one, direction ? sorted(rows, column, direction) : rows);
    }
    for (const heading of headings(table)) heading.removeAttribute("aria-sort");
    if (direction) headings(table)[column].setAttribute("aria-sort", direction);
    menu.value = direction ? option(column, direction) : "";
  }

  menu.append(make("option", {value: "", textContent: "as at first"}));
  for (const [column, heading] of headings(table).entries()) {
    const start = heading.dataset.first;
    if (!start) continue;
    const button = make("button", {type: "button", className: "sort"}, ...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const now = heading.getAttribute("aria-sort");
      sort(column, now === null ? start : now === start ? other(start) : "");
    });
    const words = WORDS[kind(table, column)];
    for (const direction of [start, other(start)]) {
      const textContent = `${button.textContent}, ${words[direction]}`;
      menu.append(make("option", {value: option(column, direction), textContent}));
    }
  }
  menu.addEventListener("change", () => {
    const [column, direction] = menu.value.split(" ");
    sort(Number(column), direction);
  });
  return make("label", {className: "sorts"}, "Sort by ", menu);
}

/* A text that a spreadsheet would take for a formula is told to be text, as spreadsheets.py does; a negative number is
   a number. */
function field(text) {
  const isFormula = /^'*[=+\-@\t\r]/.test(text) && !(text.trim() !== "" && Number.isFinite(Number(text)));
  const safe = isFormula ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/* The values of a table, those of folded rows below their own, as CSV (RFC 4180). */
function csv(table) {
  const columns = headings(table).map(heading => JSON.parse(heading.dataset.names ?? "[]"));
  const values = row => [...row.cells].flatMap((cell, column) => {
    const found = columns[column].length ? [cell.dataset.value ?? "", ...JSON.parse(cell.dataset.more ?? "[]")] : [];
    return columns[column].map((_, place) => found[place] ?? "");
  });
  const lines = one => groups(one).flatMap(([row, ...folds]) => [
    values(row), ...folds.flatMap(fold => [...fold.querySelectorAll("table")].flatMap(lines)),
  ]);
  return [columns.flat(), ...lines(table)].map(line => line.map(field).join(",") + "\r\n").join("");
}

function download(table) {
  const name = table.caption.textContent.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const address = URL.createObjectURL(new Blob([csv(table)], {type: "text/csv;charset=utf-8"}));
  const link = make("a", {href: address, download: `${name || "table"}.csv`, hidden: true});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

for (const table of document.querySelectorAll("table[data-table]")) {
  const caption = table.caption.textContent.trim();
  const button = make("button", {type: "button", className: "btn csv", textContent: "Download as CSV"});
  button.setAttribute("aria-label", `Download as CSV: ${caption}`);
  button.addEventListener("click", () => download(table));
  const bar = make("div", {className: "tablebar"});
  if ("sorts" in table.dataset) bar.append(sortable(table));
  bar.append(button);
  (table.closest(".scroll") ?? table).before(bar);
}
})();
