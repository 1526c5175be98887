"""Weights that are streamed from the host or the disk for each step (ZeRO-Inference): the same tokens, and every weight goes up once a step.

What pays for it is many requests at once: the bytes of a step are the same for one and for a hundred.
"""

import pytest
import torch
from torch import nn

from zerocourse import shard
from zerocourse.comm import Comm
from zerocourse.inference import Server
from zerocourse.models.gpt2 import build_model
from zerocourse.offload import DiskOffload, HostOffload


def built() -> nn.Module:
    torch.manual_seed(0)
    return build_model("gpt2-tiny", n_layer=3)


def written(model, prompts):
    """Tokens of each request, and forwards."""
    server = Server(model, blocks=60, block_size=4, budget=128)
    requests = [server.add(prompt, 6) for prompt in prompts]
    server.run()
    return [request.tokens for request in requests], server.forwards


def streamed(folder, prompts):
    """On a rank: tokens, and bytes that went up for each forward; parameters in bytes, and those that the device holds afterwards."""
    offload = HostOffload(parameters=True) if folder is None else DiskOffload(folder, parameters=True)
    model = built()
    shard(model, None, 3, offload=offload)
    before = offload.link.bytes["up"]
    tokens, forwards = written(model, prompts)
    own = sum(flat.layout.real(Comm().rank) for flat in model.zero.flats) * 4
    return tokens, (offload.link.bytes["up"] - before) / forwards, own, model.zero.memory()["parameters_bytes"]


@pytest.mark.parametrize("kind, ranks", (("host", 1), ("host", 2), ("disk", 1)))
def test_each_step_streams_every_weight_once(pool, kind, ranks, tmp_path):
    for prompts in ([[1, 2, 3]], [[number, 5, 6, 7] for number in range(12)]):
        tokens, _ = written(built(), prompts)
        for ours, up, own, held in pool(ranks).run(streamed, None if kind == "host" else tmp_path, prompts):
            assert ours == tokens and held == 0
            assert up == pytest.approx(own, rel=0.01), "whatever the number of requests"
