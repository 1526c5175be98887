"""The checks of chapter 02, the meta device: small models on real ranks, what is held and what is lost."""

import torch

from ..exercise import exercise
from ..lab import Lab
from ..words import a, value_text
from . import meta_probe as probe

MATERIALISING = ("zerocourse.init.deferred:materialize_model", "zerocourse.init.deferred:Materializer.module",
                 "zerocourse.init.deferred:Materializer.stream")


# 2.1 ----------------------------------------------------------------------------------------------------------------

COUNTS = {  # model: its words, what is right, and what some mistakes give: {key: {value: sentence}}
    "plain": ("two linear layers in fp32 under deferred_init()", (104, 0, 0), {
        "parameters": {26: "You counted elements: an fp32 element is 4 bytes."},
        "now": {104: "You counted the meta parameters as if they were in memory: a meta tensor has a size, and its "
                     "storage says one too, but there is no memory under it."}}),
    "bfloat16": ("a bf16 layer and an fp32 layer", (72, 0, 0), {
        "parameters": {104: "You took 4 bytes for every element: each dtype has its own size, and bf16 has 2.",
                       52: "You took the size of the first parameter's element for all of them."}}),
    "tied": ("a model whose head is tied to its embedding", (192, 0, 0), {
        "parameters": {352: "You counted the tied tensor twice: two names, and one memory."}}),
    "frozen": ("a model with a frozen layer", (104, 0, 0), {
        "parameters": {40: "You left out the frozen layer: it is not trained, but it takes memory."}}),
    "buffers": ("a model with three buffers under deferred_init()", (32, 79, 79), {
        "parameters": {111: "You counted the buffers among the parameters."},
        "buffers": {23: "You left out the buffer that is not persistent: it is in no state_dict, but it takes memory.",
                    0: "You left out the buffers.",
                    60: "You took 4 bytes for every element of a buffer: an int64 has 8 and a bool has 1."},
        "now": {0: "Under deferred_init() the buffers are real already, and so they count as memory that is taken now: ask "
                   "each tensor whether it is on the meta device, and not the model.",
                23: "The buffer that is not persistent is in memory too."}}),
    "half": ("a model of which one layer is real and one is planned", (116, 0, 36), {
        "now": {0: "You decided once for the whole model, or looked at buffers only: ask each tensor whether it is on "
                   "the meta device.",
                116: "You decided once for the whole model: ask each tensor whether it is on the meta device."}}),
    "meta": ("a model that is on the meta device with its buffers", (32, 79, 0), {
        "now": {79: "You took every buffer for real: without deferred_init() buffers are on the meta device too."}}),
}


@exercise("2.1", "Bytes of a plan", minutes=10, difficulty=1, answer="planned_bytes")
def planned_bytes(lab: Lab):
    found = lab.run(probe.count)[0]
    for name, (words, right, mistakes) in COUNTS.items():
        got = found[name]
        if not isinstance(got, dict) or list(got) != ["parameters", "buffers", "now"]:
            lab.expect(got, dict(zip(("parameters", "buffers", "now"), right, strict=True)), f"for {words}",
                       verb="it returned")
        for key, value in zip(got, right, strict=True):
            told = [(sentence, number) for number, sentence in mistakes.get(key, {}).items()]
            lab.expect(got[key], value, f'for {words}, the entry "{key}"', told, verb="it is")
    return "every dtype, tied, frozen, with buffers of both kinds, half real: the plan says what the house will weigh."


# 2.2 ----------------------------------------------------------------------------------------------------------------

