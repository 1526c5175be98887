"""What commands print fits the page: 80 columns in a pipe, words whole, colours and bars where somebody looks at them."""

import io
import json
import sys

import pytest

from zerocourse import cli
from zerocourse.commands import terminal
from zerocourse.launch import progress_bar


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", (
    "memory --model gpt2-xl --ranks 8", "memory --params 7e9", "memory --table1", "list",
    "memory --device 24GB --host 64GB --disk 1TB --params 7e9 --ranks 1", "plan --model llama-7b --cluster 8xA100 --simulate 0",
    "plan --model llama-70b --cluster 64x8xH100 --batch 1024 --mesh --price 2 --simulate 0", "config {config}",
    *(f"{name} --help" for name in ("bench", "check", "plan", "memory", "simulate", "train", "tour"))))
def test_a_command_fits_80_columns(command, narrow, capsys, tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 16, "zero_optimization": {"stage": 2, "overlap_comm": True}},
                                                 indent=1))
    assert cli.main(command.format(config=tmp_path / "ds.json").split()) == 0
    said = capsys.readouterr().out
    wide = [line for line in said.splitlines() if len(line) > 80 and str(tmp_path) not in line]
    assert not wide and "\x1b" not in said


def test_nothing_is_lost_when_a_text_is_broken(narrow, monkeypatch):
    text = "- " + "a-word another " * 20 + "\n\n    an indented line " + "which is long " * 10
    assert terminal.fitted(text).split() == text.split()
    assert terminal.fitted(text).splitlines()[1].startswith("  a") and terminal.fitted(text).splitlines()[-1].startswith("    ")
    monkeypatch.setenv("COLUMNS", "1000")
    assert terminal.fitted(text) == text


def test_a_table_that_is_too_wide_goes_on_below():
    rows = [["", "one", "two", "three"], ["a row", "1", "22", "333"], ["another", "4", "55", "666"]]
    assert terminal.table(rows, "<>>>", 80) == ["         one  two  three", "a row      1   22    333", "another    4   55    666"]
    assert terminal.table(rows, "<>>>", 18) == ["         one  two", "a row      1   22", "another    4   55", "",
                                                "         three", "a row      333", "another    666"]
    rows[1][0] = "a row of a name that leaves no room"
    assert terminal.table(rows, "<>>>", 40) == ["  one  two  three", rows[1][0], "    1   22    333", "another", "    4   55    666"]


def test_a_help_text_is_broken_anew(narrow):
    command = "  zerocourse plan --model llama-7b --cluster 64x8xH100 --batch \"4194304 tokens\" --ranks 64 128 256 --price 2.50"
    made = terminal.paragraphs(f"A first line\nand its second\n\n{command}\n")
    assert made.splitlines()[0] == "A first line and its second"
    assert made.replace(" \\\n     ", "") .endswith(command)  # a shell reads it as one line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colours_are_for_terminals_without_no_color(monkeypatch):
    row = "> ZeRO-3  fits"
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.coloured(row) == "> ZeRO-3  \x1b[32mfits\x1b[0m" and terminal.coloured("what fits") == "what fits"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.coloured(row) == row
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert terminal.coloured(row) == row


def test_a_bar_is_drawn_where_somebody_looks(monkeypatch):
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar.progress_bar(3, file=stream) as bar:
            bar.update()
        assert bool(stream.getvalue()) == drawn
