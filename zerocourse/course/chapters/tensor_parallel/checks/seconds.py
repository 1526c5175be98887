"""The check of 16.6: how long a block takes with tensor parallelism and with ZeRO-3."""

from ....checks import Trial, exercise

CASES = [(1024, 256, 2, 1e12, 1e9, 0.0), (64, 256, 4, 1e12, 1e9, 1e-5), (4096, 512, 4, 1e13, 1e10, 1e-4), (16, 2048, 8, 1e13, 1e10, 1e-5),
         (8192, 1024, 8, 1e12, 1e12, 0.0), (100, 100, 1, 1e9, 1e9, 1.0), (2, 64, 3, 1e15, 1e12, 1e-3),
         (1, 5, 2, 1e12, 1e9, 0.0), (3, 4, 2, 1e9, 1e9, 0.0)]


def turns(elements, t, rate, latency):
    return (t - 1) * (2 * elements / t / rate + latency)


@exercise(
    "16.6", "The crossing in seconds", minutes=25, difficulty=2,
    trials=[Trial(CASES, close=1e-6)],
    mistakes={
        "half of it": ({"halves": 1}, {"sums": 2}),
        "not divided": {"work": lambda compute, t: compute},
        "hidden": {"exposed": max},
        "added": {"overlapped": lambda compute, sends: compute + sends},
        "no latency": {"collective": lambda elements, t, rate, latency: turns(elements, t, rate, 0.0)},
        "latency once": {"collective": lambda elements, t, rate, latency: turns(elements, t, rate, 0.0) + latency * (t > 1)},
        "one latency a turn": {"halves": 1, "sum_of": lambda elements, t, rate, latency: turns(2 * elements, t, rate, latency)},
        "whole block": {"zero3_work": lambda compute, t: compute * t},
        "reduced behind": {"overlapped": lambda compute, sends: max(compute, 2 * sends / 3) + sends / 3},
        "the whole in each turn": {"collective": lambda elements, t, rate, latency: (t - 1) * (2 * elements / rate + latency)},
        "elements": {"collective": lambda elements, t, rate, latency: turns(elements / 2, t, rate, latency)},
        "gathered once": {"gathers": 2},
        "slower": {"better": lambda tensor, zero3: tensor > zero3},
        "ties": {"better": lambda tensor, zero3: tensor <= zero3},
    })
def seconds_of_a_block(tokens, width, t, flops, rate, latency, *, collective=turns, halves=2, sums=4, gathers=3, work=lambda compute, t: compute / t,
                       exposed=lambda compute, sends: compute + sends, overlapped=max, better=lambda tensor, zero3: tensor < zero3,
                       sum_of=None, zero3_work=lambda compute, t: compute):
    """The seconds of both, and which is faster."""
    compute = work(72 * tokens * width**2 / flops, t)
    tensor = exposed(compute, sums * halves * (sum_of or collective)(tokens * width, t, rate, latency))
    zero3 = overlapped(zero3_work(compute, t), gathers * collective(12 * width**2, t, rate, latency))
    return {"tensor": tensor, "zero3": zero3, "faster": "tensor" if better(tensor, zero3) else "zero3"}
