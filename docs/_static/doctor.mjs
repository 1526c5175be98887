import { connect, element, loadState, saveState, settled } from "./form.mjs";
import { models, run } from "./python.mjs";

const form = document.querySelector("#doctor");
const [problems, keys, total] = ["#problems", "#keys", "#total"].map((each) => document.querySelector(each));
const FILE = "ds_config.json";
const initial = Object.fromEntries(new FormData(form));
let latest = 0; // what was asked last: an earlier answer that comes late is not shown

async function show() {
  const turn = ++latest;
  const state = Object.fromEntries(new FormData(form));
  saveState(Object.fromEntries(Object.entries(state).filter(([name, value]) => value !== initial[name])));
  const asked = ["config", FILE, "--trainer", "--model", state.model, "--nproc", state.nproc], files = { [FILE]: state.text };
  const given = await run([...asked, "--json"], files);
  const said = given.status === 0 ? (await run(asked, files)).out : "";
  if (turn !== latest) return;
  keys.hidden = given.status !== 0;
  total.textContent = "";
  if (given.status !== 0) {
    problems.replaceChildren(...given.err.trim().split("\n").map(problem));
    return;
  }
  const found = JSON.parse(given.out);
  problems.replaceChildren(element("li", { className: "good" }, "Nothing is wrong with it."));
  keys.tBodies[0].replaceChildren(...found.keys.map(row));
  total.textContent = said.trim().split("\n\n").at(-1).replaceAll("\n", " ");
}

// A sentence of the command; a click selects the line that it names.
function problem(sentence) {
  const said = sentence.replace("zerocourse config: ", "");
  const line = said.match(new RegExp(`\\(${FILE}, line (\\d+)\\)`));
  const item = element("li", { className: "wrong" }, line ? said.replace(` ${line[0]}`, "") : said);
  if (line) item.prepend(lineButton(Number(line[1])), " ");
  return item;
}

function lineButton(number) {
  const button = element("button", { type: "button" }, `line ${number}`);
  button.addEventListener("click", () => {
    const lines = form.elements.text.value.split("\n");
    const begin = lines.slice(0, number - 1).join("\n").length + (number > 1);
    form.elements.text.focus();
    form.elements.text.setSelectionRange(begin, begin + lines[number - 1].length);
  });
  return button;
}

function row(key) {
  const does = key.group === "works" ? key.does : `${key.group}: ${key.does}`;
  return element("tr", {}, element("td", {}, lineButton(key.line)), element("td", {}, element("code", {}, key.path)), element("td", {}, does),
    element("td", {}, key.effect ?? ""));
}

async function take(file) {
  form.elements.text.value = await file.text();
  show();
}

connect(form, take);
form.addEventListener("input", settled(show));

const state = loadState();
for (const name of ["text", "nproc"]) if (name in state) form.elements[name].value = state[name];
models().then((names) => {
  form.elements.model.replaceChildren(...names.map((name) => element("option", { selected: name === (state.model ?? initial.model) }, name)));
  show();
});
