"""How many elements of a flat buffer a rank owns, and checks of the formulas' arguments. Formulas: no torch."""

from ..errors import BadInput


def aligned(numel: int, multiple: int = 1) -> int:
    """The next multiple: elements of a tensor with the padding after it, where each begins at such a multiple."""
    return -(-numel // multiple) * multiple


def shard_elements(numel: int, ranks: int, multiple: int = 1) -> int:
    """Elements of one rank's slice when `numel` of them are padded and cut into equal slices: ceil(numel / ranks), or the next
    multiple."""
    return aligned(-(-numel // ranks), multiple)


def padded_elements(numel: int, ranks: int, multiple: int = 1) -> int:
    """The length of that buffer with its padding: a multiple of `ranks`."""
    return ranks * shard_elements(numel, ranks, multiple)


def share_of(params: int, ranks: int, shard: int | None = None) -> int:
    """`shard` if the caller knows it (with the padding of many buffers), else ceil(P / N). Raises BadInput."""
    share = shard_elements(positive("params", params), positive("ranks", ranks))
    return share if shard is None else shard


def positive(name: str, value: float) -> int:
    """The value as an int; a whole float such as 7e9 will do. Raises BadInput with `name` if it is not positive."""
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError):
        whole = 0
    if whole != value or whole < 1:
        raise BadInput(f"{name} must be a positive whole number, not {value!r}.")
    return whole


def known_stage(stage: int) -> int:
    """The stage, 0 to 3. Raises BadInput."""
    if stage not in (0, 1, 2, 3):
        raise BadInput(f"stage must be 0, 1, 2 or 3, not {stage!r}.")
    return stage
