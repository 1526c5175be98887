"""Trains on an accelerator that is not there, and says what a real one would suffer from. What `test_device_clean` runs.

torch lets Python name a device of its own, and under FakeTensorMode its tensors have shapes, dtypes and devices, and no
values. That is enough to see what no CPU shows: a tensor of the host that meets one of the device raises, hooks run in
autograd's thread of the device, and whatever needs a value on the host is noticed, because there the host would wait until
the device has computed everything that it was given. The other ranks are simulated.

    python tests/fake_device.py        a line of JSON for each case: what it found
"""

import json
import os
import sys
import threading
import traceback
import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import zerocourse
from zerocourse.activations.checkpointing import checkpoint_blocks
from zerocourse.activations.packings import Int8
from zerocourse.comm import bootstrap
from zerocourse.comm.simulated import SimulatedComm
from zerocourse.engine.config import Config
from zerocourse.engine.engine import Engine
from zerocourse.models.gpt2 import GPT, GPTConfig
from zerocourse.offload import HostActivations, HostOffload
from zerocourse.offload.host_link import HostLink
from zerocourse.zero.buffers.groups import Groups

DEVICE = "fakegpu"
CONFIG = GPTConfig(2, 2, 32, block_size=16, vocab_size=64)
BF16 = torch.bfloat16
PACKAGE = os.path.dirname(zerocourse.__file__)
CASES = {}


class HostReads(TorchDispatchMode):
    """Notes, inside of `hot`, each operation for which the host waits until the device comes to it: a value that is read, and
    a copy between the two that is not asynchronous.

    found: how often, by the line of the package which did it.   threads: those in which operations ran.
    """

    aten = torch.ops.aten
    VALUES = (aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.nonzero.default)
    COPIES = (aten._to_copy.default, aten.copy_.default)

    def __init__(self):
        super().__init__()
        self.found, self.threads, self.counts = Counter(), set(), False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.threads.add(threading.get_ident())
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if func in self.VALUES:
            self.note(tensors)
            dtype = tensors[0].dtype
            return True if dtype is torch.bool or func is not self.VALUES[0] else 1.0 if dtype.is_floating_point else 1
        out = func(*args, **kwargs)
        if func in self.COPIES and not (kwargs.get("non_blocking") or func is self.COPIES[1] and len(args) > 2 and args[2]):
            source = args[1] if func is self.COPIES[1] else args[0]
            if source.device.type != out.device.type:
                self.note([source, out])
        return out

    def note(self, tensors) -> None:
        if self.counts and any(tensor.device.type == DEVICE for tensor in tensors):
            ours = [frame for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGE)]
            self.found[f"{os.path.relpath(ours[-1].filename, PACKAGE)}: {ours[-1].line}" if ours else "the test"] += 1


def read_as_list(tensor: torch.Tensor) -> list:
    """Tensor.tolist, which goes past the dispatcher."""
    if not isinstance(tensor, FakeTensor):
        return own_tolist(tensor)
    watching.note([tensor])
    return [0] * tensor.numel()


own_tolist, watching = torch.Tensor.tolist, HostReads()


def case(name: str, *args, **kwargs):
    """Register the function, with these arguments, as the case of this name."""
    def register(function):
        CASES[name] = lambda: function(*args, **kwargs)
        return function

    return register


def run(name: str) -> dict:
    """error: what it raised, with the lines of the package; None.   reads: what made the host wait.   threads: in how many
    operations ran.   seen: what the case returned."""
    global watching
    watching, error, seen = HostReads(), None, None
    try:
        with FakeTensorMode(), watching:
            seen = CASES[name]()
    except Exception as raised:
        frames = [frame for frame in traceback.extract_tb(raised.__traceback__) if frame.filename.startswith(PACKAGE)]
        error = f"{type(raised).__name__}: {raised}"[:600] + "".join(f"\n  {frame.filename}:{frame.lineno} {frame.line}"
                                                                     for frame in frames[-5:])
    return {"error": error, "reads": dict(watching.found), "threads": len(watching.threads), "seen": seen}


# -- what is trained -----------------------------------------------------------------------------------------------------

def gpt(config: GPTConfig = CONFIG) -> GPT:
    with torch.device(DEVICE):
        return GPT(config)


def tokens(rows: int = 2, device: str = DEVICE) -> torch.Tensor:
    return torch.zeros(rows, CONFIG.block_size, dtype=torch.int64, device=device)


def adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model: torch.nn.Module, optimizer, accumulation: int = 1, clip: bool = True, loss=None, steps: int = 2) -> list[str]:
    """Steps, of which the first may read what it likes. Returns on which devices the optimizer's parameters are."""
    x_BT = tokens()
    for number in range(steps):
        watching.counts = number > 0
        for micro_batch in range(accumulation):
            is_last = micro_batch == accumulation - 1
            with model.zero.backward_options(is_last=True) if is_last else model.zero.no_sync():
                (loss(model) if loss else model(x_BT, x_BT)).backward()
        if clip:
            model.zero.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    watching.counts = False
    return sorted({param.device.type for group in optimizer.param_groups for param in group["params"]})


def world(ranks: int = 4, rank: int = 1) -> SimulatedComm:
    return SimulatedComm(rank, ranks, "nccl")


def staged(stage: int, accumulation: int = 1, comm=None, **options) -> list[str]:
    model = gpt()
    optimizer = adamw(model)
    zerocourse.shard(model, optimizer, stage, device=DEVICE, comm=comm() if comm else world(), **options)
    return train(model, optimizer, accumulation)


for stage in range(4):
    for dtype in (None, BF16):
        name = "bf16" if dtype else "fp32"
        case(f"stage {stage}, {name}", stage, 2, param_dtype=dtype, accumulate_dtype=dtype and torch.float32)(staged)
    case(f"stage {stage}, several in flight", stage, in_flight=3, bucket_size=2_000, param_dtype=BF16)(staged)
    case(f"stage {stage}, hybrid", stage, comm=lambda: Groups(world(2), world(2, 0)))(staged)
    case(f"stage {stage}, one rank", stage, comm=lambda: world(1, 0))(staged)
for prefetch in (0, 2):
    case(f"stage 3, prefetch {prefetch}", 3, prefetch=prefetch)(staged)
case("stage 3, gathered until the backward", 3, reshard_after_forward=False)(staged)
for stage in (1, 2, 3):
    case(f"stage {stage}, whole tensors", stage, rank_map="greedy", param_dtype=BF16)(staged)


# -- odd models ----------------------------------------------------------------------------------------------------------

