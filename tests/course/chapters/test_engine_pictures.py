"""What chapter 11 draws: the loop as it was recorded on real ranks, the batch of a step, and a config's bytes."""

import pytest
from test_pictures import drawn

from zerocourse.course.chapters.engine.batch_grid import batch_grid
from zerocourse.course.chapters.engine.loop_trace import trace_loop
from zerocourse.course.chapters.engine.windows import sent_in, windows
from zerocourse.course.show import Shown, widgets
from zerocourse.engine.config import Config
from zerocourse.errors import BadInput
from zerocourse.formulas.states import FP32
from zerocourse.formulas.volumes import sent_bytes
from zerocourse.models.gpt2 import GPTConfig

TINY = GPTConfig(n_layer=1, n_head=2, n_embd=8, block_size=32, vocab_size=32)


def two_windows():
    return {f"stage {stage}": trace_loop(widgets.ds_config(stage, accumulation=2), 4, model=TINY) for stage in range(4)}


def drops_gradients(engine, x_BT, y_BT):
    engine.optimizer.zero_grad()
    loss = engine(x_BT, y_BT)
    engine.backward(loss)
    engine.step()
    return loss


def one_of_their_own():
    return trace_loop(widgets.ds_config(2, accumulation=2), 2, drops_gradients, TINY)


def test_a_recorded_loop_and_its_picture(pool):
    loops = pool(2).run(two_windows)[0]
    for stage, records in enumerate(loops.values()):
        assert [record["boundary"] for record in records] == [False, True, False, True]
        assert [record["update"] for record in records] == [None, 1, None, 2]
        assert [record["moved"] > 0 for record in records] == [False, True, False, True]
        assert records[1]["norm"] == pytest.approx(loops["stage 0"][1]["norm"], rel=1e-5)
        assert sum(map(sent_in, records[:2])) == sent_bytes(TINY.params, stage, 2, 2, convention=FP32)
        assert {record["gradients_bytes"] for record in records} == {4 * TINY.params // (2 if stage > 1 else 1)}
    film = windows(loops)
    picture = Shown(film.text, svg=film.still(3))
    assert [len(drawn(Shown("", svg=film.still(number)), "sent")) for number in range(4)] == [4, 8, 12, 16], "micro-batch by micro-batch"
    assert "There is no update yet" in film.frames[0].caption and "The update comes now" in film.frames[1].caption
    recorded = [record for records in loops.values() for record in records]
    assert [(int(each["data-sent"]), int(each["data-held"])) for each in drawn(picture, "sent")] == \
        [(sent_in(record), record["gradients_bytes"]) for record in recorded]
    assert [int(each["data-update"]) for each in drawn(picture, "update")] == [0, 1, 0, 2] * 4
    assert "stage 1: they send nothing, " in picture.text and "micro-batch 2 and 4" in picture.text
    with pytest.raises(BadInput, match="all must have as many"):
        windows({"one": loops["stage 1"], "two": loops["stage 2"][:3]})
    own = pool(2).run(one_of_their_own)[0]
    assert own[1]["norm"] < 0.99 * loops["stage 2"][1]["norm"], "the loop that is recorded is the one that was given"


def test_a_batch_has_a_square_for_each_sample():
    picture = batch_grid(train=24, micro=2, ranks=3)
    squares = drawn(picture, "sample")
    assert len({(each["data-rank"], each["data-micro"], each["data-sample"]) for each in squares}) == len(squares) == 24
    assert "24 samples in a step = 2 × 4 × 3" in picture.svg
    with pytest.raises(BadInput, match="train_batch_size 24 is not divisible by 5 × 2"):
        batch_grid(train=24, micro=5)
    with pytest.raises(BadInput, match="too many to draw"):
        batch_grid(train=64, ranks=2)


def test_the_explorers_config_is_one_that_the_engine_takes():
    resolved = Config.load(widgets.ds_config(3, 4, "bf16", 5 * 10**6, True, micro=2), 8)
    assert (resolved.train_batch_size, resolved.zero_optimization.stage, resolved.bf16.enabled) == (64, 3, True)
    assert resolved.zero_optimization.reduce_bucket_size == 5 * 10**6 and resolved.activation_checkpointing.enabled
    assert not Config.load(widgets.ds_config(1), 1).activation_checkpointing.enabled


def test_the_explorer_says_what_a_rank_holds_and_sends():
    shown = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(widgets, "explore", lambda draw, describe, **controls: shown.append((draw, describe, controls)))
        widgets.config("gpt2-xl", stage=3, ranks=64)
    draw, describe, controls = shown[0]
    values = {name: control.start for name, control in controls.items()}
    assert "gpt2-xl on 64 ranks: a rank holds 389 MB of model states" in describe(**values), describe(**values)
    assert "Data parallel training holds 24.9 GB and sends 6.13 GB" in describe(**values), describe(**values)
    assert "your config 389.4" in draw(**values).get_label()