@exercise("2.2", "One tensor, several names", minutes=15, difficulty=1, answer="tied_names")
def tied_names(lab: Lab):
    found = lab.run(probe.tie, "UNTIED")[0]
    pair, others = ["embed.weight", "head.weight"], ["norm.weight", "norm.bias"]
    by_shape = "You compared shapes: two tensors of one shape are still two tensors."
    by_address = ("You compared addresses: on the meta device every tensor's data_ptr() is 0, since there is no "
                  "memory. Compare the Python objects.")
    dropped = ("You found no tie: `named_parameters()` leaves out the second name of a tensor, unless you call it with "
               "remove_duplicate=False.")
    lab.expect(found["random"], [], "for a real model in which nothing is tied", [(by_shape, [pair, others])],
               verb="it returned")
    lab.expect(found["zeros"], [], "for a real model full of zeros, in which nothing is tied", [
        ("You compared values: equal numbers in two memories are not a tie, because training makes them different.",
         [pair, others]),
        ("You compared values: equal numbers are not a tie.", [[pair[0], *others, pair[1]]]),
        ("You listed the tensors that have one name, too: only ties are wanted.",
                                     [[name] for name in (pair[0], *others, pair[1])])], verb="it returned")
    found = lab.run(probe.tie, "TIED")[0]
    lab.expect(found["none"], [], "for a model on the meta device in which nothing is tied", [
        (by_address, [[pair[0], *others, pair[1]]])], verb="it returned")
    lab.expect(found["two"], [pair], "for a head tied to the embedding", [
        (dropped, []), ("You named the module and not the parameter: names end in `.weight`.", [["embed", "head"]]),
        ("You listed every name: only a tensor with several names is a tie.", [pair, *([name] for name in others)]),
        ("You put the names into a set, which has no order: keep the order of the model.", [pair[::-1]])],
        verb="it returned")
    three, two = ["words.weight", "target.weight", "head.weight"], ["mix.weight", "copy.weight"]
    lab.expect(found["three"], [three, two], "for one tensor with three names and one with two", [
        ("You returned pairs: a tensor with three names is one group of three.",
         [three[:2], [three[0], three[2]], two]),
        ("You returned pairs: a tensor with three names is one group of three.",
         [three[:2], [three[0], three[2]], three[1:], two]),
        ("You returned pairs: a tensor with three names is one group of three.", [three[:2], three[1:], two]),
        ("You returned pairs: a tensor with three names is one group of three.",
         [three[:2], two, [three[0], three[2]]]),
        ("You stopped after two names: a tensor may have more.", [three[:2], two]),
        ("You stopped at the first tied tensor: there may be several.", [three]),
        ("You sorted: keep the order in which the model has the names.", [sorted(three), sorted(two)]),
        ("You sorted: keep the order in which the model has the names.", [sorted(two), sorted(three)]),
        ("You sorted: the groups come in the order in which the model has their first names.", [two, three]),
    ], verb="it returned")
    lab.expect(found["module"], [["first.weight", "again.weight"], ["first.bias", "again.bias"]],
               "for a model that has one module in two places", [
        ("A module that is registered twice ties all its parameters, and `named_modules()` leaves out its second name: "
         "use remove_duplicate=False there too.", [])], verb="it returned")
    lab.expect(found["real"], [pair], "for a real model whose head is tied", verb="it returned")
    return "two names, three names, a whole module twice; and none where there is only a likeness."


# 2.3 ----------------------------------------------------------------------------------------------------------------

@exercise("2.3", "What to_empty() loses", minutes=15, difficulty=2, answer="lost_names")
def lost_names(lab: Lab):
    found = lab.run(probe.lose)[0]
    for name, (_, same) in found.items():
        if not same:
            lab.wrong(f"after it ran, the model of case {name!r} has other tensors than before: you called "
                      "`to_empty()` or loaded something into the model that you were given. Only look at it.")
    said = {name: value for name, (value, _) in found.items()}
    everything = ["layer.weight", "layer.bias", "mean", "positions", "seen"]
    lab.expect(said["full"], [], "for a checkpoint that has every tensor", verb="it returned")
    lab.expect(said["buffers"], ["positions"], "for a checkpoint with all that state_dict() has", [
        ("You looked at state_dict() or at parameters alone: a buffer that is not persistent is in neither, and "
         "nothing brings it back.", []),
        ("You listed every buffer: what is persistent comes back with the checkpoint.", everything[2:])],
        verb="it returned")
    lab.expect(said["short"], ["layer.bias", "positions", "seen"], "for a checkpoint without a bias and a flag", [
        ("You asked only whether a buffer is persistent: what the checkpoint does not have is lost too.",
         ["positions"]),
        ("You looked at buffers only: a parameter that the checkpoint does not have is lost too.",
         ["positions", "seen"]),
        ("You looked at parameters only: a buffer is lost too.", ["layer.bias"]),
        ("Parameters come first, then buffers, each in the order of the model.", ["positions", "seen", "layer.bias"]),
    ], verb="it returned")
    lab.expect(said["real"], ["mean", "positions", "seen"], "for a deferred model with real buffers", [
        ("You spared the real buffers: `to_empty()` takes new memory for every tensor, real or not.", [])],
        verb="it returned")
    lab.expect(said["passed over"], ["positions"], "for a checkpoint that also has the buffer that is not persistent", [
        ("You trusted the checkpoint's names: `load_state_dict()` passes over a buffer that is not persistent, even "
         "when the checkpoint has it.", [])], verb="it returned")
    lab.expect(said["tied"], ["head.weight"], "for a tied model and a checkpoint with the first of the two names", [
        ("You forgot the second name: `to_empty()` gives it a memory of its own, so loading the first name no longer "
         "fills it.", [])], verb="it returned")
    return "non-persistent buffers, whatever the checkpoint lacks, real buffers, and the second name of a tie."


