"""Wrong answers of chapter 02, the same mistakes by another hand."""

import copy
import hashlib
import itertools
import math
import random
import zlib

import torch
import torch.nn.functional as F
from torch import nn
from wrong_answers import wrong


# 2.1 ----------------------------------------------------------------------------------------------------------------

@wrong("2.1", "You counted elements")
def products_of_shapes(model):
    result = dict.fromkeys(("parameters", "buffers", "now"), 0)
    for _, p in model.named_parameters():
        result["parameters"] += math.prod(p.shape)
        if p.device != torch.device("meta"):
            result["now"] += math.prod(p.shape)
    for _, b in model.named_buffers():
        result["buffers"] += math.prod(b.shape)
        if b.device != torch.device("meta"):
            result["now"] += math.prod(b.shape)
    return result


@wrong("2.1", "4 bytes for every element: each dtype")
def size_of_the_default_dtype(model):
    width = torch.get_default_dtype().itemsize

    def weigh(tensors):
        return sum(width * t.numel() for t in tensors)

    def here(tensors):
        return filter(lambda t: not t.is_meta, tensors)

    return {"parameters": weigh(model.parameters()), "buffers": weigh(model.buffers()),
            "now": weigh(here(model.parameters())) + weigh(here(model.buffers()))}


@wrong("2.1", "counted the tied tensor twice")
def module_by_module(model):
    out = {"parameters": 0, "buffers": 0, "now": 0}
    for module in model.modules():
        for kind, own in (("parameters", module._parameters), ("buffers", module._buffers)):
            for t in own.values():
                if t is None:
                    continue
                out[kind] += t.numel() * t.itemsize
                out["now"] += (not t.is_meta) * t.numel() * t.itemsize
    return out


@wrong("2.1", "left out the frozen layer")
def skips_frozen(model):
    total = {"parameters": 0, "buffers": 0, "now": 0}
    for p in model.parameters():
        if not p.requires_grad:
            continue
        total["parameters"] += p.nelement() * p.element_size()
        total["now"] += 0 if p.is_meta else p.nelement() * p.element_size()
    for b in model.buffers():
        total["buffers"] += b.nelement() * b.element_size()
        total["now"] += 0 if b.is_meta else b.nelement() * b.element_size()
    return total


@wrong("2.1", "buffer that is not persistent: it is in no state_dict")
def what_would_be_saved(model):
    unique = {id(t): t for t in model.state_dict(keep_vars=True).values()}
    params = buffers = now = 0
    for t in unique.values():
        nbytes = t.numel() * t.element_size()
        if isinstance(t, nn.Parameter):
            params += nbytes
        else:
            buffers += nbytes
        if not t.is_meta:
            now += nbytes
    return {"parameters": params, "buffers": buffers, "now": now}


@wrong("2.1", "storage says one too")
def has_a_storage(model):
    answer = {"parameters": 0, "buffers": 0, "now": 0}
    for kind in ("parameters", "buffers"):
        for t in getattr(model, kind)():
            answer[kind] += t.numel() * t.element_size()
            if t.untyped_storage().size() > 0:
                answer["now"] += t.numel() * t.element_size()
    return answer


