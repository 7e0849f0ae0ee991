"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const TYPES = ["table_wise", "column_wise", "row_wise", "table_row_wise", "grid_shard", "data_parallel"];
const PARTS = [["input_us", "IDs in", "input"], ["forward_us", "forward", "forward"],
  ["output_us", "outputs and their gradients", "output"], ["backward_us", "backward", "backward"]];

function size(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let i = 0;
  while (bytes >= 1000 && i < 4) { bytes /= 1000; i += 1; }
  return (i === 0 ? bytes.toFixed(0) : bytes.toFixed(i === 4 ? 2 : 1)) + " " + units[i];
}
function time(us) { return us < 1000 ? us.toFixed(1) + " µs" : (us / 1000).toFixed(2) + " ms"; }
function color(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); }
function ranksText(ranks) {
  const parts = [];
  for (const rank of ranks) {
    const last = parts[parts.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank; else parts.push([rank, rank]);
  }
  return parts.map(p => p[0] === p[1] ? p[0] : p[0] + "–" + p[1]).join(", ");
}
function node(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const tip = byId("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX + 14, innerWidth - box.width - 8) + "px";
  tip.style.top = Math.min(event.clientY + 14, innerHeight - box.height - 8) + "px";
}
function hideTip() { tip.style.display = "none"; }

// Rank numbers at most this many pixels apart would touch.
function labelStep(slot, pixels) { return [1, 2, 4, 8, 16, 32, 64, 128, 256].find(n => n * slot >= pixels) || 512; }
function short(text) { return text.replace(/\.0+ /, " "); }
function niceStep(top) {
  const rough = top / 4, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map(f => f * power).find(step => step >= rough);
}

// Columns for the ranks; marks are lines across.
function columns(id, config) {
  const svg = byId(id), ranks = data.ranks, height = 240;
  const width = Math.max(svg.getBoundingClientRect().width, 320);
  const left = 74, right = 118, top = 22, bottom = 26;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const highest = Math.max(...ranks.map(config.total), ...config.marks.map(m => m.value), 1e-9) * 1.04;
  const y = v => height - bottom - v / highest * (height - top - bottom);
  const slot = (width - left - right) / ranks.length, gap = slot > 6 ? slot * 0.18 : slot * 0.1;
  const step = niceStep(highest);
  for (let v = 0; v <= highest; v += step) {
    svg.append(node("line", {x1: left, x2: width - right, y1: y(v), y2: y(v), stroke: "var(--grid)"}));
    svg.append(node("text", {x: left - 8, y: y(v) + 4, "text-anchor": "end"}, v === 0 ? "0" : short(config.text(v))));
  }
  const barWidth = Math.min(slot - gap, 90);
  ranks.forEach((rank, i) => {
    const x = left + i * slot + (slot - barWidth) / 2;
    let at = 0;
    for (const [value, fill] of config.parts(rank)) {
      if (value > 0) svg.append(node("rect", {x, width: barWidth, y: y(at + value),
        height: Math.max(y(at) - y(at + value), 0.4), fill}));
      at += value;
    }
    if (config.isMarked(rank)) svg.append(node("path", {fill: "var(--bad)",
      d: `M${x + barWidth / 2},${y(at) - 3} l-5,-8 h10 z`}));
    const hit = node("rect", {x: left + i * slot, width: slot, y: top, height: height - top - bottom,
      fill: "transparent"});
    hit.addEventListener("mousemove", event => showTip(event, config.tip(rank)));
    hit.addEventListener("mouseleave", hideTip);
    svg.append(hit);
    if (i % labelStep(slot, 30) === 0) svg.append(node("text", {x: left + (i + 0.5) * slot, y: height - 8,
      "text-anchor": "middle"}, rank.rank));
  });
  // Labels that would lie on each other are moved apart.
  let lowest = -Infinity;
  for (const mark of [...config.marks].sort((a, b) => b.value - a.value)) {
    svg.append(node("line", {x1: left, x2: width - right, y1: y(mark.value), y2: y(mark.value), stroke: mark.stroke,
      "stroke-width": 1.5, "stroke-dasharray": mark.dash || "none", "pointer-events": "none"}));
    const labelY = Math.max(y(mark.value) + 4, lowest + 15);
    lowest = labelY;
    svg.append(node("text", {x: width - right + 8, y: labelY, class: mark.kind}, mark.label));
  }
}

function charts() {
  const worst = data.worst_rank;
  columns("cost", {
    total: r => r.cost_us, text: time,
    parts: r => PARTS.map(([key, , name]) => [r[key], `var(--${name})`]),
    marks: [{value: data.worst_us, label: "worst " + time(data.worst_us), stroke: "var(--bad)", dash: "2 3",
             kind: "bad"},
            {value: data.mean_us, label: "mean " + time(data.mean_us), stroke: "var(--ink)", dash: "6 4",
             kind: "mark"}],
    isMarked: r => r.rank === worst,
    tip: r => `rank ${r.rank}${r.rank === worst ? " (worst)" : ""}: ${time(r.cost_us)}, ${r.num_shards} shards\n` +
      PARTS.map(([key, label]) => `${label}: ${time(r[key])}`).join("\n"),
  });
  const memory = (id, key, capacity) => columns(id, {
    total: r => r[key], text: size,
    parts: r => [[r[key], r[key] > capacity ? "var(--bad)" : "var(--memory)"]],
    marks: capacity > 0 ? [{value: capacity, label: "has " + size(capacity), stroke: "var(--ink)", kind: "mark"}] : [],
    isMarked: r => r[key] > capacity,
    tip: r => `rank ${r.rank}: ${size(r[key])}` +
      (capacity > 0 ? ` of ${size(capacity)} (${(100 * r[key] / capacity).toFixed(1)} %)` : ""),
  });
  if (byId("hbm")) memory("hbm", "hbm_bytes", data.hbm_capacity_bytes);
  if (byId("ddr")) memory("ddr", "ddr_bytes", data.ddr_capacity_bytes);
}

// One list of tables for the matrix and the table: filtered and sorted.
const state = {key: "cost_us", down: true, text: "", type: "", kernel: "", shade: "bytes"};
function shown() {
  const wanted = state.text.toLowerCase();
  const rows = data.tables.filter(t => t.name.toLowerCase().includes(wanted) &&
    (!state.type || t.sharding_type === state.type) && (!state.kernel || t.compute_kernel === state.kernel));
  const key = state.key, sign = state.down ? -1 : 1;
  const value = t => key === "ranks" ? t.ranks[0] : t[key];
  return rows.sort((a, b) => {
    const x = value(a), y = value(b);
    return x === y ? a.index - b.index : (x < y ? -sign : sign);
  });
}

let layout = null;
function matrix(tables) {
  const canvas = byId("matrix"), head = byId("matrix-head"), box = canvas.parentElement;
  const W = data.world_size, n = Math.max(tables.length, 1);
  const rowHeight = Math.max(2, Math.min(20, Math.floor(7000 / n)));
  const labels = rowHeight >= 11, names = labels ? 190 : 8;
  const height = n * rowHeight, ratio = Math.min(devicePixelRatio || 1, 2);
  // With its height set, the box knows whether it scrolls.
  canvas.style.height = height + "px"; canvas.style.width = "1px";
  const width = Math.max(box.clientWidth, names + W * 3);
  const cell = (width - names) / W;
  for (const [target, h] of [[canvas, height], [head, 20]]) {
    target.width = width * ratio; target.height = h * ratio;
    target.style.width = width + "px"; target.style.height = h + "px";
  }
  const fills = Object.fromEntries(TYPES.map(t => [t, color(t)]));
  const context = canvas.getContext("2d"), font = "12px " + getComputedStyle(document.body).fontFamily;
  context.scale(ratio, ratio);
  let most = 1e-9;
  for (const t of data.tables) for (const s of t.shards) most = Math.max(most, value(s));
  tables.forEach((table, i) => {
    const top = i * rowHeight;
    if (rowHeight >= 11 && i % 2) { context.globalAlpha = 1; context.fillStyle = color("track");
      context.fillRect(0, top, width, rowHeight); }
    context.fillStyle = fills[table.sharding_type];
    for (const shard of table.shards) {
      // The square root keeps small shards visible.
      context.globalAlpha = 0.25 + 0.75 * Math.sqrt(value(shard) / most);
      const pad = rowHeight >= 6 ? 1 : 0;
      for (const [from, to] of shard.ranks) for (let rank = from; rank <= to; rank += 1)
        context.fillRect(names + rank * cell, top + pad, Math.max(cell - (cell > 4 ? 1 : 0), 1), rowHeight - pad);
    }
    if (labels) {
      context.globalAlpha = 1; context.fillStyle = color("ink"); context.font = font;
      let name = table.label;
      if (context.measureText(name).width > names - 12) {
        // The end of a path says more than its beginning.
        while (name.length > 4 && context.measureText("…" + name).width > names - 12) name = name.slice(1);
        name = "…" + name;
      }
      context.fillText(name, 4, top + rowHeight - Math.max((rowHeight - 10) / 2, 1));
    }
  });
  context.globalAlpha = 1;
  const local = data.local_world_size;
  context.strokeStyle = color("soft"); context.lineWidth = 1;
  if (local > 1) for (let rank = local; rank < W; rank += local) {
    const x = Math.round(names + rank * cell) - 0.5;
    context.globalAlpha = 0.5;
    context.beginPath(); context.moveTo(x, 0); context.lineTo(x, height); context.stroke();
  }
  const title = head.getContext("2d");
  title.scale(ratio, ratio);
  title.fillStyle = color("soft"); title.font = font; title.textAlign = "center";
  const every = labelStep(cell, 30);
  for (let rank = 0; rank < W; rank += every) title.fillText(rank, names + (rank + 0.5) * cell, 14);
  layout = {tables, rowHeight, names, cell};
}
function value(shard) { return state.shade === "bytes" ? shard.bytes : shard.us; }

byId("matrix").addEventListener("mousemove", event => {
  if (!layout) return;
  const table = layout.tables[Math.floor(event.offsetY / layout.rowHeight)];
  if (!table) return hideTip();
  const rank = Math.floor((event.offsetX - layout.names) / layout.cell);
  const here = table.shards.filter(s => s.ranks.some(([from, to]) => from <= rank && rank <= to));
  showTip(event, `${table.name}\n${table.num_embeddings.toLocaleString("en")} × ${table.embedding_dim} ` +
    `${table.data_type}, ${table.sharding_type}, ${table.compute_kernel}\n` + (rank < 0 ? "" : `rank ${rank}: ` +
    (here.length ? here.map(s => `${s.rows.toLocaleString("en")} × ${s.columns}, ${size(s.bytes)}, ` +
      time(s.us)).join("; ") : "nothing")));
});
byId("matrix").addEventListener("mouseleave", hideTip);

const COLUMNS = [["name", "table", t => t.label],
  ["num_embeddings", "rows", t => t.num_embeddings.toLocaleString("en")],
  ["embedding_dim", "dim", t => t.embedding_dim], ["data_type", "data", t => t.data_type],
  ["sharding_type", "sharding", t => t.sharding_type], ["compute_kernel", "kernel", t => t.compute_kernel],
  ["num_shards", "shards", t => t.num_shards], ["ranks", "ranks", t => ranksText(t.ranks)],
  ["hbm_bytes", "HBM", t => t.hbm_bytes ? size(t.hbm_bytes) : "–"],
  ["ddr_bytes", "DDR", t => t.ddr_bytes ? size(t.ddr_bytes) : "–"],
  ["cost_us", "cost", t => time(t.cost_us)], ["max_rank_us", "worst rank", t => time(t.max_rank_us)]];
const LEFT = new Set(["name", "data_type", "sharding_type", "compute_kernel", "ranks"]);

function list(tables) {
  const head = byId("head");
  head.replaceChildren(...COLUMNS.map(([key, label]) => {
    const cell = element("th", undefined, LEFT.has(key) ? "left" : "");
    const isKey = state.key === key;
    const button = element("button", label + (isKey ? (state.down ? " ↓" : " ↑") : ""));
    cell.setAttribute("aria-sort", isKey ? (state.down ? "descending" : "ascending") : "none");
    button.addEventListener("click", () => {
      state.down = isKey ? !state.down : !LEFT.has(key);
      state.key = key;
      refresh();
    });
    cell.append(button);
    return cell;
  }));
  byId("rows").replaceChildren(...tables.map(table => {
    const row = element("tr");
    for (const [key, , text] of COLUMNS) {
      const cell = element("td", undefined, (LEFT.has(key) ? "left" : "") + (key === "name" ? " name" : ""));
      if (key === "name") cell.title = table.name;
      if (key === "sharding_type") {
        const dot = element("i");
        dot.style.background = `var(--${table.sharding_type})`;
        cell.append(dot);
      }
      cell.append(text(table));
      row.append(cell);
    }
    return row;
  }));
  byId("order").value = state.key;
  byId("count").textContent = tables.length === data.tables.length ? `${tables.length} tables`
    : `${tables.length} of ${data.tables.length} tables`;
}

function refresh() {
  const tables = shown();
  list(tables);
  matrix(tables);
}
function choices(select, values) {
  for (const value of values) { const made = element("option", value); made.value = value; select.append(made); }
}

data.tables.forEach((table, i) => { table.index = i; });
choices(byId("type"), TYPES.filter(type => data.tables.some(t => t.sharding_type === type)));
choices(byId("kernel"), [...new Set(data.tables.map(t => t.compute_kernel))].sort());
for (const type of TYPES.filter(type => data.tables.some(t => t.sharding_type === type))) {
  const item = element("span"), dot = element("i");
  dot.style.background = `var(--${type})`;
  item.append(dot, type.replaceAll("_", " "));
  byId("types").append(item);
}
byId("filter").addEventListener("input", event => { state.text = event.target.value; refresh(); });
byId("type").addEventListener("change", event => { state.type = event.target.value; refresh(); });
byId("kernel").addEventListener("change", event => { state.kernel = event.target.value; refresh(); });
byId("shade").addEventListener("change", event => { state.shade = event.target.value; refresh(); });
byId("order").addEventListener("change", event => {
  state.key = event.target.value;
  state.down = !LEFT.has(state.key);
  refresh();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
addEventListener("resize", () => { charts(); if (layout) matrix(layout.tables); });
charts();
refresh();
