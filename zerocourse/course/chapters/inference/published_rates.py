"""Published tokens a second beside their bound, R · bandwidth / bytes: the bytes that a step of R requests reads, where it must wait for them.

    rates = zero_inference()
    rates[0].rate, rates[0].bound, rates[0].share

The bytes are those of the weights alone. Whatever else a run has waited for makes its share smaller, and none can be above 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ....formulas.gpt2_config import GPTConfig
from ....formulas.models.kv_cache import weights_read
from ....planning.question import Rates
from ....simulation.shapes import shape_of

OPT = {f"OPT-{size}": GPTConfig(layers, heads, width, block_size=2048, vocab_size=50272)  # arXiv 2205.01068, table 1
       for size, layers, heads, width in (("30B", 48, 56, 7168), ("66B", 64, 72, 9216), ("175B", 96, 96, 12288))}
MODELS = OPT | {"BLOOM-176B": shape_of("bloom-176b"), "Llama 2 70B": shape_of("llama-70b")}
HOST, DISK = Rates().link, 5.6e9  # bytes a second: PCIe 4.0 x16, which an A6000 has, and the disk as its README has it
A100 = 1.7e12  # what the memory of gpt-fast's A100s gives, as its README says
FOUR_BITS = (4 + 32 / 64) / 16  # of half precision: 64 weights share a scale and a least value, each of 16 bits


class PublishedRate(NamedTuple):
    """rate: tokens a second, as published.   nbytes: of a step, on each card.   bandwidth: of a card, or of its link, bytes a second."""

    model: str
    way: str
    requests: int
    nbytes: float
    bandwidth: float
    rate: float

    @property
    def bound(self) -> float:
        """Tokens a second, at most."""
        return self.requests * self.bandwidth / self.nbytes

    @property
    def share(self) -> float:
        """Of the bound, that was reached."""
        return self.rate / self.bound


def zero_inference() -> list[PublishedRate]:
    """All rows of ZeRO-Inference in its README: prompts of 512 tokens and 32 new ones on one A6000, 48 GB, which has room for none of these models
    in half precision. In two cells, those of 350 GB in half precision, the weights came from the disk, in all others from the host.

    Source: DeepSpeedExamples, inference/huggingface/zero_inference/README.md, commit 45b4b71.
    """
    table = {"weights in 4 bits": [(22.74, 24), (7.68, 16), (1.21, 8), (0.65, 4), (24.05, 96)],  # tokens a second, requests
             "keys and values on the host": [(12.32, 96), (3.63, 40), (0.47, 32), (0.47, 32), (2.91, 96)],
             "both": [(19.34, 128), (8.08, 64), (2.26, 24), (1.33, 24), (3.65, 200)]}
    rates = []
    for way, cells in table.items():
        half = way == "keys and values on the host"
        for (model, shape), (rate, requests) in zip(MODELS.items(), cells, strict=True):
            on_disk = half and model in ("OPT-175B", "BLOOM-176B")
            rates.append(PublishedRate(model, way, requests, weights_read(shape) * (1 if half else FOUR_BITS), DISK if on_disk else HOST, rate))
    return rates


def gpt_fast() -> list[PublishedRate]:
    """All rows of gpt-fast in its README that have a number, but for two on an AMD card, whose bandwidth it does not say: one request on one to
    eight A100. It publishes bytes a second of each card, too, so a step's bytes are these over its steps a second.

    Source: gpt-fast, README.md, commit 0f925b5.
    """
    table = {"Llama 2 7B": {"half precision": (104.9, 1397.31), "8 bits": (155.58, 1069.20), "4 bits": (196.80, 862.69),
                            "half precision, 2 cards": (168.84, 1181.99), "half precision, 4 cards": (254.02, 955.83),
                            "half precision, 8 cards": (328.43, 704.10)},
             "Llama 2 70B": {"8 bits": (19.13, 1322.58), "4 bits": (25.25, 1097.66), "half precision, 2 cards": (21.32, 1481.87),
                             "half precision, 4 cards": (38.01, 1340.76), "half precision, 8 cards": (62.50, 1135.29),
                             "8 bits, 8 cards": (80.44, 752.04), "4 bits, 8 cards": (90.77, 548.10)}}
    return [PublishedRate(model, way, 1, gigabytes * 1e9 / rate, A100, rate)
            for model, rows in table.items() for way, (rate, gigabytes) in rows.items()]


def by_model(rates: Sequence[PublishedRate]) -> list[dict[str, str]]:
    """A row for each model and a column for each way, as `show.table` takes them: the rate, its share of the bound, and whether a disk was read."""
    said = {(each.model, each.way): f"{each.rate} ({each.share:.0%}{', disk' * (each.bandwidth == DISK)})" for each in rates}
    models, ways = (dict.fromkeys(each[place] for each in rates) for place in (0, 1))
    return [{"": model} | {way: said[model, way] for way in ways} for model in models]