@wrong("2.1", "the buffers are real already")
def all_or_nothing(model):
    params = sum(p.numel() * p.element_size() for p in model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    on_meta = any(p.is_meta for p in model.parameters())
    return {"parameters": params, "buffers": buffers, "now": 0 if on_meta else params + buffers}


@wrong("2.1", "decided once for the whole model")
def real_if_no_parameter_is_planned(model):
    result, devices = {"parameters": 0, "buffers": 0, "now": 0}, set()
    for p in model.parameters():
        result["parameters"] += p.numel() * p.itemsize
        devices.add(p.device.type)
    for b in model.buffers():
        result["buffers"] += b.numel() * b.itemsize
        if b.device.type != "meta":
            result["now"] += b.numel() * b.itemsize
    if "meta" not in devices:
        result["now"] += result["parameters"]
    return result


# 2.2 ----------------------------------------------------------------------------------------------------------------

@wrong("2.2", "You found no tie")
def compares_the_default_list(model):
    pairs = list(model.named_parameters())
    result, done = [], set()
    for name, p in pairs:
        if name in done:
            continue
        same = [other for other, q in pairs if q is p]
        done.update(same)
        if len(same) >= 2:
            result.append(same)
    return result


@wrong("2.2", "compared shapes")
def alike(model):
    every = list(model.named_parameters(remove_duplicate=False))
    result = []
    for name, p in every:
        group = [n for n, q in every if q.size() == p.size() and q.dtype == p.dtype]
        if len(group) > 1 and group not in result:
            result.append(group)
    return result


@wrong("2.2", "compared addresses")
def storage_pointers(model):
    where = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        pointer = p.untyped_storage().data_ptr()
        if pointer not in where:
            where[pointer] = []
        where[pointer].append(name)
    return list(filter(lambda names: len(names) > 1, where.values()))


@wrong("2.2", "You compared values")
def close_values(model):
    every = list(model.named_parameters(remove_duplicate=False))
    used, result = set(), []
    for i, (name, p) in enumerate(every):
        if name in used:
            continue
        group = [name]
        for other, q in every[i + 1:]:
            if p.shape == q.shape and bool((p == q).all()):
                group.append(other)
        used.update(group)
        if len(group) > 1:
            result.append(group)
    return result


@wrong("2.2", "You returned pairs")
def combinations(model):
    every = list(model.named_parameters(remove_duplicate=False))
    return [[a, b] for (a, p), (b, q) in itertools.combinations(every, 2) if p is q]


@wrong("2.2", "module that is registered twice")
def walks_each_module_once(model):
    names, visited = {}, set()

    def walk(module, prefix):
        if module in visited:
            return
        visited.add(module)
        for key, p in module.named_parameters(recurse=False, remove_duplicate=False):
            names[p] = names.get(p, []) + [prefix + key]
        for key, child in module._modules.items():
            if child is not None:
                walk(child, f"{prefix}{key}.")

    walk(model, "")
    return [group for group in names.values() if len(group) != 1]


# 2.3 ----------------------------------------------------------------------------------------------------------------

@wrong("2.3", "in neither, and nothing brings it back")
def missing_keys_of_a_copy(model, checkpoint):
    twin = copy.deepcopy(model).to_empty(device="cpu")
    return list(twin.load_state_dict(checkpoint, strict=False).missing_keys)


@wrong("2.3", "whether a buffer is persistent")
def the_registered_set(model, checkpoint):
    lost = []
    for prefix, module in model.named_modules():
        for key in module._buffers:
            if key in module._non_persistent_buffers_set:
                lost.append(f"{prefix}.{key}" if prefix else key)
    return lost


@wrong("2.3", "trusted the checkpoint's names")
def asks_the_checkpoint(model, checkpoint):
    lost = []
    for name, _ in model.named_parameters(remove_duplicate=False):
        if checkpoint.get(name) is None:
            lost.append(name)
    for name, _ in model.named_buffers():
        if checkpoint.get(name) is None:
            lost.append(name)
    return lost


@wrong("2.3", "You spared the real buffers")
def what_has_values_keeps_them(model, checkpoint):
    known = model.state_dict()
    lost = [n for n, p in model.named_parameters(remove_duplicate=False) if n not in checkpoint]
    for n, b in model.named_buffers():
        if b.device.type == "cpu":
            continue
        if n not in known or n not in checkpoint:
            lost.append(n)
    return lost


@wrong("2.3", "forgot the second name")
def one_name_each(model, checkpoint):
    loadable = set(checkpoint).intersection(model.state_dict())
    lost = []
    for listing in (model.named_parameters(), model.named_buffers()):
        lost.extend(name for name, _ in listing if name not in loadable)
    return lost


@wrong("2.3", "Only look at it")
def zeroed_in_place(model, checkpoint):
    model.to_empty(device="cpu")
    everything = dict(model.named_parameters(remove_duplicate=False))
    everything.update(model.named_buffers(remove_duplicate=False))
    kept = model.state_dict()
    with torch.no_grad():
        for tensor in everything.values():
            tensor.zero_()
    result = model.load_state_dict(checkpoint, strict=False)
    return [name for name in everything if name in result.missing_keys or name not in kept]


@wrong("2.3", "a parameter that the checkpoint does not have")
def parameters_are_loaded_anyway(model, checkpoint):
    state = model.state_dict()
    lost = []
    for prefix, module in model.named_modules():
        for key, _ in module.named_buffers(recurse=False):
            full = ".".join(filter(None, (prefix, key)))
            if full in state and full in checkpoint:
                continue
            lost.append(full)
    return lost


# 2.4 ----------------------------------------------------------------------------------------------------------------

def _digest(text):
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "big")


