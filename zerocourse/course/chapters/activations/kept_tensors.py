"""What a block keeps for its backward, tensor by tensor, and what that is together."""

from collections.abc import Mapping, Sequence

from ...show import Shown
from ...show.palette import FAINT
from ...show.pictures import svg
from .activation_trial import SavedTensor

NAMES = {"NativeLayerNorm": "LayerNorm", "Addmm": "linear layer", "Gelu": "GELU",
         "ScaledDotProductFlashAttentionForCpu": "attention"}
ROLES = {"key": "queries, keys, values", "output": "its output"}
LEFT, ROW, BAR = 236, 25, 18  # units: where bars begin, from one row to the next, a bar's height
SMALL = 0.2  # of a unit: what is smaller is drawn together


def kept_tensors(saved: Sequence[SavedTensor], unit: int, sums: Mapping[str, int], title: str) -> Shown:
    """A step of a staircase for each tensor, in the order of the forward, and a bar for each sum.

    unit: the bytes of one activation (B, T, C).   sums: bytes, by name.
    """
    rows = [(f"{NAMES.get(each.by, each.by)}: {ROLES.get(each.role, 'its input')}", each.nbytes) for each in saved
            if each.nbytes >= SMALL * unit]
    rows.append(("statistics of the four", sum(each.nbytes for each in saved if each.nbytes < SMALL * unit)))
    whole = sum(nbytes for _, nbytes in rows)
    scale = (svg.WIDTH - LEFT - 64) / whole
    drawing = svg.Drawing(svg.WIDTH, 66 + ROW * (len(rows) + len(sums) + 1) + 14)
    drawing.text(0, 18, title, bold=True, size=16)
    drawing.text(0, 44, f"unit: one tensor (B, T, C), {unit:,} bytes", size=13, color=FAINT)
    x, y = float(LEFT), 58.0
    for name, nbytes in rows:
        wide = max(1.5, nbytes * scale)
        drawing.text(LEFT - 10, y + 14, name, size=13, anchor="end")
        drawing.rect(x, y, wide, BAR, "activations", data={"bytes": nbytes})
        drawing.text(x + wide + 5, y + 14, f"{nbytes / unit:.3g}", size=13)
        x, y = x + nbytes * scale, y + ROW
    y += ROW
    drawing.text(0, y - 8, "together", size=13, color=FAINT)
    for name, nbytes in sums.items():
        drawing.text(LEFT - 10, y + 14, name, size=14, anchor="end", bold=True)
        drawing.rect(LEFT, y, nbytes * scale, BAR, "activations", data={"bytes": nbytes})
        drawing.text(LEFT + nbytes * scale + 5, y + 14, f"{nbytes / unit:g}", size=14, bold=True)
        y += ROW
    words = (f"{title}, in units of one tensor (B, T, C), {unit:,} bytes: "
             + "; ".join(f"{name} {nbytes / unit:.3g}" for name, nbytes in rows)
             + ". Together: " + ", ".join(f"{name} {nbytes / unit:g}" for name, nbytes in sums.items()) + ".")
    return Shown(words, svg=svg.still(drawing, title, words))
