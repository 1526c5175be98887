"""Checks of the stages on one GPU: the machine itself, a group of one rank, ranks that share the GPU, values, checkpoints."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import time

import torch
import torch.distributed as dist

from ...comm import Comm, bootstrap
from ...comm.torch_private import cuda_sleep
from ...init.deferred import deferred_init, materialize_model
from ...launch.processes.fork_server import start_fork_server
from ...launch.ranks import Ranks
from ...layout.rankmap import Layout
from ...models.gpt2 import GPT
from ...offload.on_disk.aligned import aligned_empty
from .check_record import EXACT, HALF, Record
from .small_training import apart, config, forget_peak, half, losses_of, mean_over_ranks, peak_mib

QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader"]
RANKS = 2
STAGES = {f"stage {stage}": {"stage": stage} for stage in range(4)}
SETTINGS = {"stage 2, small buckets": {"stage": 2, "bucket_size": 50_000},
            "stage 3, prefetch 2, in flight 3": {"stage": 3, "prefetch": 2, "in_flight": 3}}


def machine(record: Record) -> None:
    """Which machine, and which versions; whether host memory can be page-locked, and new ranks be forked."""
    versions = {name: importlib.metadata.version(name) for name in ("zerocourse", "numpy", "triton", "transformers")
                if any(importlib.metadata.distributions(name=name))}
    record.note(system=platform.platform(terse=True), python=platform.python_version(), cores=os.cpu_count(),
                torch=torch.__version__, cuda=torch.version.cuda, versions=versions)
    gpus = torch.cuda.device_count() if bootstrap.device().type == "cuda" else 0
    record.note(gpus=[f"{each.name}, {each.total_memory >> 20} MiB, {each.major}.{each.minor}"
                      for each in map(torch.cuda.get_device_properties, range(gpus))])
    if gpus:
        locked = aligned_empty(1 << 20, torch.float32, locked_for=bootstrap.device()).is_pinned()
        record.note(nccl=".".join(map(str, torch.cuda.nccl.version())), page_locked=locked,
                    peer_access=gpus > 1 and torch.cuda.can_device_access_peer(0, 1))
        record.expect(locked, "memory that was to be page-locked is not: offloaded buffers travel at half the speed")
        if shutil.which(QUERY[0]):
            record.note(nvidia_smi=subprocess.run(QUERY, capture_output=True, text=True, timeout=30).stdout.splitlines())
    began = time.perf_counter()
    server = start_fork_server()
    record.note(fork_server=bool(server and server.usable), fork_server_seconds=time.perf_counter() - began)


def one_rank_sum(record: Record) -> None:
    """A group of one rank: the sum that `reduce_scatter` hands on is there, also while the GPU is busy."""
    bootstrap.init()
    device, n = bootstrap.device(), 1 << 16 if record.tiny else 1 << 26
    comm, layout, wrong = Comm(), Layout.build({"a": (n,)}, 1), 0
    for _ in range(5):
        gradient, into, got = torch.randn(n, device=device), torch.full((n,), float("nan"), device=device), []
        if device.type == "cuda":
            cuda_sleep(100_000_000)
        comm.reduce_scatter(gradient, layout, "a", into=into, done=got.append).wait()
        wrong += not torch.equal(got[0].clone(), gradient)
    record.note(backend=dist.get_backend_config(), sums=5, wrong_sums=wrong)
    record.expect(not wrong, f"{wrong} of 5 sums were handed on before they were there")


def one_rank(record: Record) -> None:
    """A training in a group of one rank, and without a group: both are plain PyTorch's."""
    steps = 2 if record.tiny else 6
    whole = losses_of(record.tiny, None, steps)
    for where in ("no group", "one rank"):
        if where == "one rank":
            bootstrap.init()
        record.within(EXACT, {f"{name}, {where}": apart(losses_of(record.tiny, steps=steps, **options), whole)
                              for name, options in STAGES.items()})


def shared_gpu(record: Record) -> None:
    """Two ranks on one GPU, over gloo through host memory, beside one process with the samples of both."""
    ranks_beside_one(record, "gloo", STAGES | SETTINGS | {"stage 1, greedy map": {"stage": 1, "rank_map": "greedy"}})


def ranks_beside_one(record: Record, backend: str, cases: dict[str, dict]) -> None:
    """The cases in fp32 and stages 0 to 3 in half precision on two ranks, over `backend` if they have a GPU."""
    steps = 2 if record.tiny else 6
    whole = losses_of(record.tiny, None, steps, ranks=RANKS)
    with Ranks(RANKS, quiet=True, timeout=120) as ranks:
        used = ranks.run(backend_of_gpus)[0]
        record.note(backend=used)
        record.expect(used in (backend, None), f"tensors on the GPU went over {used}, and should go over {backend}")
        for limit, dtype, of_dtype in ((EXACT, {}, cases), (HALF, {"param_dtype": half()}, STAGES)):
            for name, options in of_dtype.items():
                what = f"{name}, half" if dtype else name
                with record.trying(what):
                    losses, peaks = zip(*ranks.run(losses_and_peak, record.tiny, steps=steps, **options, **dtype), strict=True)
                    record.within(limit, {what: apart(mean_over_ranks(losses), whole)})
                    record.note(**{f"{what}, peak MiB": max(peaks)})


def backend_of_gpus() -> str | None:
    """What carries tensors of a GPU between these ranks; None where they compute on the CPU."""
    if bootstrap.device().type == "cpu":
        return None
    return dict(each.split(":") for each in dist.get_backend_config().split(","))["cuda"]


def losses_and_peak(tiny: bool, stage: int, **options) -> tuple[list[float], int]:
    forget_peak()
    return losses_of(tiny, stage, **options), peak_mib()


def values(record: Record) -> None:
    """One seed gives a model that was built on the meta device the same values on every device, bit for bit."""
    with deferred_init():
        sketches = [GPT(config(record.tiny)) for _ in range(2)]
    here, on_cpu = (materialize_model(sketch, device=device, seed=3).state_dict()
                    for sketch, device in zip(sketches, (bootstrap.device(), "cpu"), strict=True))
    different = [name for name, value in on_cpu.items() if not torch.equal(here[name].cpu(), value)]
    record.note(tensors=len(on_cpu), device=bootstrap.device())
    record.expect(all(value.device.type == bootstrap.device().type for value in here.values()), "some values are on another device")
    record.expect(not different, f"other values than on the CPU: {', '.join(different[:5])}")


def checkpoints(record: Record) -> None:
    """A checkpoint in the middle, with dropout: what is resumed from it has the losses of a run without a break."""
    for stage in (1, 3):
        for asynchronous in (False, True):
            what = f"stage {stage}, {'in the background' if asynchronous else 'at once'}"
            folder = record.folder / f"checkpoint_{stage}_{asynchronous}"
            with record.trying(what):
                steps = 2 if record.tiny else 8
                unbroken = losses_of(record.tiny, stage, steps, dropout=0.1, save=folder, asynchronous=asynchronous)
                resumed = losses_of(record.tiny, stage, steps, dropout=0.1, load=folder)
                record.within(EXACT, {what: apart(resumed, unbroken[steps // 2:])})
            shutil.rmtree(folder, ignore_errors=True)
