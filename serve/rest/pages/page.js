"use strict";
// The form. The models, their addresses and the examples come from openapi.json.
const byId = id => document.getElementById(id);
const ROUTED = "as routed";
let operations = [];
let number = 0;

function options(select, values, labels) {
  const before = select.value;
  select.replaceChildren(...values.map(value => {
    const made = document.createElement("option");
    made.value = value;
    made.textContent = labels ? labels(value) : value;
    return made;
  }));
  if (values.includes(before)) select.value = before;
}
function distinct(values) { return [...new Set(values)]; }
function chosen() {
  return operations.find(one => one.model === byId("model").value && one.version === byId("version").value &&
    one.form === byId("kind").value);
}

async function describe() {
  const response = await fetch("openapi.json?example=" + number);
  const description = await response.json();
  if (!response.ok) throw new Error(description.error);
  operations = Object.entries(description.paths).flatMap(([path, item]) => {
    if (!item.post || !item.post["x-form"]) return [];
    return [{path, model: item.post["x-model"], version: item.post["x-version"], form: item.post["x-form"],
      examples: item.post.requestBody.content["application/json"].examples}];
  });
}

// Each choice bounds the next one.
function refresh() {
  options(byId("model"), distinct(operations.map(one => one.model)));
  const ofModel = operations.filter(one => one.model === byId("model").value);
  options(byId("version"), distinct(ofModel.map(one => one.version)), version => version || ROUTED);
  const ofVersion = ofModel.filter(one => one.version === byId("version").value);
  options(byId("kind"), distinct(ofVersion.map(one => one.form)));
  const operation = chosen();
  byId("send").disabled = byId("another").disabled = !operation;
  if (!operation) return;
  options(byId("example"), Object.keys(operation.examples), name => operation.examples[name].summary);
  byId("address").textContent = "POST " + operation.path;
  const example = operation.examples[byId("example").value];
  const text = example ? pretty(example.value) : "";
  byId("request").value = text;
  byId("request").rows = Math.min(Math.max(text.split("\n").length + 1, 8), 28);
}

// JSON with one line per input: arrays that hold no objects stay on one line.
function pretty(value, indent = "") {
  const inner = indent + "  ";
  const isFlat = Array.isArray(value) && !value.flat(9).some(one => one !== null && typeof one === "object");
  if (value === null || typeof value !== "object" || isFlat) return JSON.stringify(value);
  const isList = Array.isArray(value);
  const parts = isList ? value.map(one => inner + pretty(one, inner))
    : Object.entries(value).map(([name, one]) => inner + JSON.stringify(name) + ": " + pretty(one, inner));
  const [open, close] = isList ? "[]" : "{}";
  return parts.length ? open + "\n" + parts.join(",\n") + "\n" + indent + close : open + close;
}

function show(status, isGood, took, text) {
  byId("result").hidden = false;
  byId("status").textContent = status;
  byId("status").className = "badge " + (isGood ? "good" : "bad");
  byId("took").textContent = took;
  byId("answer").textContent = text;
}

async function send(event) {
  event.preventDefault();
  byId("send").disabled = true;
  const started = performance.now();
  try {
    const response = await fetch("." + chosen().path, {method: "POST", body: byId("request").value,
      headers: {"Content-Type": "application/json"}});
    const text = await response.text();
    const took = (performance.now() - started).toFixed(1) + " ms from the browser and back";
    const answer = JSON.parse(text);
    show(`${response.status} ${response.statusText}`, response.ok, took, answer.error || pretty(answer));
  } catch (error) {
    show("failed", false, "", "There was no answer that can be read: " + error.message);
  }
  byId("send").disabled = false;
}

async function start() {
  try {
    await describe();
  } catch (error) {
    show("failed", false, "", "The examples cannot be read: " + error.message);
  }
  refresh();
}

for (const id of ["model", "version", "kind", "example"]) byId(id).addEventListener("change", refresh);
byId("another").addEventListener("click", () => { number += 1; start(); });
byId("form").addEventListener("submit", send);
start();
