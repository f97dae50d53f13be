"""Weights of codebooks for many rows: decoded once for all panels of x, or block by block where the switch says so."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from block_bits import random_blocks
from one_step import LEVELS, device, packed, plain, run

from jackfield.backend import DTYPES
from jackfield_cpu import _native
from jackfield_cpu.settings import read_settings

CODEBOOKS = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
SWITCH = "JACKFIELD_CPU_IQ_PANEL"


@pytest.fixture
def iq_panels():
    """Whether panels are decoded ahead, for this test; afterwards as the settings of this process say."""
    yield _native.set_iq_panels
    _native.set_iq_panels(read_settings().iq_panels)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CODEBOOKS)
@pytest.mark.parametrize("threads", [1, 3])
def test_both_ways_agree(level, name, threads, iq_panels):
    """Rows around the 8 from which panels pay, and around the width of a panel of x; groups that are not whole."""
    rng = np.random.default_rng(7)
    raw = random_blocks(DTYPES[name], (88, 512), rng)
    w, values = packed(plain(raw, DTYPES[name], (88, 512))), DTYPES[name].decode(raw.reshape(88, -1))
    for rows in (1, 7, 8, 9, 16, 17, 35):
        x = rng.standard_normal((rows, 512), np.float32)
        made = {}
        for ahead in (True, False):
            iq_panels(ahead)
            made[ahead] = run("linear", [plain(x), w], (rows, 88), on=device(level, threads))
        size = np.abs(x) @ np.abs(values.T)
        assert (np.abs(made[True] - made[False]) <= 1e-6 * size).all(), rows


def test_the_switch_of_panels(caplog):
    assert read_settings({}).iq_panels
    assert read_settings({SWITCH: "1"}).iq_panels
    assert not read_settings({SWITCH: "0"}).iq_panels
    with caplog.at_level(logging.WARNING, "jackfield"):
        assert read_settings({SWITCH: "yes"}).iq_panels
    assert f"{SWITCH}='yes' is ignored" in caplog.text
