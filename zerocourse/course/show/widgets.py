"""Explorers: a picture and, where ipywidgets is installed, controls that draw it again.

`explore` knows nothing of ZeRO. The others only show what the rest of the package computes. A saved notebook keeps the
picture of the starting values. Importing this needs neither ipywidgets nor a notebook.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from ...engine.config import Config
from ...engine.config.explain import counts
from ...errors import BadInput, ZeroCourseError
from ...formulas.states import Convention, model_states
from ...formulas.units import gb
from ...models.gpt2 import CONFIGS
from .. import show
from . import plots
from .plots_stages import stages_figure
from .timelines import step_film as timeline  # noqa: F401 - a step that is looked at event by event

COARSE, SHARP, QUIET = 70, 200, 0.4  # dots per inch, while a slider moves and after; seconds without a move
MISSING = "The controls need ipywidgets, which is not installed here; the picture shows the starting values."


@dataclass(frozen=True)
class Control:
    """A choice among a few values. values: the values themselves, or label → value; start: the first value.

    kind: "slider" for values that have an order, "list" for others.
    """

    values: Sequence | Mapping[str, object]
    start: object
    kind: str = "slider"
    label: str | None = None

    def __post_init__(self):
        known = list(self.values.values()) if isinstance(self.values, Mapping) else list(self.values)
        if self.start not in known:
            raise BadInput(f"the control starts at {self.start!r}, which is not one of its values {known}")

    def box(self, name: str):
        """Its widget, named `label` or, without one, `name`."""
        import ipywidgets

        options = list(self.values.items()) if isinstance(self.values, Mapping) else list(self.values)
        make = ipywidgets.SelectionSlider if self.kind == "slider" else ipywidgets.Dropdown
        return make(options=options, value=self.start, description=self.label or name.replace("_", " "),
                    style={"description_width": "110px"}, layout={"width": "520px"})


def explore(draw: Callable, describe: Callable[..., str], **controls: Control) -> None:
    """Show `draw(**values)` below the sentence `describe(**values)`, and both again whenever a control moves.

    draw: returns a matplotlib Figure, for which the sentence is the alternative text, or anything a notebook shows.
    """
    from IPython.display import DisplayHandle, display

    boxes = _boxes(controls)
    if boxes:
        import ipywidgets

        display(ipywidgets.VBox(list(boxes.values())))
    words, picture = DisplayHandle(), DisplayHandle()

    def forms(values: Mapping[str, object], dpi: float = SHARP) -> tuple[object, object]:
        sentence, drawn = describe(**values), draw(**values)
        return show.sentence(sentence), show.figure(drawn, sentence, dpi) if isinstance(drawn, Figure) else drawn

    def redraw(dpi: float = SHARP) -> None:
        try:
            line, drawn = forms({name: box.value for name, box in boxes.items()}, dpi)
        except ZeroCourseError as error:  # a traceback of a control would go to a log that nobody reads
            words.update(show.sentence(str(error)))
        else:
            words.update(line)
            picture.update(drawn)

    line, drawn = forms({name: control.start for name, control in controls.items()})
    words.display(line)
    picture.display(drawn)
    moved = sharp_when_quiet(redraw)
    for box in boxes.values():
        box.observe(lambda _: moved(), "value")


def sharp_when_quiet(redraw: Callable[[float], None]) -> Callable[[], None]:
    """What a control calls when it moves: it draws coarsely at once, and sharply when nothing has moved for a while, so that
    what is drawn while a slider is dragged does not queue up. Where no event loop runs it draws sharply at once."""
    waiting: list[asyncio.TimerHandle] = []

    def moved() -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return redraw(SHARP)
        while waiting:
            waiting.pop().cancel()
        redraw(COARSE)
        waiting.append(loop.call_later(QUIET, redraw, SHARP))

    return moved


def _boxes(controls: Mapping[str, Control]) -> dict:
    """The widgets, or none and a sentence that says why there are none."""
    try:
        return {name: control.box(name) for name, control in controls.items()}
    except ImportError:
        print(MISSING)
        return {}


# -- explorers of the course -----------------------------------------------------------------------------------------

SIZES = {"124M": 124_439_808, "355M": 354_823_168, "774M": 774_030_080, "1.5B": 1_557_611_200, "7B": 7 * 10**9,
         "13B": 13 * 10**9, "70B": 70 * 10**9, "175B": 175 * 10**9, "1T": 10**12}
OPTIMIZERS = {"Adam": 8, "SGD with momentum": 4, "SGD": 0}  # bytes of model states per parameter, in fp32


def convention_of(dtype: str, optimizer: str) -> Convention:
    """Bytes per parameter: "mixed" is 16-bit parameters and gradients with fp32 master weights, "fp32" is fp32 only."""
    states = OPTIMIZERS[optimizer]
    return Convention("mixed", 2, 2, 4 + states) if dtype == "mixed" else Convention("fp32", 4, 4, states)


def memory(params: int = SIZES["7B"], stage: int = 3, ranks: int = 8, dtype: str = "mixed",
           optimizer: str = "Adam") -> None:
    """What a rank holds by formula, and on which card it fits."""
    def states(params, ranks, dtype, optimizer):
        return [model_states(params, each, ranks, convention_of(dtype, optimizer)) for each in range(4)]

    def describe(params, stage, ranks, dtype, optimizer):
        total = states(params, ranks, dtype, optimizer)[stage].total_bytes
        card = plots.smallest_card(total)
        fits = f"one {card} has room for that" if card else f"not even an {list(plots.CARDS)[-1]} has room for that"
        count = "1 rank holds" if ranks == 1 else f"each of {ranks} ranks holds"
        name = f"ZeRO-{stage}" if stage else "data parallel"
        precision = "mixed precision" if dtype == "mixed" else dtype
        return f"{params:,} parameters, {precision} {optimizer}, {name}: {count} {gb(total)} of model states; {fits}."

    def draw(params, stage, ranks, dtype, optimizer):
        return plots.memory_on_cards(states(params, ranks, dtype, optimizer), stage)

    explore(draw, describe, params=Control(SIZES, params, label="parameters"), stage=Control(range(4), stage),
            ranks=Control([2**power for power in range(11)], ranks),
            dtype=Control({"16-bit, fp32 master": "mixed", "fp32": "fp32"}, dtype, "list"),
            optimizer=Control(list(OPTIMIZERS), optimizer, "list"))


def ds_config(stage: int, accumulation: int = 1, dtype: str = "fp32", bucket: int = 5 * 10**8, checkpointing: bool = False,
              micro: int = 1) -> dict:
    """A ds_config with these values, written as a file would have them; dtype: "fp32", "bf16" or "fp16"."""
    halves = {dtype: {"enabled": True}} if dtype != "fp32" else {}
    return halves | {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation,
                     "activation_checkpointing": {"enabled": checkpointing},
                     "zero_optimization": {"stage": stage, "reduce_bucket_size": bucket}}


def config(model: str = "gpt2", stage: int = 2, ranks: int = 8, accumulation: int = 1, dtype: str = "bf16",
           bucket: int = 5 * 10**8, checkpointing: bool = False) -> None:
    """What a config's keys do to the bytes that a rank holds and sends, by formula, beside data parallel training."""
    def both(model, stage, ranks, accumulation, dtype, bucket, checkpointing):
        of_stages = (Config.load(ds_config(each, accumulation, dtype, bucket, checkpointing), ranks) for each in (0, stage))
        return [counts(each, CONFIGS[model], ranks) for each in of_stages]

    def describe(**values):
        alone, here = both(**values)
        kinds = [f"{gb(here[f'{kind}_bytes'])} of {kind}" for kind in ("parameters", "gradients")]
        return (f"{values['model']} on {values['ranks']} ranks: a rank holds {gb(here['total_bytes'])} of model states "
                f"({', '.join(kinds)} and {gb(here['optimizer_bytes'])} of optimizer states), needs "
                f"about {gb(here['peak_bytes'])} at the peak of a step, and sends {gb(here['sent_bytes'])} per step. Data "
                f"parallel training holds {gb(alone['total_bytes'])} and sends {gb(alone['sent_bytes'])}.")

    def draw(**values):
        alone, here = both(**values)
        named = {"data parallel": alone, "your config": here}
        return stages_figure(named, {name: {values["accumulation"]: of_rank["sent_bytes"]} for name, of_rank in named.items()})

    explore(draw, describe, model=Control(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), model, "list"),
            stage=Control(range(4), stage), ranks=Control([2**power for power in range(11)], ranks),
            accumulation=Control((1, 2, 4, 8, 16), accumulation), dtype=Control(("fp32", "bf16", "fp16"), dtype, "list"),
            bucket=Control({"500,000 elements": 5 * 10**5, "5,000,000": 5 * 10**6, "500,000,000 (the default)": 5 * 10**8},
                           bucket, "list", label="bucket size"),
            checkpointing=Control({"off": False, "on": True}, checkpointing, "list"))
