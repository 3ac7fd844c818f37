// Live numbers, sorting and filtering of tables, search in exported pages. Every page can be read without it.
"use strict";

const NUMBER = /^[−+±-]?\s*[\d,]*\.?\d+(e[-+−]?\d+)?/i;

function valueOf(cell) {
  const text = (cell ? cell.textContent : "").trim();
  const found = text.match(NUMBER);
  if (!found) return { number: NaN, text };
  return { number: Number(found[0].replace(/−/g, "-").replace(/[±,\s]/g, "")), text };
}

function compare(one, other, isNumeric) {
  if (!isNumeric) return one.text.localeCompare(other.text, undefined, { numeric: true });
  if (Number.isNaN(one.number)) return Number.isNaN(other.number) ? 0 : 1;
  return Number.isNaN(other.number) ? -1 : one.number - other.number;
}

function sortBy(table, header, place) {
  const isFalling = header.getAttribute("aria-sort") === "ascending";
  const isNumeric = header.classList.contains("number");
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", isFalling ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, value: valueOf(row.cells[place]) }));
  const missing = (one) => isNumeric && Number.isNaN(one.value.number);
  rows.sort((one, other) => {
    if (missing(one) || missing(other)) return missing(one) - missing(other);
    return compare(one.value, other.value, isNumeric) * (isFalling ? -1 : 1);
  });
  body.append(...rows.map((one) => one.row));
}

function makeSortable(table) {
  if (!table.tHead || table.tBodies[0].rows.length < 2) return;
  [...table.tHead.rows[0].cells].forEach((header, place) => {
    if (!header.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(table, header, place));
    header.append(button);
  });
}

let filters = 0;

function makeFilterable(table) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 8) return;
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const line = document.createElement("p");
  line.className = "filter";
  const label = document.createElement("label");
  const input = document.createElement("input");
  const said = document.createElement("span");
  filters += 1;
  input.id = `rows-with-${filters}`;
  input.type = "search";
  label.htmlFor = input.id;
  label.textContent = "Rows with";
  said.setAttribute("role", "status");
  said.className = "remark";
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    said.textContent = words.length ? `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows` : "";
  };
  input.addEventListener("input", apply);
  line.append(label, " ", input, " ", said);
  (table.closest(".scroll") || table).before(line);
  if (table.hasAttribute("data-search")) {
    input.value = new URLSearchParams(location.search).get("q") || "";
    apply();
  }
}

function watch(element) {
  const word = element.querySelector(".live-word");
  let every = Number(element.dataset.every) || 2;
  let last = "";
  let misses = 0;
  const look = async () => {
    if (document.hidden) return setTimeout(look, 1000);
    try {
      const answer = await fetch(element.dataset.live, { credentials: "same-origin", cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const found = await answer.json();
      for (const [name, html] of Object.entries(found.parts)) {
        const part = document.querySelector(`[data-part="${name}"]`);
        if (part && part.dataset.shown !== html && !part.querySelector(".dragging")) {
          part.innerHTML = html; // made by the server's templates, which escape what comes from the home
          part.dataset.shown = html;
          document.dispatchEvent(new Event("part-shown"));
        }
      }
      every = found.next_seconds;
      misses = 0;
      const now = found.is_alive ? "Live: the numbers below are updated while you watch." : "";
      if (now !== last) word.textContent = last = now;
    } catch {
      misses += 1;
      every = Math.min(30, 2 ** misses);
      if (misses > 1) word.textContent = last = "The server does not answer; what is shown may be old. Trying again.";
    }
    setTimeout(look, every * 1000);
  };
  setTimeout(look, 300);
}

// A page that was drawn before its results were checked is loaded again once they are.
function loadAgainOnceChecked() {
  const look = async () => {
    try {
      const answer = document.hidden ? null : await fetch(location.href, { credentials: "same-origin", cache: "no-store" });
      if (answer && answer.ok && !(await answer.text()).includes("data-checking")) return location.reload();
    } catch {
      // the server is away: the next look comes soon
    }
    return setTimeout(look, 2000);
  };
  setTimeout(look, 1000);
}

function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") target.open = true;
}

// Prefect's auth string is in the link that `phasewise up` says: kept in this browser, for links to Prefect's pages.
function carrySecret() {
  const found = location.hash.match(/^#prefect=(.+)$/);
  if (found) {
    localStorage.setItem("prefect", found[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }
  const kept = localStorage.getItem("prefect");
  if (!kept || !document.body.hasAttribute("data-own-prefect")) return;
  for (const link of document.querySelectorAll("a[data-prefect]")) {
    const to = new URL(link.href);
    if (to.pathname !== "/-/open") link.href = new URL(`/-/open#${kept}&${encodeURIComponent(to.pathname + to.search)}`, to);
  }
}

// Names of recipes, phases, components and settings are read once, when a search box is first used.
function suggest(input) {
  input.addEventListener("focus", async () => {
    const list = document.getElementById("suggestions");
    if (list.childElementCount || list.dataset.asked) return;
    list.dataset.asked = "yes";
    const answer = await fetch(input.dataset.suggest, { credentials: "same-origin" });
    if (!answer.ok) return;
    for (const name of await answer.json()) list.append(Object.assign(document.createElement("option"), { value: name }));
  });
}

document.querySelectorAll("[data-suggest]").forEach(suggest);
document.querySelectorAll("table[data-sortable]").forEach(makeSortable);
document.querySelectorAll("table[data-filter]").forEach(makeFilterable);
document.querySelectorAll("[data-live]").forEach(watch);
if (document.querySelector("[data-checking]")) loadAgainOnceChecked();
addEventListener("hashchange", openTarget);
document.addEventListener("part-shown", carrySecret);
openTarget();
carrySecret();
