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

export async function copyAddress(button) {
  await navigator.clipboard.writeText(location.href);
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = label), 1500);
}
