"""A private JupyterLab on this machine, and a page of it in headless Chromium. Neither talks to anybody outside."""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from zerocourse.launch.processes.listener import free_port

START_SECONDS = 90
QUIET_BROWSER = [  # as root in a container it has no sandbox; without these it looks for its maker's hosts
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-sync",
    "--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
    "--disable-default-apps", "--disable-extensions", "--disable-domain-reliability", "--metrics-recording-only",
    "--disable-features=OptimizationHints,MediaRouter,Translate,CertificateTransparencyComponentUpdater",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost"]
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"checkForUpdates": False, "fetchNews": "false"},
    "@jupyterlab/apputils-extension:themes": {"theme": "JupyterLab Light", "adaptive-theme": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},  # else cells off the screen are not there
}
READY = """(path) => { const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
    return !!(panel && panel.context && panel.context.path === path && panel.context.isReady && panel.content.model
              && panel.sessionContext.session && panel.sessionContext.session.kernel
              && panel.sessionContext.session.kernel.status === 'idle'); }"""
IDLE = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
START_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells').catch(() => {}); }"
ALL_RAN = """() => { const panel = window.jupyterapp.shell.currentWidget;
    return panel.sessionContext.session.kernel.status === 'idle'
        && Array.from(panel.content.model.cells).every(cell => cell.type !== 'code' || cell.executionCount); }"""
ERRORS = """() => { const found = [];
    for (const cell of window.jupyterapp.shell.currentWidget.content.model.cells)
        if (cell.type === 'code')
            for (const output of cell.sharedModel.getOutputs())
                if (output.output_type === 'error') found.push(output.ename + ': ' + output.evalue);
    return found; }"""
RUN_CELL = """(index) => { const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = index; notebook.deselectAll();
    window.jupyterapp.commands.execute('notebook:run-cell'); }"""


@contextmanager
def server(folder: Path, **environment: str):
    """JupyterLab on `folder`, with settings of its own; yields its address with the token. Ends all it started."""
    with tempfile.TemporaryDirectory(prefix="lab") as own, open(Path(own, "log"), "w+") as log:
        (Path(own) / "settings").mkdir()
        (Path(own) / "settings" / "overrides.json").write_text(json.dumps(SETTINGS))
        port, token = free_port(), secrets.token_hex(16)
        homes = {name: str(Path(own, name)) for name in (
            "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR",
            "IPYTHONDIR", "MPLCONFIGDIR")}
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
             "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}",
             "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
             "--LabApp.extension_manager=readonly", f"--LabApp.app_settings_dir={own}/settings",
             "--ServerApp.terminals_enabled=False", "--LabApp.expose_app_in_browser=True"],
            env=kept | homes | {"JUPYTER_PREFER_ENV_PATH": "1"} | environment, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True)
        try:
            _wait_until_it_answers(f"http://127.0.0.1:{port}/api/status?token={token}", process, log)
            yield f"http://127.0.0.1:{port}/lab/tree/{{path}}?reset&token={token}"
        finally:
            process.terminate()  # it shuts its kernels down
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_until_it_answers(address: str, process, log) -> None:
    opener, deadline = urllib.request.build_opener(urllib.request.ProxyHandler({})), time.monotonic() + START_SECONDS
    while True:
        try:
            opener.open(address, timeout=5).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise RuntimeError(f"JupyterLab does not answer ({error}):\n{log.read()[-3000:]}") from None
            time.sleep(0.2)


def open_notebook(page, address: str, path: str, seconds: float = 120) -> None:
    """Load JupyterLab with one notebook and wait for its kernel."""
    page.goto(address.format(path=path), timeout=seconds * 1e3)
    page.wait_for_function(READY, arg=path, timeout=seconds * 1e3)


def run_all(page, seconds: float = 300) -> list[str]:
    """Run every cell to the end; the errors, as "name: message".

    The command itself is over at the first error, also where a cell is tagged to raise one and the others go on.
    """
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    page.evaluate(START_ALL)
    page.wait_for_function(ALL_RAN, timeout=seconds * 1e3)
    return page.evaluate(ERRORS)


def start_cell(page, index: int) -> None:
    """Run one cell and do not wait for it."""
    page.evaluate(RUN_CELL, index)