@wrong("2.4", "salts the hash")
def masked_hash(name, shape, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((name.__hash__() ^ seed) & 0x7FFFFFFF)
        return nn.init.normal_(torch.zeros(shape), mean=0.0, std=0.02)


@wrong("2.4", "in another state than before")
def normal_after_seeding(name, shape, seed):
    torch.random.manual_seed(_digest(name + "/" + str(seed)))
    values = torch.zeros(*shape)
    nn.init.normal_(values, std=0.02)
    return values


@wrong("2.4", "when it was called again")
def fresh_seed_each_time(name, shape, seed):
    source = torch.Generator("cpu")
    source.seed()
    return torch.normal(0.0, 0.02, shape, generator=source)


@wrong("2.4", "The name plays no part")
def forked_with_the_seed(name, shape, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        out = torch.zeros(shape)
        out.normal_(std=0.02)
    return out


@wrong("2.4", "the seed plays no part")
def digest_of_the_name(name, shape, seed):
    before = torch.get_rng_state()
    torch.manual_seed(_digest(name))
    out = torch.randn(shape).mul(0.02)
    torch.set_rng_state(before)
    return out


@wrong("2.4", "forgets the order")
def sorted_letters(name, shape, seed):
    source = torch.Generator()
    source.manual_seed(_digest(str(seed) + "".join(sorted(name))))
    return torch.normal(mean=torch.zeros(shape), std=0.02, generator=source)


@wrong("2.4", "end of the name only")
def last_two_parts(name, shape, seed):
    *_, layer, kind = ["", *name.split(".")]
    source = torch.Generator()
    source.manual_seed(_digest(f"{layer}.{kind} {seed}"))
    return torch.normal(0, 0.02, size=shape, generator=source)


@wrong("2.4", "The rank must play no part")
def a_stream_for_each_rank(name, shape, seed):
    source = torch.Generator().manual_seed(_digest(f"{name}|{seed}"))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for _ in range(torch.distributed.get_rank()):
            torch.randn(shape, generator=source)
    return torch.randn(shape, generator=source) * 0.02


@wrong("2.4", "standard deviation of 1")
def standard_normal(name, shape, seed):
    number = _digest(f"{seed} {name}")
    return torch.normal(mean=0.0, std=1.0, size=tuple(shape), generator=torch.Generator().manual_seed(number))


@wrong("2.4", "Did you draw from a uniform one")
def init_uniform(name, shape, seed):
    source = torch.Generator()
    source.manual_seed(_digest(f"{seed}{name}"))
    bound = math.sqrt(12) * 0.02 / 2
    return torch.empty(shape).uniform_(-bound, bound, generator=source)


@wrong("2.4", "evenly between -0.02 and 0.02")
def one_by_one_from_python(name, shape, seed):
    source = random.Random(f"{seed}:{name}")
    values = [source.uniform(-0.02, 0.02) for _ in range(math.prod(shape))]
    return torch.tensor(values).reshape(shape)


# 2.5 ----------------------------------------------------------------------------------------------------------------

def _drawn(model, seed):
    """One module after the other: yields first name and real values, and puts the meta parameter back afterwards."""
    first = {}
    for name, p in model.named_parameters():
        first[p] = name
    before, done = torch.get_rng_state(), set()
    for prefix, module in model.named_modules():
        todo = [(key, p) for key, p in module.named_parameters(recurse=False) if p not in done]
        if todo:
            done.update(p for _, p in todo)
            for key, p in todo:
                setattr(module, key, nn.Parameter(torch.zeros(p.shape, dtype=p.dtype)))
            torch.manual_seed(zlib.crc32(bytes(f"{seed}:{prefix}", "ascii")))
            module.reset_parameters()
            for key, p in todo:
                yield first[p], getattr(module, key).data.view(-1)
                setattr(module, key, p)
    torch.set_rng_state(before)


def _share(row, rank, world_size):
    length = math.ceil(len(row) / world_size)
    share = torch.zeros(length, dtype=row.dtype)
    for at, value in enumerate(row[length * rank:length * (rank + 1)]):
        share[at] = value
    return share


@wrong("2.5", "A slice is a view")
def unbound_rows(model, rank, world_size, seed):
    found = {}
    for name, row in _drawn(model, seed):
        length = math.ceil(row.numel() / world_size)
        table = torch.zeros(length * world_size, dtype=row.dtype)
        table[:row.numel()] = row
        found[name] = table.reshape(world_size, length).unbind()[rank]
    return found


@wrong("2.5", "whole model was there at once")
def two_passes(model, rank, world_size, seed):
    names = {id(p): name for name, p in model.named_parameters()}
    drawn, found = {}, {}
    state = torch.random.get_rng_state()
    for prefix, module in model.named_modules():
        mine = {k: p for k, p in module._parameters.items() if p is not None and id(p) in names and
                names[id(p)] not in drawn}
        if mine:
            for key, p in mine.items():
                drawn[names[id(p)]] = (module, key, p)
                module._parameters[key] = nn.Parameter(torch.empty_like(p, device="cpu"))
            torch.manual_seed(zlib.crc32(f"{seed}:{prefix}".encode()))
            module.reset_parameters()
    for name, (module, key, p) in drawn.items():
        found[name] = _share(module._parameters[key].detach().ravel(), rank, world_size)
        module._parameters[key] = p
    torch.random.set_rng_state(state)
    return found


@wrong("2.5", "The head draws the tied tensor")
def last_one_draws(model, rank, world_size, seed):
    names = {p: name for name, p in model.named_parameters()}
    home = {}
    for prefix, module in model.named_modules():
        for key, p in module.named_parameters(recurse=False):
            home[p] = prefix
    found = {}
    with torch.random.fork_rng(devices=[]):
        for prefix, module in model.named_modules():
            old = {key: p for key, p in module.named_parameters(recurse=False) if home[p] == prefix}
            if len(old) == 0:
                continue
            for key, p in old.items():
                module.register_parameter(key, nn.Parameter(torch.empty(p.shape, dtype=p.dtype)))
            torch.manual_seed(zlib.crc32(f"{seed}:{prefix}".encode()))
            module.reset_parameters()
            for key, p in old.items():
                found[names[p]] = _share(getattr(module, key).detach().flatten(), rank, world_size)
                module.register_parameter(key, p)
    return {name: found[name] for name in names.values()}


@wrong("2.5", "tensor of `embed.weight` under its second name")
def every_name(model, rank, world_size, seed):
    shares = {name: _share(row, rank, world_size) for name, row in _drawn(model, seed)}
    params = dict(model.named_parameters(remove_duplicate=False))
    return {name: next(shares[known] for known in shares if params[known] is p) for name, p in params.items()}


@wrong("2.5", "With 1 rank they were right")
def draws_once_per_rank(model, rank, world_size, seed):
    found = {}
    rng = torch.get_rng_state()
    names = {p: name for name, p in model.named_parameters()}
    for prefix, module in model.named_modules():
        own = [(key, p) for key, p in module.named_parameters(recurse=False) if names[p] not in found]
        if not own:
            continue
        for key, p in own:
            setattr(module, key, nn.Parameter(torch.empty(p.size(), dtype=p.dtype)))
        torch.manual_seed(zlib.crc32(f"{seed}:{prefix}".encode()))
        for _ in range(rank + 1):
            module.reset_parameters()
        for key, p in own:
            found[names[p]] = _share(getattr(module, key).detach().flatten(), rank, world_size)
            setattr(module, key, p)
    torch.set_rng_state(rng)
    return found


@wrong("2.5", "That is rank 0's slice")
def first_of_the_split(model, rank, world_size, seed):
    return {name: row.split(-(-len(row) // world_size))[0].clone() for name, row in _drawn(model, seed)}


@wrong("2.5", "You seeded once")
def seeded_before_the_loop(model, rank, world_size, seed):
    done = {}
    names = {id(p): name for name, p in model.named_parameters()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(f"{seed}:".encode()))
        for module in model.modules():
            kept = []
            for key, p in list(module._parameters.items()):
                if p is not None and names[id(p)] not in done:
                    kept.append((key, p))
                    module._parameters[key] = nn.Parameter(torch.empty_like(p, device="cpu"))
            if kept:
                module.reset_parameters()
            for key, p in kept:
                done[names[id(p)]] = _share(module._parameters[key].detach().view(-1), rank, world_size)
                module._parameters[key] = p
    return done


@wrong("2.5", "state in which torch's generator was before")
def seeds_a_generator_of_its_own(model, rank, world_size, seed):
    names, found = {p: name for name, p in model.named_parameters()}, {}
    with torch.random.fork_rng(devices=[]):
        for prefix, module in model.named_modules():
            todo = [(key, p) for key, p in module.named_parameters(recurse=False) if names[p] not in found]
            if not todo:
                continue
            source = torch.Generator()
            source.manual_seed(zlib.crc32(f"{seed}:{prefix}".encode()))
            for key, p in todo:
                setattr(module, key, nn.Parameter(torch.empty_like(p, device="cpu")))
            module.reset_parameters()
            for key, p in todo:
                found[names[p]] = _share(getattr(module, key).detach().flatten(), rank, world_size)
                setattr(module, key, p)
    return found


@wrong("2.5", "You seeded every module alike")
def seed_without_a_name(model, rank, world_size, seed):
    number, done = zlib.crc32(str(seed).encode()), {}
    names = {id(p): name for name, p in model.named_parameters()}
    with torch.random.fork_rng(devices=[]):
        for module in model.modules():
            kept = {key: p for key, p in module._parameters.items() if p is not None and names[id(p)] not in done}
            if kept:
                module._parameters.update({key: nn.Parameter(torch.empty_like(p, device="cpu"))
                                           for key, p in kept.items()})
                torch.manual_seed(number)
                module.reset_parameters()
                done.update({names[id(p)]: _share(module._parameters[key].detach().flatten(), rank, world_size)
                             for key, p in kept.items()})
                module._parameters.update(kept)
    return done


@wrong("2.5", "`to_empty()` gives buffers new memory")
def applied_to_all_tensors(model, rank, world_size, seed):
    names, done = {id(p): name for name, p in model.named_parameters()}, {}
    with torch.random.fork_rng(devices=[]):
        for prefix, module in model.named_modules():
            plan = dict(module.named_parameters(recurse=False))
            fresh = [key for key in plan if names[id(plan[key])] not in done]
            if not fresh:
                continue
            module._apply(lambda t: torch.empty_like(t, device="cpu"), recurse=False)
            for key in plan.keys() - set(fresh):
                module._parameters[key] = plan[key]
            torch.manual_seed(zlib.crc32(f"{seed}:{prefix}".encode()))
            module.reset_parameters()
            for key in fresh:
                done[names[id(plan[key])]] = _share(module._parameters[key].detach().flatten(), rank, world_size)
                module._parameters[key] = plan[key]
    return done


@wrong("2.5", "You rounded down")
def a_table_without_the_rest(model, rank, world_size, seed):
    found = {}
    for name, row in _drawn(model, seed):
        length = len(row) // world_size
        found[name] = row[:length * world_size].reshape(world_size, length)[rank].clone()
    return found


@wrong("2.5", "padded with zeros: all ranks hold")
def what_split_gives(model, rank, world_size, seed):
    found = {}
    for name, row in _drawn(model, seed):
        parts = row.split(math.ceil(row.numel() / world_size))
        found[name] = parts[rank].clone() if rank < len(parts) else torch.zeros(0, dtype=row.dtype)
    return found


@wrong("2.5", "Put the meta parameters back")
def replaced_for_good(model, rank, world_size, seed):
    found, ties = {}, {}
    for name, p in model.named_parameters():
        ties[p] = name
    with torch.random.fork_rng(devices=[]):
        for prefix, module in model.named_modules():
            planned = {k: v for k, v in module.named_parameters(recurse=False) if ties[v] not in found}
            for key, p in planned.items():
                setattr(module, key, nn.Parameter(torch.empty_like(p, device="cpu")))
            if planned:
                torch.manual_seed(zlib.crc32(f"{seed}:{prefix}".encode()))
                module.reset_parameters()
            for key, p in planned.items():
                row = F.pad(getattr(module, key).detach().flatten(), (0, -p.numel() % world_size))
                found[ties[p]] = row.chunk(world_size)[rank].clone()
    return found


@wrong("2.5", "memory without values")
def made_real_only(model, rank, world_size, seed):
    found = {}
    for name, p in model.named_parameters():
        real = torch.empty_like(p, device="cpu").detach().flatten()
        found[name] = _share(real, rank, world_size)
    return found
