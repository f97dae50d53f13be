"""Shares of a machine that has other work, and how they are judged."""

from __future__ import annotations

import json

import beside
import presence
import pytest
from bench_runs import run
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(("threads", "cores", "share"), [(1, 2, 1.0), (2, 2, 2 / 3), (5, 2, 5 / 6), (1, 1, 0.5)])
def test_fair_shares_by_hand(threads, cores, share):
    assert beside.fair_share(threads, cores) == pytest.approx(share)


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_fair_share_is_more_than_half_and_at_most_all(threads, cores):
    assert 0.5 <= beside.fair_share(threads, cores) <= 1


def test_parts_of_the_fair_share_are_judged_by_round():
    def verdict(*pairs, single=60):
        return beside.judged(pairs, 2, 2, single)["verdict"]

    fair = 2 / 3
    assert verdict([100, 86 * fair], [200, 180 * fair]) == "met (at least 0.85 of the fair share)"
    assert verdict([100, 84 * fair]).startswith("missed")
    assert verdict([100, 84 * fair], [100, 90 * fair]).startswith("noisy: 0.84 to 0.9 of the")
    assert verdict([100, 86 * fair], single=90).startswith("void: alone they have 1.11 times the rate of one thread")
    assert beside.judged([[100, 86]], 1, 2, 100)["verdict"].startswith("met")  # one has nothing to gain


def test_every_kernel_is_measured_alone_and_beside(tmp_path):
    presence.opens("cpu:0")
    out = tmp_path / "b.json"
    done = run("beside.py", "--threads", "1", "--rounds", "1", "--seconds", "0.01", "--json", str(out))
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(out.read_text())
    assert found["machine"]["commit"]
    assert list(found["figures"]["1"]) == ["attention of one token", "rms_norm", "silu"]
    assert all(min(pair) > 0 for pairs in found["figures"]["1"].values() for pair in pairs)
    assert done.stdout.count("of the fair share") >= 3
