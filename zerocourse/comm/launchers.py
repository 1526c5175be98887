"""What launchers tell the ranks that they start: torchrun's variables, or those of mpirun and srun. It communicates nothing.

A rank needs five numbers and an address. torchrun and DeepSpeed's launcher give them by torch's own names; MPI's launchers and
SLURM's have names of their own, and leave out what all ranks must agree on: where rank 0 listens.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from ..errors import BadInput

PORT = 29500  # torch's and DeepSpeed's
HERE = "127.0.0.1"


class Launcher(NamedTuple):
    """The variables in which a launcher says a rank's place. local_size: of the ranks on its machine; None if it does not say."""

    called: str
    rank: str
    size: str
    local_rank: str
    local_size: str | None


LAUNCHERS = [
    Launcher("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    Launcher("mpirun (MVAPICH)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    Launcher("mpirun (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", None),
]
BY_HAND = ("bash", "interactive")  # names of SLURM's jobs in which somebody types: what runs there has not been started by srun


def missing_variables(env: Mapping[str, str], port: int = PORT, discover: bool = True) -> dict[str, str]:
    """torch's variables that are not set, as far as this rank's launcher says what they are; empty for one process by itself.

    port: where rank 0 listens, if MASTER_PORT does not say so.   discover: look at the variables of mpirun and srun, too.
    Raises BadInput where something is missing or impossible.
    """
    launcher = next((each for each in LAUNCHERS if each.rank in env and each.size in env), None) if discover else None
    if launcher is not None and launcher.called == "srun" and env.get("SLURM_JOB_NAME") in BY_HAND:
        launcher = None
    names = {"RANK": "rank", "WORLD_SIZE": "size", "LOCAL_RANK": "local_rank", "LOCAL_WORLD_SIZE": "local_size"}
    own = {} if launcher is None else {name: env[variable] for name, field in names.items()
                                       if (variable := getattr(launcher, field)) in env}
    if "RANK" not in env and "RANK" not in own:
        return {}
    if launcher is not None and launcher.called == "srun":
        own |= {"LOCAL_WORLD_SIZE": tasks_here(env)} if "SLURM_STEP_TASKS_PER_NODE" in env else {}
    if "RANK" in env and (env["RANK"], env.get("WORLD_SIZE")) != (own.get("RANK"), own.get("WORLD_SIZE")):
        own = {}  # another launcher inside of this one, such as torchrun under srun, has started this rank
    all_of_it = own | env
    started = f"rank {all_of_it['RANK']}" if not own or "RANK" in env else f"rank {own['RANK']}, which {launcher.called} has started,"
    if "WORLD_SIZE" not in all_of_it:
        raise BadInput(f"{started} has no WORLD_SIZE: a launcher sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT")
    rank, size = (number(all_of_it[name], name) for name in ("RANK", "WORLD_SIZE"))
    if not 0 <= rank < size:
        raise BadInput(f"RANK is {rank} and WORLD_SIZE is {size}: ranks count from 0 to WORLD_SIZE - 1")
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        if name in all_of_it:
            number(all_of_it[name], name)
    if own and size > 1:
        where = HERE if own.get("LOCAL_WORLD_SIZE") == own["WORLD_SIZE"] else first_host(env) if launcher.called == "srun" else None
        own |= {"MASTER_PORT": str(port)} | ({} if where is None else {"MASTER_ADDR": where})
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in env and name not in own]
    if lacking and not (size == 1 and len(lacking) == 2):  # a rank by itself needs neither
        raise BadInput(f"{started} has no {' and no '.join(lacking)}: set MASTER_ADDR to the address of rank 0's machine and MASTER_PORT to "
                       f"a free port there, such as {PORT}, the same for all ranks")
    return {name: value for name, value in own.items() if name not in env}


def number(text: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise BadInput(f"{name} is {text[:60]!r}: it must be a whole number of at least 0")
    return int(text)


def tasks_here(env: Mapping[str, str]) -> str:
    """SLURM's "4(x2),3" is 4, 4 and 3 tasks on three nodes; SLURM_NODEID counts them from 0."""
    tasks = [count for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", env["SLURM_STEP_TASKS_PER_NODE"]) for _ in range(int(times or 1))]
    node = number(env.get("SLURM_NODEID", "0"), "SLURM_NODEID")
    return tasks[node] if node < len(tasks) else tasks[-1]


def first_host(env: Mapping[str, str]) -> str | None:
    """The first node of SLURM's list, on which rank 0 runs: "node[03-07,9]-a,other" begins with node03-a."""
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    found = re.match(r"([^,\[]+)(?:\[([^]\-,]+)[^]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else None
