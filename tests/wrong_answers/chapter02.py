"""Wrong answers of chapter 02."""

import zlib

import torch
from torch import nn

from wrong_answers import wrong

# 2.1 ----------------------------------------------------------------------------------------------------------------

@wrong("2.1", "You counted elements")
def elements(model):
    counts = {"parameters": sum(param.numel() for param in model.parameters()), "buffers": 0, "now": 0}
    for buffer in model.buffers():
        counts["buffers"] += buffer.numel()
    return counts


@wrong("2.1", "4 bytes for every element: each dtype")
def always_four(model):
    params, buffers = list(model.parameters()), list(model.buffers())
    real = [tensor for tensor in params + buffers if tensor.device.type != "meta"]
    return dict(zip(("parameters", "buffers", "now"), (4 * sum(t.numel() for t in kind)
                                                       for kind in (params, buffers, real)), strict=True))


@wrong("2.1", "counted the tied tensor twice")
def by_state_dict(model):
    of_params = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    counts = {"parameters": 0, "buffers": 0, "now": 0}
    for name, tensor in model.state_dict().items():
        kind = "parameters" if name in of_params else "buffers"
        counts[kind] += tensor.nbytes
        counts["now"] += 0 if tensor.is_meta else tensor.nbytes
    return counts


@wrong("2.1", "left out the frozen layer")
def trained_only(model):
    params = sum(param.nbytes for param in model.parameters() if param.requires_grad)
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    return {"parameters": params, "buffers": buffers, "now": sum(b.nbytes for b in model.buffers() if not b.is_meta)}


@wrong("2.1", "buffer that is not persistent: it is in no state_dict")
def persistent_only(model):
    params = {name: param for name, param in model.named_parameters()}
    buffers = {name: value for name, value in model.state_dict().items() if name in dict(model.named_buffers())}
    real = [tensor for tensor in (*params.values(), *buffers.values()) if not tensor.is_meta]
    return {"parameters": sum(p.nbytes for p in params.values()), "buffers": sum(b.nbytes for b in buffers.values()),
            "now": sum(tensor.nbytes for tensor in real)}


@wrong("2.1", "storage says one too")
def storages_of_meta(model):
    storages = {}
    for tensor in (*model.parameters(), *model.buffers()):
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    return {"parameters": sum(param.nbytes for param in model.parameters()),
            "buffers": sum(buffer.nbytes for buffer in model.buffers()), "now": sum(storages.values())}


@wrong("2.1", "decided once for the whole model")
def device_of_the_first(model):
    params = sum(param.nbytes for param in model.parameters())
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    real = [tensor for tensor in model.buffers() if not tensor.is_meta]
    now = sum(map(lambda tensor: tensor.nbytes, real))
    if not next(model.parameters()).is_meta:
        now += params
    return {"parameters": params, "buffers": buffers, "now": now}


# 2.2 ----------------------------------------------------------------------------------------------------------------

def _groups(pairs):
    groups = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


@wrong("2.2", "You found no tie")
def without_duplicates(model):
    return _groups((id(param), name) for name, param in model.named_parameters())


@wrong("2.2", "You found no tie")
def without_duplicates_in_a_loop(model):
    found, seen = [], {}
    for name, param in model.named_parameters():
        if param in seen:
            found.append([seen[param], name])
        seen[param] = name
    return found


@wrong("2.2", "compared shapes")
def by_shape(model):
    return _groups((tuple(param.shape), name) for name, param in model.named_parameters(remove_duplicate=False))


@wrong("2.2", "compared addresses")
def by_address(model):
    return _groups((param.data_ptr(), name) for name, param in model.named_parameters(remove_duplicate=False))


@wrong("2.2", "You compared values")
def by_value(model):
    found = []
    for name, param in model.named_parameters(remove_duplicate=False):
        for names, first in found:
            if first is param or first.shape == param.shape and torch.equal(first, param):
                names.append(name)
                break
        else:
            found.append(([name], param))
    return [names for names, _ in found if names[1:]]


@wrong("2.2", "You returned pairs")
def pairs(model):
    first, found = {}, []
    for name, param in model.named_parameters(remove_duplicate=False):
        if id(param) in first:
            found.append([first[id(param)], name])
        first.setdefault(id(param), name)
    return found


@wrong("2.2", "module that is registered twice")
def by_modules(model):
    return _groups((id(param), f"{prefix}.{key}") for prefix, module in model.named_modules()
                   for key, param in module._parameters.items() if param is not None)


# 2.3 ----------------------------------------------------------------------------------------------------------------

def _all(model):
    return [name for name, _ in (*model.named_parameters(remove_duplicate=False), *model.named_buffers())]


@wrong("2.3", "in neither, and nothing brings it back")
def of_state_dict(model, checkpoint):
    return [name for name in model.state_dict() if name not in checkpoint]


