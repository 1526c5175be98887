// Calls the functions of `answer.py` in Pyodide, beside the page: a message {id, name, given} gets {id, value}, or {id, error}.
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

self.onmessage = async ({ data: { id, name, given } }) => {
  try {
    const answers = await ready;
    const found = answers[name](...given);
    self.postMessage({ id, value: found.toJs({ dict_converter: Object.fromEntries }) });
    found.destroy();
  } catch (error) {
    self.postMessage({ id, error: `Python did not start, or stopped here: ${error.message}` });
  }
};
