// SPDX-License-Identifier: Apache-2.0
// Search and filters of lists, the command builder, and copying. Text of others is only ever set as text.
"use strict";

const MARKS = { p: ["proved", "✓"], P: ["proved", "✓"], d: ["declared", "○"], r: ["red", "✗"], a: ["absent", "–"] };
const STEP = 100;
const byId = (id) => document.getElementById(id);

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function badge(kind, mark, text) {
  return element("span", { class: `badge ${kind}` }, element("span", { "aria-hidden": "true" }, mark), ` ${text}`);
}

function size(bytes) {
  if (!bytes) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (bytes / 1000 ** power >= 999.5 && power + 1 < units.length) power += 1;
  return `${Number((bytes / 1000 ** power).toPrecision(3))} ${units[power]}`;
}

// --- the form of a list: its values are also in the address ----------------------------------------------------

function readForm(form) {
  return Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
}

function restore(form) {
  for (const [name, value] of new URLSearchParams(location.search)) {
    const field = form.elements.namedItem(name);
    if (field && "value" in field) field.value = value;
  }
}

function remember(values) {
  const given = Object.entries(values).filter(([, value]) => value);
  const query = new URLSearchParams(given).toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

function onChange(form, update) {
  let waiting = 0;
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { remember(readForm(form)); update(); }, 60);
  };
  form.addEventListener("input", soon);
  form.addEventListener("reset", soon);
  form.addEventListener("submit", (event) => { event.preventDefault(); soon(); });
}

// --- the list of models ----------------------------------------------------------------------------------------

function modelList(listing) {
  const form = byId("filters"), body = byId("rows"), more = byId("more"), count = byId("count");
  const loaded = new Set();
  let rows = [], limit = STEP;

  function add(found) {
    for (const row of found) {
      const [name, page, task, architecture] = row;
      row.text = `${name} ${listing.tasks[task]} ${listing.architectures[architecture]}`.toLowerCase();
      row.page = page || name;
    }
    rows = rows.concat(found);
  }

  async function load(shard) {
    if (loaded.has(shard.file)) return;
    loaded.add(shard.file);
    const answer = await fetch(`_/api/${shard.file}`);
    add((await answer.json()).rows);
  }

  // Of a very large zoo, only the parts in which a name can begin with the query are loaded.
  async function loadFor(query) {
    const rest = listing.shards.filter((shard) => !loaded.has(shard.file));
    const wanted = query.length < 2 ? [] : rest.filter(
      (shard) => shard.first.slice(0, query.length) <= query && query <= shard.last.slice(0, query.length));
    await Promise.all(wanted.map(load));
  }

  function cellMatches(code, values) {
    const [state, level] = [code[0], Number(code[1])];
    if (values.level === "red") return state === "r" || state === "P";
    if (values.level === "declared") return state === "d";
    if (values.level) return state.toLowerCase() === "p" && level >= listing.levels.indexOf(values.level);
    return state !== "a";
  }

  function matches(row, values, words) {
    const [, , task, , license, bytes, weights, cells] = row;
    if (!words.every((word) => row.text.includes(word))) return false;
    if (values.task && listing.tasks[task] !== values.task) return false;
    if (values.license && listing.licenses[license] !== values.license) return false;
    if (values.weights && !(weights >> listing.weights.indexOf(values.weights) & 1)) return false;
    if (values.size) {
      const [least, most] = values.size.split("-").map(Number);
      if (!bytes || bytes < least * 1e9 || bytes >= most * 1e9) return false;
    }
    if (!values.target && !values.level) return true;
    const codes = listing.targets.map((name, number) => [name, cells.slice(2 * number, 2 * number + 2)]);
    return codes.some(([name, code]) => (!values.target || name === values.target) && cellMatches(code, values));
  }

  function line(row) {
    const [name, , task, , , bytes, , cells] = row;
    const link = element("a", { href: `${row.page}.html` }, name);
    const made = element("tr", {}, element("th", { scope: "row" }, link),
      element("td", { "data-label": "Task" }, listing.tasks[task] || "unknown"),
      element("td", { "data-label": "Smallest package", class: "number" }, size(bytes)));
    listing.targets.forEach((target, number) => {
      const [state, level] = cells.slice(2 * number, 2 * number + 2);
      const [kind, mark] = MARKS[state];
      const cell = element("td", { "data-label": target },
        badge(kind, mark, kind === "proved" ? listing.levels[level] : kind));
      if (state === "P") cell.append(" ", badge("red", "✗", "partly red"));
      made.append(cell);
    });
    return made;
  }

  async function update() {
    const values = readForm(form);
    const query = (values.q || "").toLowerCase();
    await loadFor(query);
    const words = query.split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => matches(row, values, words));
    body.replaceChildren(...found.slice(0, limit).map(line));
    more.hidden = found.length <= limit;
    const missing = listing.count - rows.length;
    count.textContent = `${found.length.toLocaleString("en")} of ${listing.count.toLocaleString("en")} models` +
      (found.length > limit ? `; the first ${limit} are listed` : "") +
      (missing > 0 ? `; ${missing.toLocaleString("en")} are searched by the beginning of their names` : "") + ".";
  }

  add(listing.rows);
  restore(form);
  onChange(form, () => { limit = STEP; return update(); });
  more.addEventListener("click", () => { limit += STEP; update(); });
  Promise.all(listing.shards.slice(0, listing.eager).map(load)).then(update);
}

