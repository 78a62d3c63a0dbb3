// The status page: reads status.json every two seconds and draws it. Whatever others named is written as text only.
"use strict";

const EVERY_MS = 2000;
const MAX_PLOTS = 12;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
let token = sessionStorage.getItem("tidegate-token") || "";
let timer = 0;

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "className") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function drawing(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const number = (value) => (value === null ? "not known" : value.toLocaleString("en"));

function duration(seconds) {
  if (seconds === null) return "not known";
  if (seconds > 0 && seconds < 0.05) return "< 0.1 s";
  if (seconds < 10) return `${seconds ? seconds.toFixed(1) : 0} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
  return `${at && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[at]}`;
}

function state(name, count) {
  const known = ["ready", "serving", "failed", "loading", "fetching", "starting", "draining"].includes(name);
  return element("span", { className: known ? `state ${name}` : "state" }, count > 1 ? `${name} ×${count}` : name);
}

function fill(id, caption, headings, rows) {
  const head = element("tr", {});
  for (const [heading, isNumber] of headings) {
    head.append(element("th", { scope: "col", className: isNumber ? "number" : "" }, heading));
  }
  const body = element("tbody");
  for (const cells of rows) {
    const row = element("tr");
    cells.forEach((cell, index) => {
      const parts = Array.isArray(cell) ? cell : [cell];
      if (index === 0) row.append(element("th", { scope: "row", className: "name" }, ...parts));
      else row.append(element("td", { className: headings[index][1] ? "number" : "" }, ...parts));
    });
    body.append(row);
  }
  if (!rows.length) body.append(element("tr", {}, element("td", { colspan: headings.length }, "none")));
  byId(id).replaceChildren(element("caption", {}, caption), element("thead", {}, head), body);
}

function bars(title, what, values) {
  const width = 260, height = 110, base = 88, top = 18;
  const highest = Math.max(1, ...values.map(({ count }) => count));
  const step = width / Math.max(4, values.length);
  const shape = drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const total = values.reduce((sum, { count }) => sum + count, 0);
  shape.setAttribute("aria-label", `${title}: ${values.filter(({ count }) => count)
    .map(({ label, count }) => `${label}: ${count}`).join(", ") || "nothing yet"}`);
  shape.append(drawing("line", { x1: 0, x2: width, y1: base + 0.5, y2: base + 0.5 }));
  const every = Math.ceil(values.length / 8);
  values.forEach(({ label, count }, index) => {
    const tall = count ? Math.max(1.5, (base - top) * count / highest) : 0;
    const bar = drawing("rect", { x: (index + 0.12) * step, y: base - tall, width: step * 0.76, height: tall, rx: 1.5 });
    bar.append(drawing("title", {}, `${label}: ${number(count)} ${what}`));
    shape.append(bar);
    if (index % every === 0) {
      shape.append(drawing("text", { x: (index + 0.5) * step, y: base + 13, "text-anchor": "middle" }, label));
    }
  });
  shape.append(drawing("text", { x: width, y: 9, "text-anchor": "end" }, `highest ${number(values.length ? highest : 0)}`));
  return element("figure", {}, element("figcaption", {}, `${title} · ${number(total)} ${what}`), shape);
}

function milliseconds(bound) {
  return bound < 1000 ? `${bound}` : `${bound / 1000}s`;
}

function quantile(model, bounds, share) {
  const total = model.latency_counts.reduce((sum, count) => sum + count, 0);
  let seen = 0;
  for (let index = 0; index < model.latency_counts.length && total; index += 1) {
    seen += model.latency_counts[index];
    if (seen >= share * total) return index < bounds.length ? `≤ ${milliseconds(bounds[index])}` +
      (bounds[index] < 1000 ? " ms" : "") : `> ${milliseconds(bounds.at(-1))}`;
  }
  return "–";
}

function drawPlots(told) {
  const busy = told.models.filter((model) => model.batches).sort((a, b) => b.succeeded - a.succeeded);
  byId("plots-note").textContent = busy.length > MAX_PLOTS
    ? `Of the ${MAX_PLOTS} models with the most requests, since their workers started.`
    : busy.length ? "Since each worker started." : "Nothing has been run since the workers started.";
  byId("plots").replaceChildren(...busy.slice(0, MAX_PLOTS).map((model) => {
    const sizes = model.batch_sizes.map(({ rows, count }) => ({ label: `${rows}`, count }));
    const last = model.latency_counts.findLastIndex((count) => count > 0);
    const first = Math.max(0, model.latency_counts.findIndex((count) => count > 0) - 1);
    const times = model.latency_counts.slice(0, last + 1).map((count, index) => ({
      label: index < told.latency_bounds_ms.length ? milliseconds(told.latency_bounds_ms[index])
        : `>${milliseconds(told.latency_bounds_ms.at(-1))}`, count })).slice(first);
    return element("article", { className: "plot" }, element("h3", {}, model.name), element("div", { className: "pair" },
      bars("Batch size in rows", "batches", sizes), bars("Latency in ms, up to", "requests", times)));
  }));
}

function draw(told) {
  byId("gateway").textContent = `gateway ${told.version}, ${told.state}, ${number(told.in_flight)} requests in flight`;
  const known = told.pools.filter((pool) => pool.backlog !== null);
  const isWhole = known.length === told.pools.length;
  const seconds = told.pools.map((pool) => pool.backlog_s);
  const cards = [
    ["Requests waiting", isWhole ? number(known.reduce((sum, pool) => sum + pool.backlog, 0)) : "not known"],
    ["Longest backlog", seconds.includes(null) ? "not known" : duration(Math.max(0, ...seconds))],
    ["Workers", number(told.workers.length)],
    ["Models", number(told.models.length)],
    ["Models in memory", number(told.workers.reduce((sum, worker) => sum + worker.in_memory, 0))],
    ["Memory of models", bytes(told.workers.reduce((sum, worker) => sum + worker.memory_bytes, 0))],
  ];
  byId("cards").replaceChildren(...cards.map(([name, value]) =>
    element("div", { className: "card" }, element("dt", {}, name), element("dd", {}, value))));
  fill("pools", "What waits, and who works on it",
    [["pool", 0], ["workers", 1], ["models", 1], ["waiting", 1], ["takes about", 1], ["", 0]],
    told.pools.map((pool) => [pool.name, number(pool.workers), number(pool.models), number(pool.backlog),
      duration(pool.backlog_s), pool.reason || (pool.backlog && !pool.workers ? "no worker is running" : "")]));
  fill("models", "Counts are since each worker started",
    [["model", 0], ["pool", 0], ["versions", 0], ["memory", 1], ["waiting", 1], ["takes about", 1], ["answered", 1],
      ["failed", 1], ["rows per batch", 1], ["p50", 1], ["p99", 1]],
    told.models.map((model) => [model.name, model.pool,
      model.versions.flatMap((version) => [element("div", {}, `${version.version} `,
        ...Object.entries(version.states).map(([name, count]) => state(name, count)), version.reason)]),
      bytes(model.versions.reduce((sum, version) => sum + version.memory_bytes, 0)), number(model.backlog),
      duration(model.backlog_s), number(model.succeeded), number(model.failed),
      model.batches ? (model.rows / model.batches).toFixed(1) : "–",
      quantile(model, told.latency_bounds_ms, 0.5), quantile(model, told.latency_bounds_ms, 0.99)]));
  drawPlots(told);
  const now = Date.parse(told.at);
  fill("workers", "Those that have told of themselves within the last half minute",
    [["worker", 0], ["pool", 0], ["host", 0], ["state", 0], ["up for", 1], ["told", 1], ["devices", 0],
      ["in memory", 1], ["memory", 1], ["version", 0]],
    told.workers.map((worker) => [worker.id, worker.pool, worker.host, [state(worker.state, 1)],
      duration(Math.max(0, (now - Date.parse(worker.started_at)) / 1000)),
      `${duration(Math.max(0, (now - Date.parse(worker.told_at)) / 1000))} ago`, worker.devices.join(", ") || "–",
      number(worker.in_memory), bytes(worker.memory_bytes), worker.version]));
}

function say(text, isOld) {
  byId("live").textContent = text;
  byId("live").dataset.old = isOld ? "yes" : "no";
  if (isOld) byId("live").setAttribute("role", "alert");  // news of the time every 2 s is for nobody's ears
  else byId("live").removeAttribute("role");
}

async function update() {
  clearTimeout(timer);
  try {
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    const answer = await fetch("status.json", { headers, cache: "no-store" });
    byId("key").hidden = answer.status !== 401 && answer.status !== 403;
    const told = await answer.json();
    if (!answer.ok) {
      say(`${answer.status}: ${told.detail}`, true);
    } else {
      draw(told);
      byId("main").hidden = false;
      say(`as of ${new Date(told.at).toLocaleTimeString()}, every 2 s`, false);
    }
  } catch (error) {
    say(`no answer since the last update: ${error.message}`, true);
  }
  timer = setTimeout(update, EVERY_MS);
}

byId("token").addEventListener("change", (event) => {
  token = event.target.value.trim();
  sessionStorage.setItem("tidegate-token", token);
  update();
});
update();