# 2.4 ----------------------------------------------------------------------------------------------------------------

@exercise("2.4", "Numbers from a name", minutes=20, difficulty=2, answer="draw", replaces=MATERIALISING)
def draw(lab: Lab):
    for world in (1, 2, 3):
        _judge_draws(lab, lab.run(probe.draw_here, world=world), world)
    return "the same on every rank, in every order and in every process, and different for every name and seed."


def _judge_draws(lab: Lab, ranks: list[dict], world: int) -> None:
    """End the check where draws are not what a name and a seed give."""
    name, first = probe.NAMES[0], ranks[0]["first"]
    call = f'`draw("{name}", {probe.SHAPE}, 7)`'
    for got, shape in ((first, probe.SHAPE), (ranks[0]["small"], (3,))):
        wrong_kind = not isinstance(got, torch.Tensor) or got.shape != shape or got.dtype != torch.float32
        if wrong_kind or got.device.type != "cpu":
            lab.expect(got if wrong_kind else got.shape, torch.zeros(shape) if wrong_kind else "a tensor on the CPU",
                       f"for the shape {shape}", verb="it returned")
    for rank in ranks:
        if not (torch.equal(rank["first"], rank["again"]) and torch.equal(rank["first"], rank["names"][name])
                and torch.equal(rank["first"], rank["seeds"][7])):
            lab.wrong(f"{call} returned other numbers when it was called again after other draws. What was drawn "
                      "before must not matter: seed a generator anew in every call.")
        if not rank["kept"]:
            lab.wrong(f"after {call} torch's own generator is in another state than before. The learner's dropout and "
                      "data draw from it, so they would change: draw from a `torch.Generator()` of your own, or put "
                      "the state back.")
        if not torch.equal(rank["first"], rank["salted"]):
            lab.wrong(f"{call} returned other numbers when `hash()` was that of another process. Python salts the hash "
                      "of text anew in each process, so two ranks would disagree: use zlib.crc32 or hashlib.")
    for number, rank in enumerate(ranks):
        if not torch.equal(rank["first"], first):
            lab.wrong(f"{call} returned other numbers on rank {number} of {world} than on rank 0. The rank must play "
                      "no part: seed and name alone decide.")
    _judge_names(lab, ranks[0])
    pairs = [(one, two) for one in ranks[0]["seeds"] for two in ranks[0]["seeds"] if one < two]
    same = [pair for pair in pairs if torch.equal(ranks[0]["seeds"][pair[0]], ranks[0]["seeds"][pair[1]])]
    if same:
        why = "torch's generator on the CPU looks at the lowest 32 bits of its seed, so what is above them is lost"
        lab.wrong(f'`draw("{name}", ...)` returned the same numbers for the seeds {same[0][0]} and {same[0][1]}: the '
                  f"seed plays no part. Did you use it? If you did: {why}.")
    mean, std = first.mean().item(), first.std().item()
    if not (abs(mean) <= 0.002 and abs(std - 0.02) <= 0.002):  # NaN is no mean either
        why = "You drew with a standard deviation of 1: multiply by 0.02." if abs(std - 1) < 0.1 else \
            "You multiplied by the variance, 0.02²: multiply by its root, 0.02." if abs(std - 4e-4) < 1e-4 else \
            "You multiplied by the root of 0.02: it is the standard deviation already." if abs(std - .1414) < .01 else \
            "You drew from another distribution: torch.rand is uniform, torch.randn is normal." if mean > 0.005 else \
            "No number is beyond 0.02: did you draw evenly between -0.02 and 0.02? A normal distribution is wanted." \
            if bool((first.abs() <= 0.02).all()) and std > 0.01 else ""
        lab.wrong(f"{call} has a mean of {mean:.3f} and a standard deviation of {std:.4f}, and 0 and 0.02 are right. "
                  f"{why}".rstrip())
    if not bool((first.abs() > 0.04).any()):
        lab.wrong(f"{call} has no number beyond twice the standard deviation: a normal distribution has some in 20. "
                  "Did you draw from a uniform one?")


