"""Generation by a server: a paged cache of keys and values, many requests at once, and the tokens of no cache at all.

    server = Server(model, blocks=200)                  # our GPT, or a causal model of Hugging Face
    request = server.add(tokens, most_new=20)           # at any time, also while others are under way
    answers = server.add_samples(tokens, 4, most_new=20)  # requests that share a prompt, for a `choose` that draws
    while server.busy:
        server.step()                                   # one forward: a token for those that decode, and pieces of prompts
    request.tokens

block_pool says who has which block of the cache, scheduler which tokens the next forward has, cache holds keys and values and
attends to them, models puts that into a model's attention, server does a step, drafts guesses tokens that a step
checks, and small_weights keeps weights in 8 or 4 bits. Weights that `shard` keeps on the host or the disk (stage 3 with offloaded
parameters) are streamed for each step, as ZeRO-Inference does. Sources: Kwon et al. 2023, arXiv 2309.06180; Holmes et al. 2024,
arXiv 2401.08671 (the token budget).
"""

from .block_pool import BlockPool
from .drafts import by_model, repeated
from .scheduler import Request, RequestPiece, Scheduler
from .server import Server
from .small_weights import SmallLinear, shrink_weights, weights_bytes

__all__ = ["BlockPool", "RequestPiece", "Request", "Scheduler", "Server", "SmallLinear", "by_model", "repeated", "shrink_weights",
           "weights_bytes"]
