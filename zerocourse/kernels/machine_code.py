"""What a kernel becomes on a GPU that one does not have: its loads, stores, spills and matrix instructions, compiled on a CPU.

    code = compile_for(adamw_kernel, "sm_75", types, {"BLOCK": 1024}, aligned=("p_ptr", "g_ptr", "m_ptr", "v_ptr", "n"))
    code.read_bytes, code.written_bytes     # of one program, 16 and 12 for each of its 1024 elements
    code.widest                             # 16: a thread reads 16 bytes at a time

Triton brings NVIDIA's assembler with it, so nothing of CUDA is needed. What stands in the code is counted as often as it stands
there: an access in a loop counts once.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import BadInput
from .backend import INTERPRETED, triton

GPUS = {"sm_75": "T4", "sm_80": "A100", "sm_90": "H100"}
THREADS = 32  # of a warp
ACCESS = re.compile(r"\b(ld|st)\.global(?:\.[\w:]+?)*?\.(?:v(\d)\.)?[bfsu](\d+)\b")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class MachineCode:
    """gpu: "sm_75".   loads, stores: of one thread, by how many bytes they move at once.   threads: of a program.

    spills: bytes that a thread's registers had no room for.   registers: of a thread.
    matrix_instructions: tensor cores are asked so often; 0 where products are computed number by number.
    """

    gpu: str
    threads: int
    loads: Mapping[int, int]
    stores: Mapping[int, int]
    spills: int
    registers: int
    matrix_instructions: int
    ptx: str

    @property
    def read_bytes(self) -> int:
        """Of a program whose elements are all there."""
        return self.threads * sum(width * count for width, count in self.loads.items())

    @property
    def written_bytes(self) -> int:
        return self.threads * sum(width * count for width, count in self.stores.items())

    @property
    def widest(self) -> int:
        """Bytes of the narrowest of the widest: a thread's loads and stores both reach it."""
        return min(max(self.loads, default=0), max(self.stores, default=0))


def compile_for(kernel, gpu: str, types: Mapping[str, str], constants: Mapping[str, object], aligned: Iterable[str] = (),
                num_warps: int = 4) -> MachineCode:
    """Compile a kernel for one of GPUS.

    types: of its arguments by name, such as "*fp32" for a pointer, "i32", "fp32".   constants: its constexpr arguments.
    aligned: arguments that are multiples of 16, as a pointer is at the beginning of a tensor, and not at an odd element of a flat shard.
    Raises BadInput for another GPU, for arguments that are missing, and in a process whose kernels are interpreted.
    """
    from triton.backends.compiler import GPUTarget

    if gpu not in GPUS:
        raise BadInput(f"gpu is {gpu!r}: it must be one of {', '.join(GPUS)}")
    if INTERPRETED:
        raise BadInput("in a process with TRITON_INTERPRET=1 kernels are interpreted and not compiled: start one without it")
    names = list(kernel.arg_names)
    if wrong := [name for name in names if (name in types) == (name in constants)]:
        raise BadInput(f"{', '.join(wrong)} of {kernel.__name__}: each argument must be in types or in constants, and in one of them")
    if unknown := [*({*types, *constants, *aligned} - set(names))]:
        raise BadInput(f"{kernel.__name__} has no argument {', '.join(sorted(unknown))}")
    source = triton.compiler.ASTSource(
        fn=kernel, signature={name: types.get(name, "constexpr") for name in names}, constexprs=dict(constants),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned})
    target = GPUTarget("cuda", int(gpu.removeprefix("sm_")), THREADS)
    ptx = triton.compile(source, target=target, options={"num_warps": num_warps}).asm["ptx"]
    spills, registers = assembled(ptx, gpu)
    accesses = {verb: Counter(int(vector or 1) * int(bits) // 8 for found, vector, bits in ACCESS.findall(ptx) if found == verb)
                for verb in ("ld", "st")}
    return MachineCode(gpu, THREADS * num_warps, accesses["ld"], accesses["st"], spills, registers,
                       len(re.findall(r"\bw?gmma\.mma_async|\bmma\.sync", ptx)), ptx)


def assembled(ptx: str, gpu: str) -> tuple[int, int]:
    """(bytes of spills, registers) of a thread, by NVIDIA's assembler, which comes with triton."""
    from triton.backends.nvidia.compiler import get_ptxas

    assembler = get_ptxas(int(gpu.removeprefix("sm_"))).path
    architecture = re.search(r"\.target (sm_\w+)", ptx)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        ended = subprocess.run([assembler, "-v", f"--gpu-name={architecture[1] if architecture else gpu}", str(path), "-o", f"{folder}/kernel.cubin"],
                               capture_output=True, text=True, timeout=100)
    if ended.returncode:
        raise RuntimeError(f"ptxas failed: {ended.stderr.strip()}")
    said = ended.stdout + ended.stderr
    spilled, used = SPILLS.search(said), REGISTERS.search(said)
    return sum(map(int, spilled.groups())) if spilled else 0, int(used[1]) if used else 0
