// Python beside the page: a command that is run, and what a page asks besides.
const worker = new Worker(new URL("python_worker.mjs", import.meta.url), { type: "module" });
const waiting = new Map();
let last = 0;

worker.onmessage = ({ data: { id, value, error } }) => {
  waiting.get(id)(error ? { status: 2, out: "", err: error } : value);
  waiting.delete(id);
};

function call(name, ...given) {
  return new Promise((told) => {
    waiting.set(++last, told);
    worker.postMessage({ id: last, name, given });
  });
}

// Resolves to {status, out, err} of `zerocourse WORDS...`. files: texts by name.
export const run = (words, files = {}) => call("answer", words, new Map(Object.entries(files)));

// The models that commands know by name.
export const models = () => call("models");

// Bytes as the commands write them.
export const sizes = (counts) => call("sizes", counts);
