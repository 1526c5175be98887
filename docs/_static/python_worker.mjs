// Runs the package's own commands, in Pyodide, beside the page: a message {id, words, files} gets {id, status, out, err}.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const HOME = "/lib/zerocourse_site";

async function start() {
  const python = await loadPyodide();
  const packed = await fetch(new URL("zerocourse.zip", import.meta.url));
  python.unpackArchive(await packed.arrayBuffer(), "zip", { extractDir: HOME });
  python.runPython(`import sys; sys.path.insert(0, "${HOME}")`);
  return python.pyimport("answer");
}

const ready = start();

self.onmessage = async ({ data: { id, words, files } }) => {
  try {
    const answers = await ready;
    const given = words === null ? answers.models() : answers.answer(words, new Map(Object.entries(files)));
    self.postMessage({ id, ...plain(given) });
  } catch (error) {
    self.postMessage({ id, status: 2, out: "", err: `Python did not start or stopped here: ${error.message}` });
  }
};

function plain(given) {
  const value = given.toJs({ dict_converter: Object.fromEntries });
  given.destroy();
  return Array.isArray(value) ? { names: value } : value;
}
