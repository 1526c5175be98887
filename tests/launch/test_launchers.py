"""Any launcher will do: what a rank learns from its variables, tried with the variables alone."""

import os
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch import nn

import zerocourse
from zerocourse.comm.launchers import missing_variables
from zerocourse.errors import BadInput

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
NOTEBOOK = {"MASTER_ADDR": "localhost", "MASTER_PORT": "9994", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
SRUN = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_STEP_NODELIST": "gpu[03-05]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),3"}
ON_SRUN = {"RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "gpu03", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("env, added", [
    ({}, {}), (TORCHRUN, {}), (NOTEBOOK, {}),
    ({"RANK": "0", "WORLD_SIZE": "1"}, {}),
    (OPEN_MPI, {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}),
    (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "3"},
     {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"}),
    ({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
     {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}),
    (SRUN, ON_SRUN),
    (SRUN | {"SLURM_PROCID": "1", "SLURM_NODEID": "0"}, ON_SRUN | {"RANK": "1", "LOCAL_WORLD_SIZE": "2"}),
    (SRUN | {"SLURM_STEP_NODELIST": "login,gpu[1-9]"}, ON_SRUN | {"MASTER_ADDR": "login"}),
    (SRUN | {"SLURM_STEP_NODELIST": "a[7,9-10]-ib"}, ON_SRUN | {"MASTER_ADDR": "a7-ib"}),
    (SRUN | {"SLURM_JOB_NAME": "bash"}, {}),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, {}),  # a batch script, which srun has not started
    (SRUN | TORCHRUN, {}),
    (SRUN | NOTEBOOK, {}),
    (SRUN | {"RANK": "5", "WORLD_SIZE": "7", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"}),
])
def test_what_a_launcher_leaves_out(env, added):
    assert missing_variables(env) == added


def test_mpirun_is_looked_at_only_if_wanted():
    assert missing_variables(OPEN_MPI, discover=False) == {}
    assert missing_variables(OPEN_MPI, port=7)["MASTER_PORT"] == "7"


@pytest.mark.parametrize("env, words", [
    ({"RANK": "0"}, "rank 0 has no WORLD_SIZE: a launcher sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE is 2: ranks count from 0"),
    ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1': it must be a whole number"),
    ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
    (NOTEBOOK | {"LOCAL_RANK": ""}, "LOCAL_RANK is ''"),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "rank 0 has no MASTER_ADDR and no MASTER_PORT: set MASTER_ADDR to the address"),
    (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, r"rank 3, which mpirun \(Open MPI\) has started, has no MASTER_ADDR: set"),
])
def test_what_cannot_be_known_is_said(env, words):
    with pytest.raises(BadInput, match=words):
        missing_variables(env)


SCRIPT = """
import atexit, ctypes, os, sys, time
rank, port, other_port = sys.argv[1:]
if rank == "0":
    atexit.register(ctypes.PyDLL(None).sleep, 2)  # at the very end, and no other thread runs Python meanwhile: a busy machine
import torch, torch.distributed as dist
import zerocourse
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
zerocourse.init_distributed()
assert os.environ["LOCAL_WORLD_SIZE"] == "2", os.environ["LOCAL_WORLD_SIZE"]
dist.destroy_process_group()
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    del os.environ[name]
os.environ |= {f"OMPI_COMM_WORLD_{name}": value for name, value in
               {"RANK": rank, "LOCAL_RANK": rank, "SIZE": "2", "LOCAL_SIZE": "2"}.items()}
zerocourse.init_distributed(distributed_port=int(other_port))
assert os.environ["RANK"] == rank and os.environ["MASTER_PORT"] == other_port
total = torch.tensor([float(rank) + 1])
dist.all_reduce(total)
time.sleep(int(rank) / 2)
work = dist.all_reduce(torch.ones(9), async_op=True)  # rank 0 does not wait: a thread of gloo's has the tensor
if rank == "1":
    work.wait()
del work
print("sum", int(total))
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_two_ranks_meet_by_these_variables_alone_and_end_without_an_abort():
    ports = [str(free_port()), str(free_port())]
    env = {name: value for name, value in os.environ.items() if name not in TORCHRUN} | {"GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), *ports], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) for rank in range(2)]
    for rank in ranks:
        said, _ = rank.communicate(timeout=100)
        assert rank.returncode == 0 and "sum 3" in said, said


def arguments(folder: str) -> list[str]:
    """What init_distributed's arguments do where there is a group, and where there is none."""
    said, rank, world_size = [], dist.get_rank(), dist.get_world_size()

    def refused(call, *args, **kwargs) -> None:
        with pytest.raises(BadInput) as caught:
            call(*args, **kwargs)
        said.append(str(caught.value))

    zerocourse.init_distributed(rank=rank, world_size=world_size, dist_init_required=False, verbose=False)
    refused(zerocourse.init_distributed, world_size=world_size + 1)
    seen = {name: os.environ.get(name) for name in TORCHRUN}
    dist.destroy_process_group()
    try:
        for name in TORCHRUN:
            os.environ.pop(name, None)
        refused(zerocourse.init_distributed, dist_init_required=False)
        refused(zerocourse.initialize, nn.Linear(2, 2), config={"train_batch_size": 2}, dist_init_required=False)
        refused(zerocourse.init_distributed, "mpi")
        refused(zerocourse.init_distributed, rank=rank, world_size=world_size)
        with pytest.warns(UserWarning, match="the backend is 'nccl', and 2 ranks use 0 GPUs: they communicate over gloo"):
            zerocourse.init_distributed("nccl", timeout=timedelta(seconds=9), init_method=f"file://{folder}/store", rank=rank,
                                        world_size=world_size)
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, world_size, "gloo")
        assert os.environ.pop("LOCAL_WORLD_SIZE") == "2"
    finally:
        os.environ.update({name: value for name, value in seen.items() if value is not None})
    return said


def test_arguments_are_used_or_refused(tmp_path):
    with zerocourse.Ranks(2) as ranks:
        for said in ranks.run(arguments, str(tmp_path)):
            assert [sentence.partition(":")[0] for sentence in said] == [
                "init_distributed got world_size=3, and the process group that exists has world_size 2",
                "dist_init_required is False, and there is no process group yet",
                "dist_init_required is False, and there is no process group yet",
                "the backend is 'mpi'", "the ranks cannot meet by init_method='env"]
