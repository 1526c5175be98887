// A command that is run beside the page.
const worker = new Worker(new URL("python_worker.mjs", import.meta.url), { type: "module" });
const waiting = new Map();
let last = 0;

worker.onmessage = ({ data: { id, ...given } }) => {
  waiting.get(id)(given);
  waiting.delete(id);
};

function ask(words, files) {
  return new Promise((told) => {
    waiting.set(++last, told);
    worker.postMessage({ id: last, words, files });
  });
}

// Resolves to {status, out, err} of `zerocourse WORDS...`.
export const run = (words, files = {}) => ask(words, files);

// The models that commands know by name.
export const models = async () => (await ask(null, {})).names;