// --- the list of architectures: all rows are there, and some are hidden ------------------------------------------

function shownRows() {
  const form = byId("filters"), rows = [...byId("rows").rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  function update() {
    const values = readForm(form), words = values.q.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    rows.forEach((row, number) => {
      const shown = words.every((word) => texts[number].includes(word)) &&
        (!values.state || row.querySelector(".badge.red") !== null);
      row.hidden = !shown;
      found += shown;
    });
    byId("count").textContent = `${found} of ${rows.length} architectures.`;
  }
  restore(form);
  onChange(form, update);
  update();
}

// --- the command builder -----------------------------------------------------------------------------------------

function fill(select, values, keep) {
  select.replaceChildren(...values.map(([value, text]) => element("option", { value }, text)));
  if (values.some(([value]) => value === keep)) select.value = keep;
  select.parentElement.hidden = values.length === 0;
}

function commands(choices, chosen) {
  const { device, weights, context, found } = chosen;
  const name = found ? found.name : choices.build.name;
  const lines = [];
  if (found) lines.push(["Pull", found.pull]);
  let flags = ` --target ${device} --weights ${weights}`, given = `, target="${device}", weights="${weights}"`;
  if (context) {
    const key = choices.context.name;
    flags += ` ${choices.context.flag} ${context}`;
    given += `, ${key}=${key === "ctx_len" ? context : `(${context.split(",").join(", ")},)`}`;
  }
  if (choices.build) lines.push(["Build", choices.build.line.join(flags)]);
  lines.push(["Run", `qeff-zoo run ${name} ${choices.example}`]);
  if (choices.serves) lines.push(["Serve", `qeff-zoo serve ${name}`]);
  const opened = found ? found.python : choices.build.python.join(given);
  lines.push(["Python", `import qeff_zoo\n\n${opened}\nsession = qeff_zoo.load(package)`]);
  return lines;
}

function builder(choices) {
  const form = byId("builder"), fields = form.elements;
  const packages = choices.packages;

  function update(event) {
    const device = fields.device.value;
    const known = choices.devices.find((one) => one.name === device);
    fill(fields.weights, known.weights.map((one) => [one, one]), fields.weights.value);
    const weights = fields.weights.value;
    const contexts = (choices.context ? choices.context.values : []).map((one) => [one, one]);
    fill(fields.context, contexts, fields.context.value);
    const context = fields.context.value;
    const fits = packages.map((one, number) => [String(number), one]).filter(
      ([, one]) => one.device === device && one.weights === weights && (!one.context || one.context === context));
    const offered = fits.map(([number, one]) => [number, `${one.label} (proof: ${one.level})`]);
    const keep = event && event.target === fields.package ? fields.package.value : null;
    fill(fields.package, choices.build ? [...offered, ["", "none: build it"]] : offered, keep);
    const found = packages[fields.package.value];
    const usable = Boolean(found || choices.build);
    byId("note").textContent = !usable ? "No package fits. Choose another precision or context." :
      found ? "A remote has this package: pull it. The build line makes one alike." :
      `No package is chosen: build it. qeff-zoo plan with the same options checks them first. ${known.note}`;
    const lines = usable ? commands(choices, { device, weights, context, found }) : [];
    byId("lines").replaceChildren(...lines.map(([title, text]) => element("div", { class: "line" },
      element("h3", {}, title), element("pre", { tabindex: "0" }, element("code", {}, text)),
      element("button", { type: "button", class: "copy", "aria-label": `Copy: ${title}` }, "Copy"))));
  }

  fill(fields.device, choices.devices.map((one) => [one.name, one.name]), "");
  if (packages.length) {
    fields.device.value = packages[0].device;
    update();
    fields.weights.value = packages[0].weights;
    if (packages[0].context) fields.context.value = packages[0].context;
  }
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
}

async function copy(button) {
  const text = button.parentElement.querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { readonly: "" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest(".copy");
  if (button) copy(button);
});
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
if (byId("listing")) modelList(JSON.parse(byId("listing").textContent));
else if (byId("filters")) shownRows();
if (byId("choices")) builder(JSON.parse(byId("choices").textContent));