def _judge_names(lab: Lab, found: dict) -> None:
    """Do different names give different numbers? If not, what of a name was used?"""
    names = found["names"]
    same = [(one, two) for i, one in enumerate(names) for two in list(names)[:i] if torch.equal(names[one], names[two])]
    if not same:
        return
    one, two = same[0]
    count = len(names) * (len(names) - 1) // 2
    why = [(len(same) == count, "The name plays no part: then all matrices of a model are copies of one another."),
           (all(sorted(x) == sorted(y) for x, y in same), "They have the same letters in another order: adding up the "
            "letters forgets the order."),
           (all(x.split(".")[-1] == y.split(".")[-1] for x, y in same),
            "You used the end of the name only: modules of one kind then get the same numbers."),
           (all(len(x) == len(y) for x, y in same), "They are equally long: the length of a name is not enough."),
           (all(x.split(".")[0] == y.split(".")[0] for x, y in same), "You used the beginning of the name only.")]
    words = next((sentence for true, sentence in why if true), "")
    lab.wrong(f'the names "{two}" and "{one}" give the same numbers. {words}'.rstrip())


# 2.5 ----------------------------------------------------------------------------------------------------------------

SLACK = 8192  # bytes: small tensors that an answer may need for itself


@exercise("2.5", "Only this rank's slice", minutes=60, difficulty=3, answer="my_slices", replaces=MATERIALISING,
          timeout=20)
def my_slices(lab: Lab):
    right = probe.whole_values(7)
    first, *rest = lab.run(probe.cut_alone)[0]
    _judge_slices(lab, first, right, 0, 1)
    for rank, found in enumerate(rest):
        _judge_slices(lab, found, right, rank, 2, "in one process that plays the ranks in turn, ")
    for world in (2, 3):
        for rank, found in enumerate(lab.run(probe.cut_here, world=world)):
            _judge_slices(lab, found, right, rank, world)
    whole = sum(value.nbytes for value in right.values())
    return (f"the same {whole:_} bytes of values for 1, 2 and 3 ranks, a rank's slices and one module at a time, and "
            "ties and buffers as they were.")


