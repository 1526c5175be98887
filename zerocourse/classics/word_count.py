"""MapReduce's word count (Dean and Ghemawat 2004) on the ranks of a process group: an early relative of reduce-scatter.

map: each rank counts the words of its own text.   shuffle: each count goes to the rank that owns the word.
reduce: the owner adds the counts up. In the end each rank has the totals of the words that it owns, and of no others.
"""

import json
import re
import zlib
from collections import Counter

import torch
import torch.distributed as dist


def owner(word: str, world_size: int) -> int:
    """The rank that owns a word. All ranks compute the same one (Python's own hash differs between processes)."""
    return zlib.crc32(word.encode()) % world_size


def word_count(text: str) -> tuple[Counter, int]:
    """The totals over all ranks' texts of the words that this rank owns, and the bytes that this rank sent."""
    world_size = dist.get_world_size()
    counted = Counter(re.findall(r"[a-z]+", text.lower()))  # map
    parcels = [json.dumps({word: n for word, n in counted.items() if owner(word, world_size) == rank}).encode()
               for rank in range(world_size)]
    total = Counter()
    for parcel in _shuffle(parcels):
        total.update(json.loads(parcel))  # reduce
    return total, sum(len(parcel) for rank, parcel in enumerate(parcels) if rank != dist.get_rank())


def _shuffle(parcels: list[bytes]) -> list[bytes]:
    """Send parcels[r] to rank r, and return the parcel that came from each rank."""
    sizes, incoming = torch.tensor([len(parcel) for parcel in parcels]), torch.empty(len(parcels), dtype=torch.int64)
    dist.all_to_all_single(incoming, sizes)
    packed = torch.frombuffer(bytearray(b"".join(parcels)), dtype=torch.uint8)
    received = torch.empty(int(incoming.sum()), dtype=torch.uint8)
    dist.all_to_all_single(received, packed, incoming.tolist(), sizes.tolist())
    return [bytes(part.tolist()) for part in received.split(incoming.tolist())]
