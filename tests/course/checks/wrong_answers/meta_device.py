"""Wrong answers of chapter 02."""

import random
import zlib

import torch
from torch import nn

from wrong_answers import wrong


@wrong("2.1", "tied twice")
def by_state_dict(model):
    of_params = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    counts = {"parameters": 0, "buffers": 0, "now": 0}
    for name, tensor in model.state_dict().items():
        counts["parameters" if name in of_params else "buffers"] += tensor.nbytes
        counts["now"] += 0 if tensor.is_meta else tensor.nbytes
    return counts


@wrong("2.2", "pairs")
def each_name_with_the_first(model):
    first, found = {}, []
    for name, param in model.named_parameters(remove_duplicate=False):
        if id(param) in first:
            found.append([first[id(param)], name])
        first.setdefault(id(param), name)
    return found


@wrong("2.2", "module twice")
def walks_each_module_once(model):
    names, visited = {}, set()

    def walk(module, prefix):
        if module in visited:
            return
        visited.add(module)
        for key, param in module.named_parameters(recurse=False, remove_duplicate=False):
            names.setdefault(param, []).append(prefix + key)
        for key, child in module.named_children():
            walk(child, f"{prefix}{key}.")

    walk(model, "")
    return [group for group in names.values() if len(group) > 1]


@wrong("2.3", "changed")
def zeroed_in_place(model, checkpoint):
    model.to_empty(device="cpu")
    everything = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    kept = model.state_dict()
    with torch.no_grad():
        for tensor in everything.values():
            tensor.zero_()
    missing, _ = model.load_state_dict(checkpoint, strict=False)
    return [name for name in everything if name in missing or name not in kept]


@wrong("2.4", "evenly")
def one_by_one_from_python(name, shape, seed):
    source = random.Random(f"{seed}:{name}")
    values = [source.uniform(-0.02, 0.02) for _ in range(torch.Size(shape).numel())]
    return torch.tensor(values).reshape(shape)


@wrong("2.4", "hash")
def masked_hash(name, shape, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((name.__hash__() ^ seed) & 0x7FFFFFFF)
        return nn.init.normal_(torch.zeros(shape), mean=0.0, std=0.02)


def drawn(model, seed):
    """One module after the other: first names and real values."""
    first, done, before = {p: name for name, p in model.named_parameters()}, set(), torch.get_rng_state()
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


@wrong("2.5", "views")
def unbound_rows(model, rank, world_size, seed):
    found = {}
    for name, row in drawn(model, seed):
        table = torch.zeros(-(-row.numel() // world_size) * world_size, dtype=row.dtype)
        table[:row.numel()] = row
        found[name] = table.reshape(world_size, -1).unbind()[rank]
    return found


@wrong("2.5", "seeded once")
def seeded_before_the_loop(model, rank, world_size, seed):
    names, found = {p: name for name, p in model.named_parameters()}, {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(f"{seed}:".encode()))
        for module in model.modules():
            mine = {key: p for key, p in module.named_parameters(recurse=False) if names[p] not in found}
            for key, p in mine.items():
                module._parameters[key] = nn.Parameter(torch.empty_like(p, device="cpu"))
            if mine:
                module.reset_parameters()
            for key, p in mine.items():
                row, module._parameters[key] = module._parameters[key].detach().flatten(), p
                found[names[p]] = nn.functional.pad(row, (0, -len(row) % world_size)).view(world_size, -1)[rank].clone()
    return found


# 02.w1 --------------------------------------------------------------------------------------------------------------

@wrong("02.w1", "copies")
def draws_its_part(rows, rank, world_size, seed):
    torch.manual_seed(seed)
    return torch.randn(rows // world_size, 2)


@wrong("02.w1", "seed by rank")
def seed_and_rank(rows, rank, world_size, seed):
    mine = torch.Generator().manual_seed(seed + rank)
    return torch.randn(rows // world_size, 2, generator=mine)


@wrong("02.w1", "view")
def a_chunk(rows, rank, world_size, seed):
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed)).chunk(world_size)[rank]


@wrong("02.w1", "in turn")
def every_nth(rows, rank, world_size, seed):
    torch.manual_seed(seed)
    whole = torch.randn(rows, 2)
    return torch.stack([whole[row] for row in range(rows) if row % world_size == rank])


# 02.w2 --------------------------------------------------------------------------------------------------------------

@wrong("02.w2", "untied")
def name_by_name(model):
    for path, param in list(model.named_parameters(remove_duplicate=False)):
        module, _, name = path.rpartition(".")
        new = torch.nn.Parameter(torch.zeros_like(param, device="cpu"), requires_grad=param.requires_grad)
        setattr(model.get_submodule(module), name, new)


@wrong("02.w2", "thawed")
def parameter_of_zeros(model):
    new = {}
    for module in model.modules():
        for name in module._parameters:
            old = module._parameters[name]
            if old is not None:
                new.setdefault(id(old), torch.nn.Parameter(torch.zeros(old.shape, dtype=old.dtype)))
                module._parameters[name] = new[id(old)]


@wrong("02.w2", "never set")
def a_local_name(model):
    for param in model.parameters():
        param = torch.nn.Parameter(torch.zeros(param.shape))


@wrong("02.w2", "raised")
def sets_a_tensor(model):
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.zeros_like(param, device="cpu"))


@wrong("02.w2", "buffers too")
def everything_to_empty_and_tied_again(model):
    shared = {}
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            shared.setdefault(param, torch.nn.Parameter(torch.zeros_like(param, device="cpu"), param.requires_grad))
            setattr(module, name, shared[param])
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = torch.zeros_like(buffer)
