"""More than one machine: two network namespaces as two nodes, and a link slow enough to prove overlap on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.run import get_args_parser

from zerocourse.course.trials.overlap_trial import Round, over_limited_link, summary
from zerocourse.errors import BadInput
from zerocourse.launch import link

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "slurm" / "train.sbatch"

reason = link.why_not()
needs_link = pytest.mark.skipif(reason is not None, reason=str(reason))


def train_stage3():
    """This rank's number and losses, of three steps on data of its own."""
    import zerocourse
    from zerocourse.models.gpt2 import build_model

    torch.manual_seed(0)
    model = build_model("gpt2-tiny", n_layer=2, n_embd=32)
    model, optimizer = zerocourse.shard(model, torch.optim.AdamW(model.parameters(), lr=1e-2), stage=3)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(3):
        tokens = torch.randint(256, (2, 32))
        optimizer.zero_grad()
        loss = model(tokens, tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return dist.get_rank(), losses, sum(model.zero.comm.sent.values()), os.readlink("/proc/self/ns/net")


def send_and_train(nbytes):
    """Seconds that `nbytes` take from rank 0 to rank 1; and what `train_stage3` returns."""
    row = torch.zeros(nbytes, dtype=torch.uint8)
    dist.barrier()
    begun = time.perf_counter()
    dist.send(row, 1) if dist.get_rank() == 0 else dist.recv(row, 0)
    dist.barrier()
    return time.perf_counter() - begun, train_stage3()


@pytest.mark.alone  # times over the link
@needs_link
def test_two_nodes_train_as_two_ranks_on_one_node_do(pool):
    here = [losses for _, losses, *_ in pool(2).run(train_stage3)]
    with link.limited_link(40) as nodes:
        idle = nodes.sent_bytes()
        ((seconds, first),), ((_, second),) = nodes.launch(send_and_train, 2_000_000, timeout=100, quiet=True)
        on_the_wire = [after - before for before, after in zip(idle, nodes.sent_bytes(), strict=True)]
    assert {first[0], second[0]} == {0, 1}
    assert len({first[3], second[3], os.readlink("/proc/self/ns/net")}) == 3  # of networks
    assert [losses for _, losses, *_ in sorted([first, second])] == here
    assert all(wire > sent for wire, sent in zip(on_the_wire, (first[2], second[2]), strict=True))
    assert 0.35 < seconds < 3  # 0.4 s, less the bucket's first burst; more on a busy machine


def fail_on_one():
    if dist.get_rank() == 1:
        raise ValueError("only here")
    dist.barrier()  # for ever, without the other


@needs_link
def test_a_failure_on_one_node_ends_both_and_leaves_nothing():
    begun = time.monotonic()
    with pytest.raises(Exception, match="only here"), link.limited_link(None) as nodes:
        nodes.launch(fail_on_one, timeout=100, quiet=True)
    assert time.monotonic() - begun < 60
    assert not left_over(os.getpid())


def left_over(pid):
    return sorted(path.name for path in link.NAMESPACES.glob(f"zc-{pid}-*"))


HOLD = """
import subprocess, time
from zerocourse.launch.link import limited_link
with limited_link(100) as nodes:
    print(subprocess.Popen(["ip", "netns", "exec", nodes.namespaces[1], "sleep", "600"]).pid, flush=True)
    while len(nodes.processes()) < 1:
        time.sleep(0.01)
    print("up", flush=True)
    time.sleep(600)
"""


@needs_link
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_or_killed_it_leaves_no_namespace_for_long(how):
    holder = subprocess.Popen([sys.executable, "-c", HOLD], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True)
    sleeper = int(holder.stdout.readline())
    try:
        assert holder.stdout.readline() == "up\n"
        assert len(names := left_over(holder.pid)) == 2
        holder.send_signal(how)
        holder.wait(30)
        if how is signal.SIGKILL:
            assert left_over(holder.pid) == names and runs(sleeper)
            with link.limited_link(100) as other:  # the next one clears up, and leaves alone what is in use
                assert left_over(os.getpid()) == sorted(other.namespaces)
                assert link.remove_stale() == []
        assert not left_over(holder.pid) and not runs(sleeper)
    finally:
        holder.kill()
        if runs(sleeper):
            os.kill(sleeper, signal.SIGKILL)


def runs(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_it_says_in_a_sentence_why_there_can_be_no_link(monkeypatch):
    with pytest.raises(BadInput, match="rate_mbit is -3"), link.limited_link(-3):
        pass
    monkeypatch.setattr(link.shutil, "which", lambda tool: None if tool == "tc" else "/sbin/ip")
    assert link.why_not() == "a limited link needs the program tc: install the package iproute2"
    monkeypatch.setattr(link.shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(link.os, "geteuid", lambda: 1000)
    assert "needs root" in link.why_not() and "1000" in link.why_not()
    monkeypatch.setattr(link.os, "geteuid", lambda: 0)
    monkeypatch.setattr(link, "_run", lambda *command: (_ for _ in ()).throw(BadInput("not permitted")))
    assert link.why_not() == "not permitted"


# -- overlap ----------------------------------------------------------------------------------------------------------

def test_the_bounds_are_those_of_the_formulas():
    even = Round(compute=1.0, communication=1.0, exposed=0.1, off=2.0, on=1.1)
    assert even.bound == 2 and even.tight_bound == pytest.approx(2 / 1.1) and even.share == pytest.approx(1)
    slow_link = Round(compute=1.0, communication=1.5, exposed=0.1, off=2.5, on=2.5)
    assert slow_link.bound == pytest.approx(2.5 / 1.5) == slow_link.tight_bound and slow_link.share == 0
    loud = Round(compute=1.0, communication=1.0, exposed=0.1, off=2.0, on=2.0, others=0.5)
    assert not (quiet := summary([even] * 3 + [loud] * 9))["noisy"] and quiet["speedup"] == even.speedup
    assert (noisy := summary([even] * 2 + [loud] * 9))["noisy"] and noisy["speedup"] == 1


@pytest.mark.alone  # times over the link
@needs_link
def test_overlap_hides_gathers_behind_blocks_on_a_limited_link():
    """The share of the bound's gain is what a noisy machine lets it be; hiding itself is not a matter of noise."""
    result = over_limited_link(rounds=5, patience=4)
    assert result["share"] > 0.25, {key: result[key] for key in result if key != "events"}
    for off, on in zip(result["events"]["off"], result["events"]["on"], strict=True):  # each rank's
        assert not hidden(off) and {"h.1", "h.2", "h.3"} <= hidden(on)


def hidden(events):
    """Blocks whose gather was under way while another block computed its forward."""
    def of(verb):
        return [event for event in events if event["verb"] == verb and event["unit"] != "root"]

    return {gather["unit"] for gather in of("all_gather") for block in of("forward")
            if gather["unit"] != block["unit"] and gather["start"] < block["end"] and block["start"] < gather["end"]}


# -- SLURM ------------------------------------------------------------------------------------------------------------

def run_sbatch(folder, *arguments, torchrun='printf "%s\\0" "$@"', **environment):
    """The template's torchrun line as torchrun reads it, with programs of that cluster in `folder` that are none."""
    for name, text in {"scontrol": 'echo "$*" >> "$0.log"; echo "$3" | tr "," "\\n"',
                       "srun": 'while [ "$1" != python ]; do shift; done; exec "$@"', "python": torchrun}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "41234567", "SLURM_JOB_NODELIST": "gpu7,gpu9", "SLURM_JOB_NUM_NODES": "2"} | environment
    done = subprocess.run(["bash", str(SLURM), *arguments], capture_output=True, text=True, check=True,
                          env={"PATH": f"{folder}:/usr/bin:/bin"} | slurm)
    module, name, *rest = done.stdout.rstrip("\0").split("\0")
    assert (module, name) == ("-m", "torch.distributed.run")
    return get_args_parser().parse_args(rest)


def test_the_slurm_template_starts_torchrun_on_every_node(tmp_path):
    args = run_sbatch(tmp_path, "train_mine.py", "--config", "my config.json", SLURM_GPUS_ON_NODE="4")
    assert (args.nnodes, args.nproc_per_node, args.rdzv_backend, args.rdzv_id) == ("1:2", "4", "c10d", "41234567")
    assert args.max_restarts == 3
    host, port = args.rdzv_endpoint.split(":")
    assert host == "gpu7" and 1024 < int(port) < 32768
    assert [args.training_script, *args.training_script_args] == ["train_mine.py", "--config", "my config.json"]
    assert run_sbatch(tmp_path, "train_mine.py").nproc_per_node == "1"  # no GPUs
    assert run_sbatch(tmp_path, "train_mine.py", RANKS_PER_NODE="3", SLURM_GPUS_ON_NODE="4").nproc_per_node == "3"


def test_the_slurm_template_is_queued_again_before_the_time_is_over(tmp_path):
    """The script gets the signal that SLURM sends then, waits on, and ends as torchrun has ended."""
    with pytest.raises(subprocess.CalledProcessError) as ended:
        run_sbatch(tmp_path, "train_mine.py", torchrun="kill -USR1 $PPID; sleep 0.2; exit 3")
    assert ended.value.returncode == 3
    assert (tmp_path / "scontrol.log").read_text().splitlines() == ["show hostnames gpu7,gpu9", "requeue 41234567"]


def test_the_slurm_template_asks_for_one_task_a_node():
    lines = SLURM.read_text().splitlines()
    last_comment = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line.removeprefix("#SBATCH ") for line in lines[:last_comment] if line.startswith("#SBATCH ")]
    assert "--ntasks-per-node=1" in options and "--nodes=2" in options  # after the first command slurm reads no more
    assert not any(line.startswith("#SBATCH") for line in lines[last_comment:])
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
