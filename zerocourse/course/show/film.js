// Makes each film of the page that is not a player yet into one. A film is a <div data-film> with its key frames as <figure>s,
// and with all frames as JSON: pieces of SVG, captions, and code with a line for each frame.
for (const film of document.querySelectorAll("[data-film]:not([data-ready])")) {
  film.setAttribute("data-ready", "");
  const {title, seconds, width, height, under, frames, captions, start, code, lines} = JSON.parse(film.querySelector("script").textContent);
  const make = (tag, settings = {}, style = {}) => {
    const made = Object.assign(document.createElement(tag), settings);
    Object.assign(made.style, style);
    return made;
  };
  const button = (textContent, ariaLabel) => make("button", {type: "button", textContent, ariaLabel}, {minWidth: "76px"});
  const back = button("◀ back", "one frame back"), play = button("▶ play", "play"), step = button("step ▶", "one frame on");
  const slider = make("input", {type: "range", min: 0, max: frames.length - 1, step: 1, ariaLabel: "frame"}, {flex: "1 1 160px", maxWidth: "400px"});
  const controls = make("div", {}, {display: "flex", flexWrap: "wrap", gap: "6px", alignItems: "center", margin: "6px 0"});
  const caption = make("div", {}, {minHeight: "3em", margin: "6px 0"});
  const picture = make("div", {}, {overflowX: "auto"}), drawn = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({viewBox: `-8 -8 ${width + 16} ${height + 16}`, width: width + 16, role: "img",
                                              "font-family": "Helvetica, Arial, sans-serif"})) drawn.setAttribute(name, value);
  drawn.innerHTML = `${under}<g></g>`;
  const frame = drawn.lastChild;
  picture.append(drawn);
  Object.assign(drawn.style, {background: "white", maxWidth: "100%", minWidth: `${Math.round(0.85 * width)}px`, height: "auto", display: "block"});
  caption.setAttribute("aria-live", "polite");
  controls.append(back, play, step, slider);
  film.querySelectorAll("figure").forEach(figure => figure.remove());
  const listing = make("pre", {}, {flex: "1 1 420px", overflowX: "auto", margin: "0", fontSize: "12px", lineHeight: "1.45"});
  listing.append(...(code ? code.split("\n") : []).map(textContent => make("div", {textContent: textContent || " "})));
  const beside = make("div", {}, {display: "flex", flexWrap: "wrap", gap: "12px"});
  picture.style.flex = "2 1 520px";
  beside.append(picture, ...(code ? [listing] : []));
  film.append(controls, caption, beside);

  let now = 0, timer = null;
  const pause = () => { clearInterval(timer); timer = null; play.textContent = "▶ play"; };
  const show = number => {
    now = Math.max(0, Math.min(frames.length - 1, number));
    frame.innerHTML = frames[now];
    drawn.setAttribute("aria-label", captions[now]);
    slider.setAttribute("aria-valuetext", captions[now]);
    [caption.textContent, slider.value, back.disabled, step.disabled] = [captions[now], now, now === 0, now === frames.length - 1];
    [...listing.children].forEach((line, at) => {
      Object.assign(line.style, at === lines[now] ? {background: "#ffe08a", color: "#222222"} : {background: "", color: ""});
      at === lines[now] ? line.setAttribute("aria-current", "true") : line.removeAttribute("aria-current");
    });
    if (step.disabled) pause();
  };
  back.onclick = () => { pause(); show(now - 1); };
  step.onclick = () => { pause(); show(now + 1); };
  slider.oninput = () => { pause(); show(+slider.value); };
  play.onclick = () => {
    if (timer) return pause();
    if (now === frames.length - 1) show(0);
    play.textContent = "❚❚ pause";
    timer = setInterval(() => film.isConnected ? show(now + 1) : pause(), 1000 * seconds);
  };
  show(start);
}