def _judge_slices(lab: Lab, found: dict, right: dict, rank: int, world: int, where: str = "") -> None:
    """End the check where one rank's slices, its memory, or what is left of the model are not right."""
    who, slices = f"{where}on rank {rank} of {world}", found["slices"]
    _judge_entries(lab, slices, right, rank, world, who)
    for name, value in right.items():
        size = -(-value.numel() // world)
        own = torch.zeros(size * world, dtype=value.dtype)
        own[:value.numel()] = value.flatten()
        own = own[rank * size:(rank + 1) * size]
        if not torch.equal(slices[name], own):
            lab.wrong(f"{who}, the slice of `{name}` has other values than are right. "
                      + _why_values(lab, slices, right, name, rank, world))
    names = ", ".join(f"`{name}`" for name in (found["real"] or found["others"])[:2])
    if found["real"]:
        lab.wrong(f"{who}, the parameters {names} of the model are real afterwards: the whole model is then in memory. "
                  "Put the meta parameters back when a module is cut.")
    if found["others"] or not found["tied"]:
        lab.wrong(f"{who}, the model's parameters {names} are not the objects they were: ties and optimizers hold on "
                  "to the objects. Put the same ones back.")
    if found["buffers"]:
        lab.wrong(f"{who}, the buffer `{found['buffers'][0]}` has lost its values: `to_empty()` gives buffers new "
                  "memory too. Give memory to the parameters alone.")
    if not found["kept"]:
        lab.wrong(f"{who}, torch's generator is in another state afterwards: put it back, for example with "
                  "torch.random.fork_rng(devices=[]).")
    whole = sum(value.nbytes for value in right.values())
    share = sum(value.element_size() * -(-value.numel() // world) for value in right.values())
    if found["held"] > share:
        why = "A slice is a view, and a view keeps the whole parameter's memory alive: clone it." \
            if found["held"] >= whole else ""
        lab.wrong(f"{who}, the slices hold {found['held']:_} bytes, and {share:_} are right. {why}".rstrip())
    largest = max(value.nbytes for value in right.values())
    if world > 1 and found["peak"] > (limit := share + 2 * largest + SLACK):
        why = "The whole model was there at once: cut each module before you make the next." \
            if found["peak"] >= whole else ""
        lab.wrong(f"{who}, it held {found['peak']:_} bytes at the most, and {limit:_} are allowed: the slices, one "
                  f"module, and one of its parameters a second time. {why}".rstrip())


def _judge_entries(lab: Lab, slices, right: dict, rank: int, world: int, who: str) -> None:
    """Names, kinds and sizes."""
    if not isinstance(slices, dict):
        lab.wrong(f"{who}, it returned {value_text(slices)}, {a(slices)}, where a dictionary of slices is right")
    if "head.weight" in slices:
        lab.wrong(f"{who}, it has an entry `head.weight`: that is the tensor of `embed.weight` under its second name. "
                  "It has one slice, under its first name.")
    if missing := [name for name in right if name not in slices]:
        lab.wrong(f"{who}, it has no slice of {', '.join(f'`{name}`' for name in missing[:3])}. Go through every "
                  "module that has parameters of its own.")
    if extra := [name for name in slices if name not in right]:
        lab.wrong(f"{who}, it has an entry {extra[0]!r}, which is no parameter: the keys are the first names in "
                  "named_parameters().")
    for name, value in right.items():
        got, count = slices[name], value.numel()
        size = -(-count // world)
        if not isinstance(got, torch.Tensor) or got.is_meta:
            lab.wrong(f"{who}, the slice of `{name}` is {a(got)}{' on the meta device' * hasattr(got, 'is_meta')}, "
                      f"where a real tensor of {size:_} elements is right")
        if got.shape != (size,) or got.dtype != value.dtype:
            last = max(0, min(size, count - rank * size))
            why = ("A slice has the dtype of its parameter." if got.shape == (size,) else
                   "Nothing is cut: that is the whole parameter." if world > 1 and got.numel() == count != size else
                   "The last slices are padded with zeros: all ranks hold the same number of elements."
                   if got.shape == (last,) else
                   "You rounded down: a slice is rounded up, or the last elements belong to nobody."
                   if got.shape == (count // world,) else "A slice is 1-D." if got.numel() == size else "")
            lab.wrong(f"{who}, the slice of `{name}` ({count:_} elements) is {got.dtype} of shape {tuple(got.shape)}, "
                      f"and {value.dtype} of shape ({size},) is right. {why}".rstrip())


def _why_values(lab: Lab, slices: dict, right: dict, name: str, rank: int, world: int) -> str:
    """The misunderstanding that gives these values, in a sentence."""
    got, value = slices[name], right[name].flatten()
    if bool(got.isnan().any()) and bool(got.isnan().all()):
        return "It is memory without values: call the module's reset_parameters() before you cut."
    size = -(-value.numel() // world)
    real = max(0, min(size, value.numel() - rank * size))
    if torch.equal(got[:real], value[rank * size:rank * size + real]):
        return "The padding behind the last element has to be zeros."
    if bool(got.isnan().any()):
        return "Some of it is memory without values."
    if rank and torch.equal(got, torch.nn.functional.pad(value, (0, size))[:size]):
        return "That is rank 0's slice: rank r has the elements from r * size on."
    if torch.equal(got[:real], value[rank::world][:real]):
        return "You dealt the elements out like cards: a slice is a run of neighbours."
    if world > 1:
        return ("With 1 rank they were right: neither the rank nor the number of ranks may change what is drawn, so "
                "seed with seed and name alone, draw the whole parameter, and cut then.")
    if all(torch.equal(slices[key], other.flatten()) for key, other in probe.whole_values(7, tied_again=True).items()):
        return "The head draws the tied tensor a second time, with the head's own numbers: its first name alone counts."
    one, two = "layers.0.weight", "layers.1.weight"
    if torch.equal(slices[one], slices[two]):
        return (f"`{one}` and `{two}` are equal. You seeded every module alike, and so layers of one shape are copies "
                "of one another: the whole name of the module belongs into the seed.")
    usual, late, wider = lab.run(probe.first_layer)[0]
    if not torch.equal(usual, late):
        return ("They depend on the state in which torch's generator was before: seed it anew for each module, from "
                "seed and name.")
    if not torch.equal(usual, wider):
        return (f"`{one}` changes when the embedding before it has one more row. You seeded once, or not before each "
                "`reset_parameters()`: then the numbers depend on all that was drawn before. Seed anew for each "
                "module, from its name.")
    return ("Is the seed zlib.crc32 of the text `seed:name of the module`, set just before the module's "
            "reset_parameters()?")
