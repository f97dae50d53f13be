"""The codebooks of the core against those of the package `gguf`, and the C header made of them."""

from __future__ import annotations

import hashlib
import runpy
from pathlib import Path

import gguf
import numpy as np
import pytest

from jackfield.dtypes import codebooks

COMMON = Path(__file__).parents[2] / "plugins" / "common"
CLASSES = {
    "iq2_xxs": "IQ2_XXS",
    "iq2_xs": "IQ2_XS",
    "iq2_s": "IQ2_S",
    "iq3_xxs": "IQ3_XXS",
    "iq3_s": "IQ3_S",
    "iq1": "IQ1_S",
}


def theirs(name):
    table = getattr(gguf.quants, CLASSES[name])
    table.init_grid()
    return table.grid[0, 0].astype(np.int8)


def test_the_file_holds_these_codebooks_and_no_others():
    assert list(codebooks.codebooks()) == list(CLASSES)
    text = codebooks.FILE.read_bytes()
    assert hashlib.sha256(text).hexdigest() == "857a06433ddce4805e829a1db004104ea479d13fc8b915a19f101f8326fddff0"


@pytest.mark.parametrize("name", CLASSES)
def test_a_codebook_equals_that_of_gguf(name):
    ours = codebooks.codebooks()[name]
    np.testing.assert_array_equal(ours, theirs(name))
    assert hashlib.sha256(ours.tobytes()).digest() == hashlib.sha256(theirs(name).tobytes()).digest()
    assert not ours.flags.writeable
    np.testing.assert_array_equal(codebooks.codebook(name), ours)


def test_the_small_tables_equal_those_of_gguf():
    assert gguf.quants.IQ4_NL.kvalues == codebooks.IQ4_VALUES
    assert gguf.quants.MXFP4.kvalues == codebooks.E2M1_VALUES
    assert codebooks.even_signs().tobytes() == gguf.quants.IQ2_XXS.ksigns
    scales = gguf.quants.NVFP4.ue4m3_to_fp32(np.arange(256, dtype=np.uint8))
    np.testing.assert_array_equal(codebooks.e4m3_values() / 2, scales.astype(np.float32))


def test_the_c_header_is_what_the_script_writes():
    script = runpy.run_path(str(COMMON / "write_codebooks.py"))
    assert script["HEADER"] == COMMON / "jackfield" / "codebooks.h"
    assert script["HEADER"].read_text() == script["header"](), "run plugins/common/write_codebooks.py"
