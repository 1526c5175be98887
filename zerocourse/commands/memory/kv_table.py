"""What `zerocourse memory --kv` says: keys and values of requests beside the weights, and how fast they can be read."""

from ...errors import BadInput
from ...formulas.models.kv_cache import Decoding, kv_bytes
from ...formulas.units import both, gb
from .. import Outcome
from ..terminal import table

REQUESTS = (1, 8, 64)  # of a step, besides as many as fit


def kv_table(name: str, decoding: Decoding, card: int, bandwidth: int | None) -> Outcome:
    """Raises BadInput where the weights alone do not fit."""
    fitting, shape = decoding.fitting(card), decoding.shape
    if decoding.weights > card:
        raise BadInput(f"the weights of {name} take {both(decoding.weights)} in half precision, and --card is {both(card)}: take a larger one")
    requests = sorted({each for each in (*REQUESTS, fitting) if 0 < each <= fitting})
    steps = [{"requests": each, "step_bytes": decoding.bytes_of_step(each),
              "tokens_per_second": None if bandwidth is None else decoding.tokens_a_second(each, bandwidth)} for each in requests]
    lines = [(f"{name}: {shape.params:,} parameters in half precision are {gb(decoding.weights)}. A token keeps {gb(kv_bytes(shape))} of keys and "
             f"values, and a request of {decoding.tokens:,} tokens {gb(decoding.request)}."),
             f"On a card of {both(card)} {fitting:,} such requests fit beside the weights; activations and a framework's own memory come on top."]
    if steps:
        rows = [["requests at once", "read for a token of each", *(["tokens a second, at most", "each"] if bandwidth else [])]]
        for step in steps:
            speed = [] if not bandwidth else [f"{step['tokens_per_second']:,.0f}", f"{bandwidth / step['step_bytes']:,.0f}"]
            rows.append([f"{step['requests']:,}", gb(step["step_bytes"]), *speed])
        lines += ["", *table(rows, ">" * len(rows[0]))]
        lines += [] if bandwidth else ["", "With --bandwidth, such as 300GB (a second), it also says how many tokens a second these bytes allow."]
    return Outcome("\n".join(lines), {"params": shape.params, "weights_bytes": decoding.weights, "token_bytes": kv_bytes(shape),
                                      "tokens": decoding.tokens, "request_bytes": decoding.request, "fitting_requests": fitting, "steps": steps})
