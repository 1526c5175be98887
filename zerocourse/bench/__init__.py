"""The bench: our stages beside torch's DDP, ZeroRedundancyOptimizer and FSDP2, and DeepSpeed, on the same work.

    settings  one set-up, and the list of modes          modes     how each is built
    in_ranks  what a rank does: `watch` and `Racer`      meters    the heap's peak and the bytes on the wire
    runner    what is measured when, in which processes  judge     do they agree, which is faster, is it certain?
    hook_cost what our Python costs in a step              report    the table and the JSON
    growth    how that grows with units, parameters, ranks tensor_speed, slow_nodes: tensor parallelism, and ZeRO++
"""

from .runner import measure
from .settings import BASELINE, MODES, BenchMode, BenchSettings, find_modes

__all__ = ["BASELINE", "MODES", "BenchMode", "BenchSettings", "find_modes", "measure"]