@wrong("2.3", "whether a buffer is persistent")
def not_persistent_only(model, checkpoint):
    kept = set(model.state_dict())
    return [name for name, _ in model.named_buffers() if name not in kept]


@wrong("2.3", "trusted the checkpoint's names")
def by_names(model, checkpoint):
    return [name for name in _all(model) if name not in set(checkpoint)]


@wrong("2.3", "You spared the real buffers")
def meta_only(model, checkpoint):
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    filled = [name for name in checkpoint if name in model.state_dict()]
    return [name for name, tensor in tensors.items() if tensor.is_meta and name not in filled]


@wrong("2.3", "forgot the second name")
def first_names(model, checkpoint):
    names = [name for name, _ in model.named_parameters()] + [name for name, _ in model.named_buffers()]
    return [name for name in names if name not in checkpoint or name not in model.state_dict()]


@wrong("2.3", "Only look at it")
def by_doing_it(model, checkpoint):
    model.to_empty(device="cpu")
    missing, _ = model.load_state_dict(checkpoint, strict=False)
    kept = model.state_dict()
    return [name for name in _all(model) if name in missing or name not in kept]


@wrong("2.3", "a parameter that the checkpoint does not have")
def buffers_only(model, checkpoint):
    filled = checkpoint.keys() & model.state_dict().keys()
    return [name for name, _ in model.named_buffers() if name not in filled]


# 2.4 ----------------------------------------------------------------------------------------------------------------

def _normal(number, shape):
    return torch.empty(shape).normal_(0, 0.02, generator=torch.Generator().manual_seed(number))


@wrong("2.4", "salts the hash")
def by_hash(name, shape, seed):
    return _normal(hash(f"{seed}{name}") % 2**32, shape)


@wrong("2.4", "salts the hash")
def by_hash_of_a_pair(name, shape, seed):
    generator = torch.Generator()
    generator.manual_seed(abs(hash((name, seed))))
    return torch.randn(*shape, generator=generator) * 0.02


@wrong("2.4", "in another state than before")
def seeds_the_global_one(name, shape, seed):
    torch.manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
    return torch.randn(shape) * 0.02


@wrong("2.4", "when it was called again")
def never_seeded(name, shape, seed):
    return torch.randn(shape) * 0.02


@wrong("2.4", "The name plays no part")
def seed_alone(name, shape, seed):
    return _normal(seed, shape)


@wrong("2.4", "the seed plays no part")
def name_alone(name, shape, seed):
    return _normal(zlib.crc32(name.encode()), shape)


@wrong("2.4", "the seed plays no part")
def seed_above_32_bits(name, shape, seed):
    return _normal(seed * 2**32 + zlib.crc32(name.encode()), shape)


@wrong("2.4", "forgets the order")
def letters_added_up(name, shape, seed):
    return _normal(1000003 * seed + sum(map(ord, name)), shape)


@wrong("2.4", "end of the name only")
def last_part(name, shape, seed):
    return _normal(zlib.crc32(f"{seed}.{name.split('.')[-1]}".encode()), shape)


@wrong("2.4", "The rank must play no part")
def by_rank(name, shape, seed):
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    return _normal(zlib.crc32(f"{seed + rank}:{name}".encode()), shape)


@wrong("2.4", "standard deviation of 1")
def not_scaled(name, shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode())))


@wrong("2.4", "Did you draw from a uniform one")
def uniform(name, shape, seed):
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{seed}".encode()))
    return (2 * torch.rand(shape, generator=generator) - 1) * 0.02 * 3**0.5


@wrong("2.4", "evenly between -0.02 and 0.02")
def between_the_deviations(name, shape, seed):
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{seed}".encode()))
    return torch.empty(shape).uniform_(-0.02, 0.02, generator=generator)


# 2.5 ----------------------------------------------------------------------------------------------------------------

def _seed(seed, name):
    return zlib.crc32(f"{seed}:{name}".encode())


