import { element, loadState, saveState } from "./form.mjs";

const steps = new URL("steps/", import.meta.url);
const films = await (await fetch(new URL("films.json", steps))).json();
const named = (title) => films.find((film) => film.title.startsWith(title)).file;
const state = { left: named("One step of ZeRO-2"), right: named("One step of ZeRO-3"), ...loadState() };

function player(side) {
  const frame = element("iframe", { title: `film on the ${side}` });
  const select = element("select", { ariaLabel: `film on the ${side}` }, ...films.map((film) =>
    element("option", { value: film.file }, `${film.chapter.slice(0, 2)} · ${film.title}`)));
  const show = () => {
    frame.src = new URL(select.value, steps);
    state[side] = select.value;
    saveState(state);
  };
  select.value = films.some((film) => film.file === state[side]) ? state[side] : films[0].file;
  const grow = () => (frame.style.height = `${frame.contentDocument.documentElement.scrollHeight + 24}px`);
  frame.addEventListener("load", () => {
    grow();
    new ResizeObserver(grow).observe(frame.contentDocument.body);
  });
  select.addEventListener("change", show);
  show();
  return element("div", {}, select, frame);
}

document.querySelector("#players").append(player("left"), player("right"));
