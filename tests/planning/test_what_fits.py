"""What fits where: the formula beside real steps under budgets, and the command."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from zerocourse import shard
from zerocourse.cli import main
from zerocourse.errors import OutOfMemory
from zerocourse.formulas.peak import gpt2_peak_bytes
from zerocourse.formulas.states import FP32, ZERO
from zerocourse.formulas.what_fits import DEVICE, DISK, HOST, Arrangement, Needs, largest_unit, needs, on_device
from zerocourse.measure.ledger import Ledger
from zerocourse.models.gpt2 import GPT, find_config
from zerocourse.offload import DiskOffload, HostOffload

CONFIG = find_config("gpt2-tiny")
LARGEST = 4 * CONFIG.vocab_size * CONFIG.n_embd  # bytes of the largest parameter, or of its gradient
FIRST = 8 * largest_unit(CONFIG)  # on the host, once: states of the first step, before they have a place on the disk
# What single operations take for a moment, which the formula leaves out:
LOGITS = 2 * CONFIG.vocab_size * 4  # on the device, a token: those in fp32 and their logarithms
UPDATE = 3 * LARGEST  # on the host: Adam's two of the largest parameter; step counters, whole blocks


def predicted(where: Arrangement, dtype, tokens: int) -> Needs:
    convention = FP32 if dtype is None else ZERO
    offloaded = where.optimizer != DEVICE
    peak = gpt2_peak_bytes(CONFIG, where.stage, 1, 1, tokens, on_device(convention, offloaded), offloaded=offloaded,
                           offloaded_parameters=where.parameters != DEVICE)
    return needs(where, CONFIG.params, 1, convention, device_peak=peak, largest_unit=largest_unit(CONFIG))


def fits(where: Arrangement, dtype, length: int, folder, device: int, host: int | None = None, disk: int | None = None) -> bool:
    """Two steps of Adam under these budgets."""
    torch.manual_seed(0)
    raised = where.parameters != DEVICE
    offload = {DEVICE: lambda: None, HOST: lambda: HostOffload(budget=host, parameters=raised),
               DISK: lambda: DiskOffload(folder, host_budget=host, disk_budget=disk, parameters=raised)}[where.optimizer]()
    tokens = torch.randint(0, CONFIG.vocab_size, (1, length))
    try:
        model = GPT(CONFIG)
        model, optimizer = shard(model, torch.optim.Adam(model.parameters()), where.stage, param_dtype=dtype, offload=offload)
        with Ledger(model, optimizer, budget=device):
            for _ in range(2):
                with model.zero.backward_options(is_last=True):
                    cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
        model.zero.settle()
    except OutOfMemory:
        return False
    return True


@pytest.mark.parametrize("where, dtype, tokens", (
    (Arrangement(2), None, 64), (Arrangement(2, HOST), None, 64), (Arrangement(2, HOST), None, 8),
    (Arrangement(3, HOST, HOST), torch.bfloat16, 64), (Arrangement(3, DISK), None, 8),
    (Arrangement(3, DISK, DISK), torch.bfloat16, 64)), ids=str)
def test_a_model_fits_where_it_is_said_to_and_nowhere_below(where, dtype, tokens, tmp_path):
    """Just below what is predicted the device or the host runs out; with room for single operations nothing does. With many tokens
    the peak is at the loss, with few in the backward, where gradients leave."""
    need = predicted(where, dtype, tokens)
    room = {"device": need.device_bytes + max(LOGITS * tokens, 2 * LARGEST)}
    if where.optimizer != DEVICE:
        room |= {"host": need.host_bytes + UPDATE}
    if where.optimizer == DISK:
        room |= {"host": room["host"] + FIRST, "disk": need.disk_bytes + 2**16}  # whole blocks
    assert fits(where, dtype, tokens, tmp_path, **room)
    for place in room.keys() - {DISK}:
        assert not fits(where, dtype, tokens, tmp_path, **room | {place: need.held(place) - 1}), place
    if where.optimizer == DISK:
        assert not fits(where, dtype, tokens, tmp_path, **room | {"disk": need.disk_bytes // 2}), "not even the old files"


def rows(capsys, *words: str) -> dict:
    assert main(["memory", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


BUDGETS = ("--device", "24GB", "--host", "64GB", "--disk", "1TB")


def test_the_command_says_what_fits_and_what_moves_least(capsys):
    found = rows(capsys, *BUDGETS, "--params", "7e9", "--ranks", "1")
    by_name = {row["name"]: row for row in found["arrangements"]}
    assert len(by_name) == 12 and found["cheapest"] == "ZeRO-1, optimizer on disk"
    host = by_name["ZeRO-2, optimizer on host"]
    assert (host["device_bytes"], host["host_bytes"], host["link_bytes"]) == (14 * 10**9, 98 * 10**9, 28 * 10**9)
    assert host["missing_bytes"] == {"host": 34 * 10**9} and not host["fits"]
    disk = by_name["ZeRO-3, both on disk"]
    assert (disk["disk_bytes"], disk["io_bytes"]) == (14 * 7 * 10**9, (24 + 2 * 2 + 2) * 7 * 10**9), "two gathers, one writing"
    for name, row in by_name.items():
        for params, expected in ((row["largest_params"], True), (row["largest_params"] + 1, False)):
            again = rows(capsys, *BUDGETS, "--params", str(params), "--ranks", "1")["arrangements"]
            assert [each["fits"] for each in again if each["name"] == name] == [expected], (name, params)


def test_more_ranks_or_no_disk_change_the_answer(capsys):
    assert rows(capsys, *BUDGETS, "--params", "7e9", "--ranks", "8")["cheapest"] == "ZeRO-3"
    assert rows(capsys, *BUDGETS[:2], "--params", "7e9", "--ranks", "1")["cheapest"] is None
    accumulated = rows(capsys, *BUDGETS, "--params", "7e9", "--ranks", "1", "--accumulation", "2")
    assert accumulated["cheapest"] == "ZeRO-3, both on disk", "gradients are added up on the device"


def test_its_table_and_bad_input(capsys):
    assert main(["memory", *BUDGETS, "--model", "gpt2-xl", "--ranks", "2"]) == 0
    text = capsys.readouterr().out
    assert main(["memory", *BUDGETS, "--params", "900e9", "--ranks", "4"]) == 0
    assert all("short  " in line for line in capsys.readouterr().out.splitlines()[3:15]), "what is short, and then a gap"
    assert "\n> ZeRO-1 " in text and "ZeRO-1 fits and moves least: a step moves nothing over link or disk" in text
    for words, sentence in ((("--host", "64GB", "--params", "7e9"), "--host would change nothing without --device"),
                            ((*BUDGETS, "--params", "7e9", "--stage", "2"), "--stage would change nothing with --device"),
                            (("--device", "24G", "--params", "7e9"), "'24G' is not a size in bytes")):
        assert main(["memory", *words]) == 2
        error = capsys.readouterr().err
        assert sentence in error and error.count("\n") == 1
