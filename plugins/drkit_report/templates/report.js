"use strict";

// Runs are printed whole, open or not.
let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details.run:not([open]), details.note:not([open])")];
  for (const run of closed) run.open = true;
});
window.addEventListener("afterprint", () => {
  for (const run of closed) run.open = false;
});

// What is wider than the page says so.
function markWide() {
  for (const part of document.querySelectorAll(".scroll, .plot")) part.classList.toggle("goes-on", part.scrollWidth > part.clientWidth + 1);
}
window.addEventListener("resize", markWide);
window.addEventListener("load", markWide);
document.addEventListener("toggle", markWide, true);

// Tables of systems: one body per baseline, of which one is shown.
function showBaseline(table, baseline) {
  for (const body of table.querySelectorAll("tbody")) body.hidden = Number(body.dataset.baseline) !== baseline;
}
for (const part of document.querySelectorAll(".systems")) {
  const choice = part.querySelector(".baseline");
  choice.addEventListener("change", () => {
    showBaseline(part, Number(choice.value));
    if (part.id === "table") showQueries();
  });
}

// Queries: texts of others become text nodes only.
const data = JSON.parse(document.getElementById("query-data").textContent);
const PAGE = 25;
let limit = PAGE;
const byId = (id) => document.getElementById(id);

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function option(text, value, isSelected) {
  const made = element("option", "", text);
  made.value = value;
  made.selected = isSelected;
  return made;
}

function number(value) {
  return value.toFixed(3);
}

function signed(value) {
  return (value > 0 ? "+" : value < 0 ? "\u2212" : "\u00b1") + number(Math.abs(value));
}

function baseline() {
  return Number(document.querySelector("#table .baseline").value);
}

function chosenQueries() {
  const system = Number(byId("query-system").value);
  const measure = Number(byId("query-measure").value);
  const kind = byId("query-kind").value;
  const words = byId("query-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = data.queries.map((query) => {
    const values = query.values[measure];
    return { query, before: values[baseline()], after: values[system], gain: values[system] - values[baseline()] };
  });
  const kinds = { all: () => true, win: (row) => row.gain > 0, loss: (row) => row.gain < 0, tie: (row) => row.gain === 0 };
  const orders = {
    gain: (a, b) => b.gain - a.gain,
    drop: (a, b) => a.gain - b.gain,
    value: (a, b) => a.after - b.after,
    id: (a, b) => a.query.id.localeCompare(b.query.id, undefined, { numeric: true }),
  };
  const found = rows.filter((row) => kinds[kind](row) && words.every((word) => searched(row.query).includes(word)));
  return found.sort((a, b) => orders[byId("query-order").value](a, b) || orders.id(a, b));
}

const textOf = new Map();
function searched(query) {
  if (!textOf.has(query)) {
    const passages = query.hits.flat().map(([index]) => data.passages[index].text);
    textOf.set(query, [query.id, query.text, ...passages].join(" ").toLowerCase());
  }
  return textOf.get(query);
}

function hitItem(passage, rank, score, grade) {
  const judged = grade === undefined ? "not judged" : grade > 0 ? `relevant, grade ${grade}` : "judged not relevant";
  const about = element("span", "about");
  if (rank) about.append(`${rank}. `);
  about.append(element("bdi", "", passage.id), score === null ? " \u00b7 " : ` \u00b7 ${score.toFixed(4)} \u00b7 `, element(grade > 0 ? "b" : "span", "", judged));
  const text = element("bdi", "text", passage.text || "(no text)");
  return element("li", `hit ${grade > 0 ? "relevant" : grade === undefined ? "" : "rejected"}`, about, text);
}

function side(query, system, grades) {
  const list = element("ol");
  query.hits[system].forEach(([index, score], position) => {
    list.append(hitItem(data.passages[index], position + 1, score, grades.get(index)));
  });
  const first = query.first[system];
  const where = first === null ? "no relevant passage found" : `first relevant passage at rank ${first}`;
  return element("div", "", element("h3", "", data.systems[system]), element("p", "note", where), list);
}

