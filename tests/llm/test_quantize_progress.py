"""What `jackfield quantize` says of its way: the figures it reports, and the bar it draws of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import gguf_files
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield_llm import quantized_file
from jackfield_llm.errors import QuantizationError
from jackfield_llm.quantized_file import quantize

DTYPES = jf.dtypes.DTYPES
TEXT = {"general.architecture": ("string", "llama")}
NAMES = ("blk.{}.attn_q.weight", "blk.{}.attn_norm.weight", "blk.{}.ffn_down.weight")
TYPES = ("f32", "f16", "q8_0", "q4_0")


def made(folder, tensors):
    """A file of these tensors: (name, name of the dtype, shape); the sum of their bytes with it."""
    rng = np.random.default_rng(0)
    rows = [
        (n, shape, DTYPES[t].gguf_id, DTYPES[t].encode(rng.normal(size=shape)).tobytes()) for n, t, shape in tensors
    ]
    path = folder / "in.gguf"
    path.write_bytes(gguf_files.file(TEXT, rows, 32))
    return path, sum(len(raw) for *_, raw in rows)


drawn_tensors = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(TYPES), st.integers(1, 9), st.sampled_from([256, 512, 288])),
    min_size=1,
    max_size=6,
).map(lambda rows: [(name.format(i), kind, (n, columns)) for i, (name, kind, n, columns) in enumerate(rows)])


@pytest.fixture
def small_pieces(monkeypatch):
    """As of a model whose tensors are far larger: several reports for each."""
    monkeypatch.setattr(quantized_file, "_PIECE", 600)


@pytest.mark.usefixtures("small_pieces")
@given(tensors=drawn_tensors, kind=st.sampled_from(["Q4_0", "Q4_K_M", "Q8_0", "F16"]), threads=st.integers(1, 3))
def test_the_figures_rise_to_the_whole_and_stop_there(tmp_path_factory, tensors, kind, threads):
    """Bytes done never fall, are never more than all, reach all with the last report, and count what was read."""
    folder = tmp_path_factory.mktemp("progress")
    source, nbytes = made(folder, tensors)
    reports = []
    quantize(source, folder / "out.gguf", kind, threads=threads, progress=lambda *report: reports.append(report))
    labels, done, totals = zip(*reports, strict=True)
    assert set(labels) == {f"in.gguf to {kind}"}
    assert set(totals) == {nbytes}
    assert all(before < after for before, after in zip((0, *done), done, strict=False))
    assert done[-1] == nbytes


@pytest.mark.usefixtures("small_pieces")
def test_what_fails_never_says_that_all_is_done(tmp_path):
    """The last tensor can't be coded: the figures stop short."""
    rows = [
        ("blk.0.attn_q.weight", (4, 512), 0, np.ones((4, 512), "<f4").tobytes()),
        ("blk.0.attn_k.weight", (4, 512), 0, np.full((4, 512), np.nan, "<f4").tobytes()),
    ]
    source = tmp_path / "in.gguf"
    source.write_bytes(gguf_files.file(TEXT, rows, 32))
    reports = []
    with pytest.raises(QuantizationError):
        quantize(source, tmp_path / "out.gguf", "Q4_0", progress=lambda *report: reports.append(report))
    assert [done for _, done, _ in reports] == [2048, 4096, 6144, 8192]
    assert {total for *_, total in reports} == {16384}


def run(*arguments, stderr):
    program = "from jackfield.cli import main; main()"
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    command = [sys.executable, "-c", program, "quantize", *map(str, arguments)]
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, check=True)


def drawn_on_a_terminal(*arguments):
    """What a terminal of the program's standard error was sent."""
    ours, theirs = os.openpty()
    try:
        run(*arguments, stderr=theirs)
    finally:
        os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:  # how Linux says that nobody has the other end any more
        pass
    finally:
        os.close(ours)
    return seen.decode()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="terminals like this are POSIX's")
def test_a_bar_is_drawn_on_a_terminal(tmp_path):
    source, nbytes = made(tmp_path, [("blk.0.attn_q.weight", "f32", (500, 512))])
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn_on_a_terminal(source, tmp_path / "out.gguf", "q4_0"))
    last = [line for line in re.split(r"[\r\n]+", seen) if "Q4_0" in line][-1]
    assert re.search(rf"in\.gguf to Q4_0\s+━+\s+{nbytes / 1e6:.1f}/{nbytes / 1e6:.1f}\s+MB", last)


def test_no_bar_where_standard_error_is_no_terminal(tmp_path):
    source, _ = made(tmp_path, [("blk.0.attn_q.weight", "f32", (500, 512))])
    done = run(source, tmp_path / "out.gguf", "q4_0", stderr=subprocess.PIPE)
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1
    assert b"\x1b" not in done.stdout