def _padded(row, rank, world_size):
    size = -(-row.numel() // world_size)
    out = row.new_zeros(size)
    mine = row[rank * size:(rank + 1) * size]
    out[:len(mine)] = mine
    return out


def _made(model, rank, world_size, seed, cut=_padded, number=_seed, once=False, again=False, empty=False, back=True):
    """A right answer, and its mistakes."""
    names = {param: name for name, param in model.named_parameters()}
    found = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for prefix, module in model.named_modules():
            own = {key: param for key, param in module._parameters.items()
                   if param is not None and (again or names[param] not in found)}
            if not own:
                continue
            if empty:
                module.to_empty(device="cpu", recurse=False)
            else:
                for key, param in own.items():
                    module._parameters[key] = nn.Parameter(torch.empty_like(param, device="cpu"))
            if not once:
                torch.manual_seed(number(seed, prefix))
            module.reset_parameters()
            for key, param in own.items():
                found[names[param]] = cut(module._parameters[key].detach().reshape(-1), rank, world_size)
                if back:
                    module._parameters[key] = param
    return found


@wrong("2.5", "A slice is a view")
def views(model, rank, world_size, seed):
    def cut(row, rank, world_size):
        size = -(-row.numel() // world_size)
        if row.numel() < world_size * size:
            row = nn.functional.pad(row, (0, world_size * size - row.numel()))
        return row[rank * size:(rank + 1) * size]
    return _made(model, rank, world_size, seed, cut)


@wrong("2.5", "A slice is a view")
def views_by_chunk(model, rank, world_size, seed):
    return _made(model, rank, world_size, seed, lambda row, rank, n: nn.functional.pad(
        row, (0, -len(row) % n)).view(n, -1)[rank])


@wrong("2.5", "whole model was there at once")
def all_of_it_first(model, rank, world_size, seed):
    whole = _made(model, 0, 1, seed)
    return {name: _padded(row, rank, world_size) for name, row in whole.items()}


@wrong("2.5", "The head draws the tied tensor")
def tied_drawn_again(model, rank, world_size, seed):
    return _made(model, rank, world_size, seed, again=True)


@wrong("2.5", "tensor of `embed.weight` under its second name")
def both_names(model, rank, world_size, seed):
    found = _made(model, rank, world_size, seed)
    for name, _ in model.named_parameters(remove_duplicate=False):
        if name not in found:
            found[name] = found["embed.weight"].clone()
    return found


@wrong("2.5", "With 1 rank they were right")
def rank_in_the_seed(model, rank, world_size, seed):
    return _made(model, rank, world_size, seed, number=lambda seed, name: _seed(seed + rank, name))


@wrong("2.5", "That is rank 0's slice")
def always_the_first_slice(model, rank, world_size, seed):
    return _made(model, 0, world_size, seed)


@wrong("2.5", "With 1 rank they were right")
def draws_the_slice(model, rank, world_size, seed):
    found = _made(model, rank, world_size, seed)
    with torch.random.fork_rng(devices=[]):
        for name in found if world_size > 1 else ():
            torch.manual_seed(_seed(seed, name))
            found[name].uniform_(-0.1, 0.1)
    return found


@wrong("2.5", "You seeded once")
def seeded_once(model, rank, world_size, seed):
    return _made(model, rank, world_size, seed, once=True)


@wrong("2.5", "state in which torch's generator was before")
def goes_on_from_there(model, rank, world_size, seed):
    before = torch.get_rng_state()
    names, found = {param: name for name, param in model.named_parameters()}, {}
    for module in model.modules():
        own = {key: param for key, param in module.named_parameters(recurse=False) if names[param] not in found}
        module._parameters |= {key: nn.Parameter(torch.empty_like(param, device="cpu")) for key, param in own.items()}
        if own:
            module.reset_parameters()
        for key, param in own.items():
            found[names[param]] = _padded(module._parameters[key].detach().flatten(), rank, world_size)
        module._parameters |= own
    torch.set_rng_state(before)
    return found


@wrong("2.5", "You seeded every module alike")
def seeded_by_its_class(model, rank, world_size, seed):
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    return _made(model, rank, world_size, seed, number=lambda seed, name: _seed(seed, kinds[name]))


@wrong("2.5", "You seeded every module alike")
def seeded_alike(model, rank, world_size, seed):
    return _made(model, rank, world_size, seed, number=lambda seed, name: seed)


@wrong("2.5", "`to_empty()` gives buffers new memory")
def buffers_lost(model, rank, world_size, seed):
    return _made(model, rank, world_size, seed, empty=True)


@wrong("2.5", "You rounded down")
def rounded_down(model, rank, world_size, seed):
    def cut(row, rank, world_size):
        size = row.numel() // world_size
        return row.narrow(0, size * rank, size).clone()
    return _made(model, rank, world_size, seed, cut)


@wrong("2.5", "padded with zeros: all ranks hold")
def not_padded(model, rank, world_size, seed):
    def cut(row, rank, world_size):
        size = -(-row.numel() // world_size)
        return row[rank * size:(rank + 1) * size].clone()
    return _made(model, rank, world_size, seed, cut)


@wrong("2.5", "Put the meta parameters back")
def left_real(model, rank, world_size, seed):
    return _made(model, rank, world_size, seed, back=False)


@wrong("2.5", "memory without values")
def never_reset(model, rank, world_size, seed):
    found, size = {}, 0
    for name, param in model.named_parameters():
        size = -(-param.numel() // world_size)
        found[name] = torch.empty(size, dtype=param.dtype)
    return found


@wrong("2.5", "torch.bfloat16 of shape")
def always_fp32(model, rank, world_size, seed):
    return {name: part.float() for name, part in _made(model, rank, world_size, seed).items()}
