import { connect, element, loadState, saveState, settled } from "./form.mjs";
import { models, run, sizes } from "./python.mjs";

const form = document.querySelector("#fits");
const [picture, command, answer] = ["#picture", "#command", "#answer"].map((each) => document.querySelector(each));
const STAGES = ["data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3"];
const KINDS = { parameters_bytes: "parameters", gradients_bytes: "gradients", optimizer_bytes: "optimizer", step: "what a step adds" };
const initial = Object.fromEntries(new FormData(form));
let config = ""; // the text of a config.json
let latest = 0; // what was asked last: an earlier answer that comes late is not shown

const isCount = (text) => /^\s*[\d.,_]+(e\d+)?\s*[KMBT]?\s*$/i.test(text);

function mixture() {
  return config !== "" && /num_(local_)?experts/.test(config);
}

function shown(field, state) {
  const { in: modes, for: kind } = field.closest("label").dataset;
  if (modes && !modes.split(" ").includes(state.mode)) return false;
  return !kind || (kind === "mixture" ? mixture() : !isCount(state.what) && !(mixture() && field.name === "recompute"));
}

// The arguments of `zerocourse memory`: one option for each field that is shown and has a value.
function words(state) {
  const found = isCount(state.what) ? ["--params", state.what.trim()] : ["--model", state.what.trim()];
  if (state.mode === "kv") found.push("--kv");
  for (const field of form.elements) {
    if (!field.name || ["mode", "what"].includes(field.name) || state[field.name] === "" || !shown(field, state)) continue;
    found.push(`--${state.mode === "places" && field.name === "card" ? "device" : field.name}`, state[field.name].trim());
  }
  return found;
}

const inShell = (word) => (/^[\w./=-]+$/.test(word) ? word : `'${word}'`);

async function show() {
  const turn = ++latest;
  const state = Object.fromEntries(new FormData(form));
  delete state[""];
  for (const field of form.elements) if (field.closest("label")) field.closest("label").hidden = !shown(field, state);
  const changed = Object.fromEntries(Object.entries(state).filter(([name, value]) => value !== initial[name]));
  saveState({ ...changed, config });
  const asked = words(state);
  const files = config ? { "config.json": config } : {};
  command.textContent = ["zerocourse memory", ...asked.map(inShell)].join(" ");
  const given = await run(["memory", ...asked], files);
  const bars = given.status === 0 ? await drawn(state.mode, asked, files) : [];
  if (turn !== latest) return;
  answer.textContent = given.status === 0 ? given.out : given.err;
  answer.classList.toggle("wrong", given.status !== 0);
  picture.replaceChildren(...bars);
}

// The picture of an answer, row by row; generation has none.
async function drawn(mode, asked, files) {
  return mode === "stages" ? drawStages(asked, files) : mode === "places" ? drawPlaces(asked, files) : [];
}

const json = async (asked, files) => JSON.parse((await run(["memory", "--json", ...asked], files)).out);

async function drawStages(asked, files) {
  const at = asked.indexOf("--stage");
  const rows = await Promise.all([0, 1, 2, 3].map((stage) => json(asked.with(at + 1, String(stage)), files)));
  const card = await bytesOf(form.elements.card.value);
  const most = Math.max(card, ...rows.map((row) => row.peak_bytes ?? row.total_bytes));
  const bars = await Promise.all(rows.map((row, stage) => {
    const parts = { ...row, step: Math.max(0, (row.peak_bytes ?? row.total_bytes) - row.total_bytes) };
    return bar(STAGES[stage], KINDS, parts, most, card, (row.peak_bytes ?? row.total_bytes) <= card);
  }));
  return [...bars, legend(KINDS, rows[0].peak_bytes === null ? ["step"] : [])];
}

async function drawPlaces(asked, files) {
  const found = await json(asked, files);
  const places = { device_bytes: "device", host_bytes: "host", disk_bytes: "disk" };
  const fitting = found.arrangements.filter((row) => row.fits);
  const most = Math.max(1, ...fitting.map((row) => row.device_bytes + row.host_bytes + row.disk_bytes));
  const bars = await Promise.all(fitting.map((row) => bar(row.name, places, row, most, null, row.name === found.cheapest)));
  return fitting.length ? [...bars, legend(places, [])] : [];
}

// The command reads sizes, so it is asked what the card's is.
async function bytesOf(size) {
  return (await json(["--params", "1", "--ranks", "1", "--device", size], {})).device_budget_bytes;
}

async function bar(name, kinds, row, most, limit, good) {
  const total = Object.keys(kinds).reduce((sum, kind) => sum + row[kind], 0);
  const [all, edge, ...each] = await sizes([total, limit ?? 0, ...Object.keys(kinds).map((kind) => row[kind])]);
  const pieces = Object.keys(kinds).map((kind, number) => {
    const piece = element("span", { className: `piece ${kind}`, title: `${kinds[kind]}: ${each[number]}` });
    piece.style.width = `${(100 * row[kind]) / most}%`;
    return piece;
  });
  const track = element("span", { className: "track" }, ...pieces);
  if (limit !== null) {
    const line = element("span", { className: "limit", title: `the card: ${edge}` });
    line.style.left = `${(100 * limit) / most}%`;
    track.append(line);
  }
  const said = `${name}: ${all}${limit === null ? "" : good ? ", fits" : ", too large"}`;
  return element("div", { className: good ? "bar good" : "bar" }, element("span", { className: "name" }, said), track);
}

function legend(kinds, without) {
  const items = Object.keys(kinds).filter((kind) => !without.includes(kind));
  return element("div", { className: "legend" }, ...items.map((kind) =>
    element("span", {}, element("span", { className: `piece ${kind}` }), ` ${kinds[kind]}`)));
}

async function take(file) {
  config = await file.text();
  form.elements.what.value = "config.json";
  show();
}

connect(form, take);
form.addEventListener("input", settled(() => {
  if (form.elements.what.value !== "config.json") config = "";
  show();
}));

const { config: sent = "", ...state } = loadState();
config = sent;
for (const [name, value] of Object.entries(state)) if (form.elements[name]) form.elements[name].value = value;
models().then((names) => document.querySelector("#models").append(...names.map((value) => element("option", { value }))));
show();