function sides(query, system) {
  const grades = new Map(query.judged);
  const pair = system === baseline() ? [system] : [baseline(), system];
  const made = element("div", "sides", ...pair.map((one) => side(query, one, grades)));
  const shown = new Set(pair.flatMap((one) => query.hits[one].map(([index]) => index)));
  const others = query.judged.filter(([index, grade]) => grade > 0 && !shown.has(index));
  if (others.length) {
    const list = element("ol", "", ...others.map(([index, grade]) => hitItem(data.passages[index], 0, null, grade)));
    const title = `Relevant, not shown above (${others.length} of ${query.relevant} relevant passages)`;
    made.append(element("div", "others", element("h3", "", title), list));
  }
  return made;
}

function queryItem(row, system) {
  const direction = row.gain > 0 ? "better" : row.gain < 0 ? "worse" : "";
  const asked = element("span", "asked", element("small", "", element("bdi", "", row.query.id), " "), element("bdi", "", row.query.text));
  const gain = element("span", `gain ${direction}`, signed(row.gain));
  const values = element("span", "values", `${number(row.before)} \u2192 ${number(row.after)}`);
  const made = element("details", "query", element("summary", "", gain, values, asked));
  made.addEventListener("toggle", () => {
    if (made.open && !made.querySelector(".sides")) made.append(sides(row.query, system));
  });
  return made;
}

// Two systems against each other: a circle for each pair of values, its area the number of queries with them.
function drawn(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function showScatter(system) {
  const [across, upwards] = [data.everything[baseline()], data.everything[system]];
  const pairs = new Map();
  across.forEach((before, index) => {
    const key = `${before} ${upwards[index]}`;
    pairs.set(key, (pairs.get(key) || 0) + 1);
  });
  const top = Math.max(1, ...across, ...upwards);
  const x = (value) => 34 + (216 * value) / top;
  const y = (value) => 230 - (216 * value) / top;
  const most = Math.max(...pairs.values());
  const circles = [...pairs].map(([key, count]) => {
    const [before, after] = key.split(" ").map(Number);
    const kind = after > before ? "better" : after < before ? "worse" : "";
    const about = drawn("title", {}, `${count} queries: ${number(before)} \u2192 ${number(after)}`);
    return drawn("circle", { cx: x(before), cy: y(after), r: Math.max(1.5, 11 * Math.sqrt(count / most)), class: kind }, about);
  });
  const names = [data.systems[baseline()], data.systems[system]];
  const ticks = [0, top / 2, top].flatMap((value) => [
    drawn("text", { x: x(value), y: 249, "text-anchor": "middle" }, value.toFixed(1)),
    drawn("text", { x: 18, y: y(value) + 3, "text-anchor": "end" }, value.toFixed(1)),
  ]);
  const frame = drawn("path", { d: `M${x(0)} ${y(top)}V${y(0)}H${x(top)}M${x(0)} ${y(0)}L${x(top)} ${y(top)}` });
  const below = drawn("text", { x: x(top / 2), y: 262, "text-anchor": "middle" }, names[0]);
  const up = drawn("text", { transform: `translate(-3 ${y(top / 2)}) rotate(-90)`, "text-anchor": "middle" }, names[1]);
  const title = `${data.measures[0]} of every query: ${names[0]} across, ${names[1]} upwards`;
  byId("scatter").replaceChildren(
    drawn("svg", { viewBox: "-12 0 282 268", role: "img", "aria-label": title }, frame, ...circles, ...ticks, below, up),
  );
}

function showQueries() {
  if (!data) return;
  const rows = chosenQueries();
  const system = Number(byId("query-system").value);
  showScatter(system);
  byId("query-list").replaceChildren(...rows.slice(0, limit).map((row) => queryItem(row, system)));
  const shown = Math.min(limit, rows.length);
  byId("query-count").textContent =
    `${shown} of ${rows.length} queries: ${data.systems[baseline()]} \u2192 ${data.systems[system]}`;
  byId("query-more").hidden = shown === rows.length;
}

if (data) {
  const last = data.systems.length - 1;
  const other = data.opened !== baseline() ? data.opened : last === baseline() ? 0 : last;
  byId("query-system").append(...data.systems.map((name, index) => option(name, index, index === other)));
  byId("query-measure").append(...data.measures.map((name, index) => option(name, index, index === 0)));
  byId("query-controls").addEventListener("submit", (event) => event.preventDefault());
  byId("query-controls").addEventListener("input", () => {
    limit = PAGE;
    showQueries();
  });
  byId("query-more").addEventListener("click", () => {
    limit += PAGE;
    showQueries();
  });
  showQueries();
}
