"""What `deepspeed.accelerator.get_accelerator()` returns: the device that the ranks train on, by DeepSpeed's names. It communicates
nothing. Where there is no GPU its memory is the process's, and streams do nothing."""

import resource
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from ...comm import bootstrap

PAGE = resource.getpagesize()


class TorchAccelerator:
    """torch.cuda's functions on a GPU, and what there is of them on the CPU."""

    @property
    def _name(self) -> str:
        return bootstrap.device().type

    @property
    def on_gpu(self) -> bool:
        return self._name == "cuda"

    def __getattr__(self, name: str):
        """Whatever else there is, torch has: on a GPU torch.cuda."""
        if name.startswith("_") or not self.on_gpu:
            raise AttributeError(f"get_accelerator() has no {name!r} on the {'GPU' if self.on_gpu else 'CPU'}: use torch's own")
        return getattr(torch.cuda, name)

    # -- the device ---------------------------------------------------------------------------------------------------

    def device_name(self, device_index: int | None = None) -> str:
        return self._name if device_index is None or not self.on_gpu else f"{self._name}:{device_index}"

    def device(self, device_index: int | None = None):
        return torch.cuda.device(device_index) if self.on_gpu else nullcontext()

    def set_device(self, device_index: int) -> None:
        """`initialize` chooses each rank's device; on the CPU there is one."""
        if self.on_gpu:
            torch.cuda.set_device(device_index)

    def current_device(self) -> int:
        return torch.cuda.current_device() if self.on_gpu else 0

    def current_device_name(self) -> str:
        return str(bootstrap.device())

    def device_count(self) -> int:
        return torch.cuda.device_count() if self.on_gpu else 1

    def is_available(self) -> bool:
        return True

    def synchronize(self, device_index: int | None = None) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(device_index)

    def communication_backend_name(self) -> str:
        return "nccl" if self.on_gpu else "gloo"

    def is_bf16_supported(self) -> bool:
        return not self.on_gpu or torch.cuda.get_device_capability() >= (8, 0)  # below that it is emulated

    def is_fp16_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.float16, *([torch.bfloat16] if self.is_bf16_supported() else [])]

    def is_synchronized_device(self) -> bool:
        return not self.on_gpu

    use_host_timers = resolves_data_dependency = handles_memory_backpressure = is_synchronized_device

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        return tensor.pin_memory() if self.on_gpu else tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self.on_gpu and tensor.is_pinned()

    # -- random numbers -----------------------------------------------------------------------------------------------

    def random(self):
        return torch.random

    def manual_seed(self, seed: int) -> None:
        torch.cuda.manual_seed(seed) if self.on_gpu else torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.cuda.manual_seed_all(seed) if self.on_gpu else torch.manual_seed(seed)

    def initial_seed(self) -> int:
        return torch.cuda.initial_seed() if self.on_gpu else torch.initial_seed()

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return torch.cuda.get_rng_state(*([] if device_index is None else [device_index])) if self.on_gpu else torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        torch.cuda.set_rng_state(new_state, *([] if device_index is None else [device_index])) if self.on_gpu \
            else torch.set_rng_state(new_state)

    # -- memory, in bytes ---------------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        if self.on_gpu:
            torch.cuda.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return torch.cuda.memory_allocated(device_index) if self.on_gpu else int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """On the CPU since the process began, which cannot be reset."""
        if self.on_gpu:
            return torch.cuda.max_memory_allocated(device_index)
        return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, self.memory_allocated())  # the first lags behind

    memory_cached = memory_reserved = memory_allocated
    max_memory_cached = max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(device_index)

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def total_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.get_device_properties(device_index or 0).total_memory if self.on_gpu else self._host_bytes("MemTotal")

    def available_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.mem_get_info(device_index)[0] if self.on_gpu else self._host_bytes("MemAvailable")

    def _host_bytes(self, field: str) -> int:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines[field].split()[0]) * 1024

    # -- streams and ranges -------------------------------------------------------------------------------------------

    @property
    def Stream(self):
        return torch.cuda.Stream if self.on_gpu else NoStream

    @property
    def Event(self):
        return torch.cuda.Event if self.on_gpu else torch.cpu.Event if hasattr(torch.cpu, "Event") else NoStream

    def stream(self, stream):
        return torch.cuda.stream(stream) if self.on_gpu else nullcontext()

    def current_stream(self, device_index: int | None = None):
        return torch.cuda.current_stream(device_index) if self.on_gpu else NoStream()

    def default_stream(self, device_index: int | None = None):
        return torch.cuda.default_stream(device_index) if self.on_gpu else NoStream()

    def range_push(self, msg: str) -> None:
        if self.on_gpu:
            torch.cuda.nvtx.range_push(msg)

    def range_pop(self) -> None:
        if self.on_gpu:
            torch.cuda.nvtx.range_pop()

    def lazy_call(self, callback):
        return callback()


class NoStream:
    """A stream or an event of the CPU, on which everything is over when it returns."""

    def __init__(self, *_, **__):
        pass

    def synchronize(self, *_) -> None:
        """Nothing is under way."""

    wait_stream = wait_event = record = wait = record_event = synchronize

    def query(self) -> bool:
        return True


ACCELERATOR = TorchAccelerator()


@contextmanager
def OnDevice(dtype: torch.dtype, device: str = "meta", enabled: bool = True):
    """Modules built inside have floats of this dtype, on this device; on "meta" their parameters take no memory, as under
    `zero.Init`, until `initialize` gives each rank its slices."""
    from ...init.deferred import deferred_init

    if not enabled:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with deferred_init() if str(device) == "meta" else torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)
