"""The check of 18.5: the mesh on which a model fits and its ranks stand still least."""

import functools
import operator

from ....checks import exercise

GB = 10**9


def model(layers, width, heads, tokens=2048):
    return {"layers": layers, "width": width, "heads": heads, "tokens": tokens}


def cluster(nodes, per_node, memory):
    return {"nodes": nodes, "per_node": per_node, "memory": memory}


M7 = model(32, 4096, 32)
M70 = model(80, 8192, 64)
CASES = [
    (M7, cluster(1, 8, 80 * GB), 64), (M7, cluster(1, 1, 80 * GB), 4), (M70, cluster(8, 8, 80 * GB), 512),
    (M70, cluster(2, 8, 80 * GB), 512), (M7, cluster(4, 4, 24 * GB), 64), (M70, cluster(16, 8, 40 * GB), 256),
    (model(32, 6144, 18), cluster(8, 4, 32 * GB), 64), (model(24, 2048, 16), cluster(2, 4, 80 * GB), 8),
    (model(32, 6144, 18), cluster(4, 6, 24 * GB), 48), (model(24, 5120, 16), cluster(8, 2, 12 * GB), 512),
    (model(32, 5120, 20), cluster(8, 6, 16 * GB), 96), (model(24, 5120, 32), cluster(4, 8, 16 * GB), 60),
    (model(32, 8192, 32), cluster(16, 4, 12 * GB), 8),
    # a byte decides: what is rounded up or down, and what fits exactly
    (model(6, 11, 6, 7), cluster(5, 2, 35732), 10), (model(6, 11, 6, 7), cluster(5, 2, 61010), 10),
    (model(4, 7, 5, 3), cluster(2, 5, 4331), 10), (model(4, 7, 5, 3), cluster(2, 5, 4347), 10),
    (model(4, 10, 4, 16), cluster(3, 1, 60160), 3),
    (model(24, 1024, 24, 512), cluster(2, 6, 80 * GB), 9),  # of two stages one has the larger bubble, for it has more replicas
    (model(2, 128, 6, 3), cluster(3, 6, 795136), 6), (model(32, 7, 4, 7), cluster(8, 8, 9211), 4),
    (model(12, 7, 6, 7), cluster(1, 4, 69383), 512), (model(4, 8, 1, 1), cluster(1, 4, GB), 1)]


def held(model, pp, dp, tp, micro_batches, *, zero=lambda dp: dp, states_cut=True, in_flight=min, acts_cut=True, of_layers=True,
         params=12, up=(True, True, False)):
    """Bytes on the first stage's ranks, which keep most."""
    weights = rounded(params * model["layers"] * model["width"] ** 2, pp * tp if states_cut else 1, up[0])
    activations = 34 * model["tokens"] * model["width"] * model["layers"] * in_flight(pp, micro_batches)
    activations = rounded(activations, (pp if of_layers else 1) * (tp if acts_cut else 1), up[2])
    return 4 * weights + rounded(12 * weights, zero(dp), up[1]) + activations


def rounded(number, parts, up):
    return -(-number // parts) if up else number // parts


def held_with_all_cut(model, pp, dp, tp, micro_batches):
    weights = -(-12 * model["layers"] * model["width"] ** 2 // (pp * tp))
    return -(-16 * weights // dp) + held(model, pp, dp, tp, micro_batches) - 4 * weights - -(-12 * weights // dp)


def held_with_weights_cut(model, pp, dp, tp, micro_batches):
    weights = rounded(12 * model["layers"] * model["width"] ** 2, pp * tp, True)
    return held(model, pp, dp, tp, micro_batches) - rounded(12 * weights, dp, True) + 12 * rounded(weights, dp, True)


def held_layer_by_layer(model, pp, dp, tp, micro_batches):
    sample, layers = 34 * model["tokens"] * model["width"], model["layers"]
    kept = min(pp, micro_batches)
    return held(model, pp, dp, tp, micro_batches) - sample * layers * kept // (pp * tp) + sample // tp * (layers // pp) * kept


@exercise(
    "18.5", "Choose the mesh", minutes=60, difficulty=3, cases=CASES,
    mistakes={
        "states not divided": {"bytes_of": lambda *mesh: held(*mesh, zero=lambda dp: 1)},
        "zero 3": {"bytes_of": held_with_all_cut},
        "weights whole": {"bytes_of": lambda *mesh: held(*mesh, states_cut=False)},
        "all in flight": {"bytes_of": lambda *mesh: held(*mesh, in_flight=lambda pp, m: m)},
        "as many as stages": {"bytes_of": lambda *mesh: held(*mesh, in_flight=lambda pp, m: pp)},
        "one in flight": {"bytes_of": lambda *mesh: held(*mesh, in_flight=lambda pp, m: 1)},
        "activations not divided": {"bytes_of": lambda *mesh: held(*mesh, acts_cut=False)},
        "activations of all layers": {"bytes_of": lambda *mesh: held(*mesh, of_layers=False)},
        "rounded otherwise": tuple({"bytes_of": functools.partial(held, up=up)} for up in
                                   ((False, True, False), (True, False, False), (True, True, True), (False, False, False))) + (
                                       {"bytes_of": held_with_weights_cut}, {"bytes_of": held_layer_by_layer}),
        "bubble rounded": {"digits": 2},
        "exactly full": {"fits": operator.lt},
        "tp between nodes": {"inside": False},
        "half a head": {"heads": False},
        "uneven stages": {"even": False},
        "uneven batch": {"whole": False},
        "largest bubble": {"sign": -1},
        "fewest stages": {"bubble_of": lambda pp, m: pp},
        "micro-batches by tp": {"per": lambda dp, tp: dp * tp},
        "bubble forgotten": {"first_tp": True},
        "largest tp": {"talk": -1},
        "anything": {"or_else": True},
    })
def best_mesh(model, cluster, batch, *, bytes_of=held, inside=True, heads=True, even=True, whole=True, sign=1, first_tp=False, talk=1,
              or_else=False, fits=operator.le, digits=None, bubble_of=lambda pp, m: (pp - 1) / (m + pp - 1), per=lambda dp, tp: dp):
    """Of all that fits: the smallest bubble, then the smallest tp."""
    found, ranks = [], cluster["nodes"] * cluster["per_node"]
    for pp in range(1, ranks + 1):
        for tp in range(1, ranks // pp + 1):
            dp = ranks // (pp * tp)
            if pp * tp * dp != ranks or (inside and cluster["per_node"] % tp) or (heads and model["heads"] % tp):
                continue
            if (even and model["layers"] % pp) or (whole and batch % dp):
                continue
            m = max(1, batch // per(dp, tp))
            if batch < dp or not (or_else or fits(bytes_of(model, pp, dp, tp, m), cluster["memory"])):
                continue
            bubble = bubble_of(pp, m)
            bubble = bubble if digits is None else round(bubble, digits)
            found.append((tp, bubble, pp, dp) if first_tp else (sign * bubble, talk * tp, pp, dp))
    if not found:
        return None
    _first, _second, pp, dp = min(found)
    return {"pp": pp, "dp": dp, "tp": ranks // (pp * dp)}