class WithBuffers(torch.nn.Module):
    """Statistics as BatchNorm keeps them: buffers, one of them of integers, which change in each forward."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x_BC: torch.Tensor) -> torch.Tensor:
        x_BC = self.first(x_BC)
        self.mean.lerp_(x_BC.detach().float().mean(0), 0.1)
        self.batches += 1
        return self.last(x_BC - self.mean).square().mean()


def with_buffers(stage: int) -> list[str]:
    with torch.device(DEVICE):
        model = WithBuffers()
    optimizer = adamw(model)
    zerocourse.shard(model, optimizer, stage, device=DEVICE, comm=world())
    devices = train(model, optimizer, loss=lambda model: model(torch.zeros(3, 8, device=DEVICE)))
    return devices + sorted({buffer.device.type for buffer in model.buffers()})


def partly_frozen(stage: int) -> list[str]:
    """As LoRA has it: the layers of the model are frozen, and what trains stands beside them."""
    model = gpt()
    for name, param in model.named_parameters():
        param.requires_grad_("c_fc" in name)
    optimizer = torch.optim.AdamW([param for param in model.parameters() if param.requires_grad])
    zerocourse.shard(model, optimizer, stage, device=DEVICE, comm=world(), param_dtype=BF16)
    return train(model, optimizer)


for stage in range(4):
    case(f"stage {stage}, buffers", stage)(with_buffers)
    case(f"stage {stage}, frozen", stage)(partly_frozen)


# -- the host's memory ---------------------------------------------------------------------------------------------------

class Streams:
    """What the link takes of `torch.cuda`. Nothing is late."""

    class Stream(nullcontext):
        def __init__(self, device=None):
            super().__init__()

        def record(self, stream=None) -> None: ...

        wait_stream = wait_event = record

    class Event(Stream):
        def query(self) -> bool:
            return True

        def synchronize(self) -> None: ...

    current_stream = Stream

    @staticmethod
    def stream(stream):
        return stream


def offloaded(stage: int, accumulation: int = 1, dtype=None, **options) -> list:
    model, offload = gpt(), HostOffload(**options)
    optimizer = adamw(model)
    zerocourse.shard(model, optimizer, stage, device=DEVICE, comm=world(), offload=offload, param_dtype=dtype)
    devices = train(model, optimizer, accumulation)
    return [*devices, *(direction for direction, nbytes in offload.link.bytes.items() if nbytes)]


def checkpointed(stage: int, packing=None) -> list[str]:
    model = gpt()
    packing = packing and packing()
    checkpoint_blocks(model, packing=packing)
    optimizer = adamw(model)
    zerocourse.shard(model, optimizer, stage, device=DEVICE, comm=world())
    if hasattr(packing, "attach"):
        packing.attach(model.zero)
    return train(model, optimizer)


for stage in (1, 2, 3):
    case(f"offload, stage {stage}, fp32", stage, 2)(offloaded)
    case(f"offload, stage {stage}, bf16", stage, 2, BF16)(offloaded)
    case(f"offload of a part, stage {stage}", stage, 2, BF16, ratio=0.3)(offloaded)
case("offload of parameters", 3, 2, BF16, parameters=True)(offloaded)
case("recomputed", 3)(checkpointed)
case("activations in 8 bits", 3, Int8)(checkpointed)
case("activations on the host", 3, HostActivations)(checkpointed)


# -- beyond data parallelism ---------------------------------------------------------------------------------------------

def tensor_parallel(sequence: bool = False, dropout: float = 0.0) -> list[str]:
    from zerocourse.parallel.tensor import apply, tensor_parallel

    apply.same_samples = lambda *args: None  # compares checksums of the first batch, which fake tensors have not
    model = tensor_parallel(gpt(replace(CONFIG, dropout=dropout)), world(2), sequence=sequence)
    optimizer, x_BT = adamw(model), tokens()
    for number in range(2):
        watching.counts = number > 0
        model(x_BT, x_BT).backward()
        optimizer.step()
        optimizer.zero_grad()
    return sorted({param.device.type for param in model.parameters()})


case("tensor parallel")(tensor_parallel)
case("tensor parallel, sequence", sequence=True)(tensor_parallel)
case("tensor parallel, dropout", dropout=0.1)(tensor_parallel)


@case("ring attention", "ring")
@case("Ulysses", "ulysses")
def attention(kind: str) -> list[str]:
    from zerocourse.parallel.context.ring_attention import RingAttention
    from zerocourse.parallel.context.ulysses import Ulysses

    attend = {"ring": RingAttention, "ulysses": Ulysses}[kind](world(2), "attention")
    q_BHTD = torch.zeros(2, 4, 8, 8, device=DEVICE, requires_grad=True)
    watching.counts = True
    attend(q_BHTD, q_BHTD, q_BHTD).sum().backward()
    return [q_BHTD.grad.device.type]


@case("pipeline, GPipe", "gpipe")
@case("pipeline, 1F1B", "1f1b")
def pipeline(kind: str) -> list[str]:
    """The first of two stages, which sends activations and gets gradients."""
    from zerocourse.parallel.pipeline import Pipeline, gpipe, one_f_one_b, plan

    with torch.device(DEVICE):
        layers = [torch.nn.Linear(8, 8) for _ in range(4)]
    schedule = plan(kind, {"gpipe": gpipe, "1f1b": one_f_one_b}[kind], ranks=2, micro_batches=4)
    comm = world(2, 0)
    comm.backends = "cpu:gloo"  # over which the ranks tell each other what they look like
    pipeline = Pipeline(layers, schedule, torch.nn.functional.mse_loss, comm)
    optimizer = torch.optim.AdamW(pipeline.parameters())
    for number in range(2):
        watching.counts = number > 0
        pipeline.step(torch.zeros(8, 8, device=DEVICE))
        optimizer.step()
        optimizer.zero_grad()
    return sorted({param.device.type for param in pipeline.parameters()})


@case("ZeRO++")
def plus_plus() -> list[str]:
    from zerocourse.layout.mesh import Mesh
    from zerocourse.parallel.plusplus import zero_plus_plus

    class Comms:
        """A mesh of two nodes of two ranks each, of which the rank is the last."""

        mesh = Mesh({"nodes": 2, "node": 2})

        def along(self, axis):
            return world(2)

        def make(self, *axes):
            return world(4, 3)

    model = gpt()
    optimizer = adamw(model)
    zero_plus_plus(model, optimizer, Comms(), param_dtype=BF16, device=DEVICE)
    return train(model, optimizer)


# -- the engine ----------------------------------------------------------------------------------------------------------

def make_engine(stage: int, accumulation: int = 1, **sections) -> Engine:
    bootstrap.device = lambda: torch.device(DEVICE)  # as on a machine that has one
    sections["zero_optimization"] = {"stage": stage} | sections.get("zero_optimization", {})
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": accumulation, "gradient_clipping": 1.0}
    model = gpt()
    return Engine(model, adamw(model), Config.load(config | sections, 4), world())


def engine(stage: int, accumulation: int = 2, **sections) -> list:
    engine, x_BT = make_engine(stage, accumulation, **sections), tokens()
    for number in range(2 * accumulation):
        watching.counts = number >= accumulation
        engine.backward(engine(x_BT, x_BT))
        engine.step()
    watching.counts = False
    return [engine.device.type, engine.global_steps]


case("engine, fp32", 2)(engine)
case("engine, bf16", 3, bf16={"enabled": True})(engine)
for stage in (0, 1, 2, 3):
    case(f"engine, fp16, stage {stage}", stage, fp16={"enabled": True})(engine)
case("engine, half, offload", 2, bf16={"enabled": True}, zero_optimization={"offload_optimizer": {"device": "cpu"}})(engine)


@case("a batch on the host")
def batch_on_the_host() -> dict[str, str | None]:
    """What is said, by what was given to the model."""
    from zerocourse.errors import BadInput

    engine, on_host, on_device = make_engine(2), tokens(device="cpu"), tokens()
    said = {}
    for name, args, kwargs in (("both", (on_host, on_host), {}), ("by name", (on_device,), {"targets_BT": on_host}),
                               ("another mistake", (on_device,), {"labels": on_host}), ("no tensor", (on_device, None), {})):
        try:
            engine(*args, **kwargs)
            said[name] = None
        except (BadInput, TypeError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


@case("tour")
def tour() -> dict:
    from zerocourse.course.tour import tour
    from zerocourse.course.tour.tour import TourSettings

    bootstrap.device = lambda: torch.device(DEVICE)
    tour.load_text = lambda source, length: (list(range(64)), None)
    tour.batches = lambda train, sampler: iter(lambda: (tokens(8, "cpu"), tokens(8, "cpu")), None)
    tour.Comm = lambda: world(2)
    tour.deferred_init = lambda: torch.device(DEVICE)  # fake tensors cannot leave the meta device
    tour.materialize_model = lambda model, seed, device: model.requires_grad_(device.type == DEVICE)
    settings = TourSettings(CONFIG, steps=3)
    return {mode: tour.run_mode(mode, settings)["device"] for mode in ("single", "zero3")}


# -- outside of the step -------------------------------------------------------------------------------------------------

@case("evaluation, generating, whole state")
def reading() -> list[str]:
    model = gpt()
    zerocourse.shard(model, adamw(model), 3, device=DEVICE, comm=world(), param_dtype=BF16)
    model.eval()
    with torch.no_grad():
        devices = {model(tokens(), tokens()).device.type}
        with zerocourse.generating(model):
            devices |= {param.device.type for param in model.parameters()}
    return sorted(devices) + sorted({value.device.type for value in zerocourse.state_dict(model).values()})


@case("ledger")
def ledger() -> dict:
    """By device type that is given: the peak; and what a budget says that a batch on the host would not fit into."""
    from zerocourse.measure.ledger import Ledger

    model = gpt()
    optimizer = adamw(model)
    zerocourse.shard(model, optimizer, 3, device=DEVICE, comm=world())
    x_BT, peaks = tokens(), {}
    train(model, optimizer, steps=1)  # so that the optimizer has its states
    for where in (None, DEVICE, "cpu"):
        with Ledger(model, optimizer, device=where) as counted:
            batch = torch.zeros(4000, 16, dtype=torch.int64)  # as a loader makes it
            model(x_BT, x_BT).backward()
            optimizer.step()
            optimizer.zero_grad()
            peaks[str(where)] = counted.peak
    with Ledger(model, optimizer, budget=peaks[DEVICE]):
        batch = torch.zeros(4000, 16, dtype=torch.int64)
        model(x_BT, x_BT).backward()
    return peaks | {"batch": batch.nbytes}


def main() -> None:
    warnings.filterwarnings("ignore")
    _setup_privateuseone_for_python_backend(DEVICE)
    getattr(torch, DEVICE).get_amp_supported_dtype = lambda: [BF16, torch.float16]  # torch's checkpoint asks for it
    torch.Tensor.tolist = read_as_list
    HostLink.is_apart, HostLink.cuda = lambda self, device: device.type != "cpu", Streams
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) makes it on the host, as FakeTensorMode expects
    for name in sys.argv[1:] or CASES:
        print(json.dumps({"case": name} | run(name)), flush=True)
    os._exit(0)  # autograd's thread of a device that is not there never ends


if __name__ == "__main__":
    main()
