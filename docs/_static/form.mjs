// What the pages share: the state of a form in the address, elements, and a moment's patience.
export function saveState(state) {
  const text = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== "")).toString();
  history.replaceState(null, "", `#${text}`);
}

export const loadState = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

export function element(tag, attributes = {}, ...inside) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...inside);
  return made;
}

// Calls `then` when nothing has happened for a moment.
export function settled(then, milliseconds = 150) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(then, milliseconds);
  };
}

async function copyAddress(button) {
  await navigator.clipboard.writeText(location.href);
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = label), 1500);
}

// What a form's page reacts to besides its fields: a file that is chosen or dropped, which goes to `take`, and the button that copies.
export function connect(form, take) {
  const given = (files) => files[0] && take(files[0]);
  document.querySelector("#file").addEventListener("change", (event) => given(event.target.files));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    given(event.dataTransfer.files);
  });
  document.querySelector("#copy").addEventListener("click", (event) => copyAddress(event.target));
  form.addEventListener("submit", (event) => event.preventDefault());
}
