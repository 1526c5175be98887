"""Checks of what lies where: the ledger beside the GPU's allocator, states on the host and on a disk, packed activations."""

import os
import tempfile

import torch
from torch import nn

from ...activations import checkpoint_blocks
from ...activations.packings import Int8
from ...comm import bootstrap
from ...errors import BadInput
from ...measure.ledger import Ledger
from ...measure.storages import CAN_SWAP
from ...offload import DiskOffload, HostActivations, HostOffload
from .check_record import EXACT, HALF, Record
from .small_training import apart, forget_peak, half, losses_of, peak_mib

MIB = 1 << 20


def ledger(record: Record) -> None:
    """The bytes that the ledger counts in a step are those that the GPU's allocator handed out, to a MiB or 2 %."""
    # cuBLAS has memory of its own from the allocator, which is no tensor's: 8 to 32 MiB, unless it is told to take less.
    os.environ |= {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "0"}
    device, width = bootstrap.device(), 64 if record.tiny else 2048
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(256, width, device=device)

    def step() -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with Ledger(model, optimizer, device=device.type).track(batch) as counted:
        step()  # makes the optimizer's states, and what cuBLAS keeps
        of_cublas = torch.cuda.memory_allocated() - counted.alive if device.type == "cuda" else 0
        counted.reset_peak()
        step()
        record.note(peak=counted.peak, kept_by_cublas=of_cublas, peak_of_allocator=counted.device_peak)
        if device.type == "cuda":
            off = counted.device_peak - of_cublas - counted.peak
            record.expect(0 <= of_cublas <= 40 * MIB, f"the allocator has {of_cublas:,} bytes that are no tensor the ledger knows")
            record.expect(abs(off) <= max(MIB, 0.02 * counted.peak), f"the peaks are {off:,} bytes apart")


def host_offload(record: Record) -> None:
    """States and steps on the host, at once and not delayed: the losses are those without."""
    ways = {"all": {}, "ratio 0.3": {"ratio": 0.3}, "not pinned": {"pin_memory": False}}
    cases = [(stage, name, options) for stage in (1, 2, 3) for name, options in ways.items()]
    cases.append((3, "parameters too", {"parameters": True}))
    for dtype, limit in ((None, EXACT), (half(), HALF)):
        steps, plain = 2 if record.tiny else 6, {}
        for stage, way, options in cases:
            what = f"stage {stage} {way}, {'half' if dtype else 'fp32'}"
            with record.trying(what):
                if stage not in plain:
                    plain[stage] = losses_of(record.tiny, stage, steps, param_dtype=dtype)
                ours = losses_of(record.tiny, stage, steps, param_dtype=dtype, offload=HostOffload(**options))
                record.within(limit, {what: apart(ours, plain[stage])})


def delayed_offload(record: Record) -> None:
    """Updates one step late, beside the same on the CPU. What is copied while it is overwritten differs from trial to trial."""
    steps, trials = (3, 1) if record.tiny else (12, 3)

    def train(parameters: bool, device: torch.device | str) -> list[float]:
        return losses_of(record.tiny, 3, steps, 1, device=device, offload=HostOffload(delay_after=1, parameters=parameters))

    for parameters in (False, True):
        on_cpu = train(parameters, "cpu")
        for trial in range(trials):
            what = f"{'parameters too' if parameters else 'states'}, trial {trial + 1}"
            with record.trying(what):
                record.within(10 * EXACT, {what: apart(train(parameters, bootstrap.device()), on_cpu)})


def disk(record: Record) -> None:
    """States, and parameters too, in files: the losses are those without. A torch that cannot do it refuses it in one sentence."""
    if not CAN_SWAP:
        with tempfile.TemporaryDirectory(dir=record.folder) as folder:
            try:
                losses_of(record.tiny, 3, 1, offload=DiskOffload(folder))
            except BadInput as refused:
                record.note(refused=refused)
            else:
                record.expect(False, f"torch {torch.__version__} cannot give a tensor other memory, and the offload to a disk is not refused")
        return
    steps = 2 if record.tiny else 6
    plain = losses_of(record.tiny, 3, steps)
    with tempfile.TemporaryDirectory(dir=record.folder) as folder:
        for what, parameters in (("states", False), ("parameters too", True)):
            with record.trying(what):
                ours = losses_of(record.tiny, 3, steps, offload=DiskOffload(folder, parameters=parameters, poison=True))
                record.within(EXACT, {what: apart(ours, plain)})


def activations(record: Record) -> None:
    """Checkpointed blocks with their inputs on the device, on the host, and in eight bits, which is an approximation."""
    steps = 2 if record.tiny else 6
    plain = losses_of(record.tiny, 3, steps)
    on_host, peaks = HostActivations(), {}
    for what, packing, attach, limit in (("on the device", None, None, EXACT), ("on the host", on_host, on_host.attach, EXACT),
                                         ("in eight bits", Int8(), None, HALF)):
        with record.trying(what):
            forget_peak()
            ours = losses_of(record.tiny, 3, steps, attach=attach or (lambda stage: None),
                             prepare=lambda model, packing=packing: checkpoint_blocks(model, packing=packing))
            record.within(limit, {what: apart(ours, plain)})
            peaks[what] = peak_mib()
            record.note(**{f"{what}, peak MiB": peaks[what]})
    if bootstrap.device().type == "cuda":
        for what in ("on the host", "in eight bits"):
            record.expect(peaks[what] < peaks["on the device"], f"inputs {what} do not make the peak smaller")
