"""The check of 22.2: from a kernel's machine code, which of its arguments do not begin at a multiple of 16 bytes."""

from ....checks import exercise

# Loads and stores of a thread, by how many bytes each moves; elements of a thread, bytes of an element.
CASES = [({16: 8}, {16: 6}, 8, 4), ({16: 6, 4: 8}, {16: 4, 4: 8}, 8, 4), ({4: 32}, {4: 24}, 8, 4), ({16: 6, 4: 8}, {16: 6}, 8, 4),
         ({16: 4}, {16: 3}, 8, 2), ({16: 2, 2: 16}, {16: 2, 2: 8}, 8, 2), ({16: 4, 4: 16}, {16: 4}, 16, 4), ({16: 2, 4: 4}, {4: 4}, 4, 4)]


@exercise(
    "22.2", "Read the machine code", minutes=20, difficulty=2, cases=CASES,
    mistakes={
        "pieces": {"of": lambda counts, elements, size: counts.get(size, 0)},
        "the aligned ones": {"of": lambda counts, elements, size: counts.get(16, 0) * 16 // (elements * size)},
        "fp32 alone": {"of": lambda counts, elements, size: counts.get(4, 0) // elements},
        "eight elements": {"of": lambda counts, elements, size: counts.get(size, 0) // 8},
        "bytes": {"of": lambda counts, elements, size: counts.get(size, 0) * size},
        "all": {"of": lambda counts, elements, size: sum(width * count for width, count in counts.items()) // (elements * size)},
        "stores forgotten": {"stores_of": lambda loads, stores: loads},
        "added up": {"together": True},
    })
def unaligned(loads, stores, elements, size, *, of=lambda counts, elements, size: counts.get(size, 0) // elements,
              stores_of=lambda loads, stores: stores, together=False):
    """(arguments that are read, and that are written, from an address that is no multiple of 16)."""
    read, written = of(loads, elements, size), of(stores_of(loads, stores), elements, size)
    return read + written if together else (read, written)
