"""Which figures count, and what they are told to be."""

from __future__ import annotations

import json
import math
import re
import subprocess

import aims
import compare_llama
import judging
import machine
import models
import pool
import pytest
import roofline
import sides
import targets
from bench_runs import BENCH, ROOFLINE
from hypothesis import given
from hypothesis import strategies as st

# ---- judging

surprises = st.lists(st.floats(0, 20), min_size=8, max_size=40)


@given(surprises)
def test_what_agrees_is_right(reference):
    assert judging.why_wrong(reference, reference) is None
    assert judging.why_wrong(reference, [x + 0.05 for x in reference]) is None


@given(surprises, st.integers(0, 7), st.sampled_from([math.nan, math.inf]))
def test_one_number_that_is_none_makes_it_wrong(reference, at, bad):
    found = list(reference)
    found[at] = bad
    assert judging.why_wrong(reference, found) == "gives NaN"


@given(surprises, st.floats(0.2, 5))
def test_a_shift_shows_in_the_perplexity(reference, shift):
    why = judging.why_wrong(reference, [x + shift for x in reference])
    before, after = judging.perplexity(reference), judging.perplexity([x + shift for x in reference])
    assert why == f"perplexity {after:.1f} instead of {before:.1f}"


@given(st.lists(st.floats(5, 15), min_size=4, max_size=20), st.floats(0.6, 3))
def test_errors_that_cancel_in_the_mean_show_all_the_same(half, size):
    reference = [*half, *half]
    found = [*(x + size for x in half), *(x - size for x in half)]
    assert judging.why_wrong(reference, found) == f"log probabilities move by {size:.2f}"


def test_perplexities_without_a_number():
    assert judging.perplexity([1000.0]) == math.inf
    assert math.isnan(judging.perplexity([math.nan]))


FACTS = {
    "arithmetic": "int8",
    "block_ops": 1e9,
    "output_ops": 2e9,
    "weight_nbytes": 9e8,
    "column_nbytes": 1e6,
}


def test_shares_of_the_roofline_by_hand():
    prompt = judging.share(FACTS, sides.Task("prompt", 4), 1, 100.0, ROOFLINE)
    assert prompt == pytest.approx(100 * (1e9 + 2e9 / 4) / 4e11)
    unknown = judging.share({**FACTS, "arithmetic": "bf16"}, sides.Task("prompt", 4), 2, 100.0, ROOFLINE)
    assert unknown == pytest.approx(100 * 1.5e9 / 2e11)  # no bf16 here: f32 is what there is
    generation = judging.share(FACTS, sides.Task("generate", 100, depth=50), 1, 10.0, ROOFLINE)
    assert generation == pytest.approx(10 * (9e8 + 100e6) / 20e9)
    assert roofline.read_rate(ROOFLINE, 2) == 18e9


@pytest.fixture
def any_machine(monkeypatch):
    """Not the reference machine, where peers slower than those of the table make a row void."""
    monkeypatch.setattr(judging, "is_reference", lambda: False)


def judged(samples, *, wrong=None, native=None, model="Q4_0", **more):
    row = judging.Row(model, sides.Task("prompt", 512), 1, samples)
    output = {side: {"prompt": {"wrong": None}} for side in samples}
    for side in wrong or ():
        output[side]["prompt"]["wrong"] = "gives NaN"
    return judging.judged(row, FACTS, output, native or {}, ROOFLINE, **{"targets": True, **more})


@pytest.mark.parametrize("wrong", [[], ["ik_llama.cpp"]])
def test_a_peer_built_for_another_cpu_makes_the_row_void(wrong):
    samples = {"llama.cpp": [400.0], "ik_llama.cpp": [900.0], "jackfield": [800.0]}
    found = judged(samples, native={"ik_llama.cpp": False}, wrong=wrong)
    assert found["void"] == {"ik_llama.cpp": "not built for this CPU"}
    assert (found["better_peer"], found["ratio"]) == (None, None)  # the peer that is left is the weaker one
    assert found["goal"] == "void: ik_llama.cpp: not built for this CPU"
    assert judged(samples, native={"ik_llama.cpp": False}, model="other")["goal"] == ""  # no goal, so no verdict


def test_a_peer_with_wrong_output_leaves_the_goal_to_the_others():
    found = judged({"llama.cpp": [400.0], "ik_llama.cpp": [900.0], "jackfield": [800.0]}, wrong=["ik_llama.cpp"])
    assert (found["better_peer"], found["ratio"], found["goal"]) == ("llama.cpp", 2.0, "met (1.2 times)")
    alone = judged({"llama.cpp": [400.0], "jackfield": [800.0]}, wrong=["llama.cpp"])
    assert (alone["ratio"], alone["goal"]) == (None, "void: no peer that counts has a figure")


def test_our_own_wrong_output_misses_the_goal():
    found = judged({"llama.cpp": [400.0], "jackfield": [800.0]}, wrong=["jackfield"])
    assert (found["ratio"], found["goal"]) == (None, "missed (our wrong output: gives NaN)")


def test_peers_alone_have_no_verdict():
    assert judged({"llama.cpp": [400.0]}, native={"llama.cpp": False})["goal"] == ""


def test_a_slow_peer_makes_a_row_of_the_reference_machine_void(monkeypatch):
    samples = {"llama.cpp": [100.0], "llama.cpp packed": [300.0], "ik_llama.cpp": [600.0], "jackfield": [900.0]}
    monkeypatch.setattr(judging, "is_reference", lambda: False)
    assert (judged(samples)["void"], judged(samples)["goal"]) == ({}, "met (1.2 times)")
    monkeypatch.setattr(judging, "is_reference", lambda: True)
    why = "llama.cpp at 300 t/s is below 0.8 of the 462 seen on the reference machine"
    found = judged(samples)
    assert found["void"] == {"llama.cpp": why, "llama.cpp packed": why}
    assert (found["ratio"], found["goal"]) == (None, f"void: llama.cpp: {why}; llama.cpp packed: {why}")
    quick_enough = judged({**samples, "llama.cpp packed": [370.0]})
    assert (quick_enough["void"], quick_enough["goal"]) == ({}, "met (1.2 times)")
    assert judged({**samples, "ik_llama.cpp": [500.0], "llama.cpp packed": [400.0]})["goal"].startswith("void: ik_lla")
    assert judged({**samples, "ik_llama.cpp": [10.0], "llama.cpp packed": [400.0]}, wrong=["ik_llama.cpp"])["goal"] == (
        "met (1.2 times)"
    )


def test_a_goal_may_stand_in_place_of_the_table():
    def goal(ours, **more):
        samples = {"llama.cpp": [400.0], "ik_llama.cpp": [900.0], "jackfield": [ours]}
        return judged(samples, model="moe.gguf", targets=False, least=1.0, **more)["goal"]

    assert (goal(900.0), goal(899.0)) == ("met (1 times)", "missed (1 times)")
    assert goal(400.0, wrong=["ik_llama.cpp"]) == "met (1 times)"
    assert goal(900.0, wrong=["llama.cpp", "ik_llama.cpp"]) == "void: no peer that counts has a figure"
    assert goal(900.0, wrong=["jackfield"]) == "missed (our wrong output: gives NaN)"
    assert goal(900.0, native={"ik_llama.cpp": False}) == "void: ik_llama.cpp: not built for this CPU"


def test_the_table_of_targets_is_about_models_that_are_made():
    assert compare_llama.NAMES == models.NAMES
    assert {model for model, _ in targets.TARGETS} <= set(models.NAMES)
    assert set(models.NAMES) == {model for model, task in targets.TARGETS if task == "prompt"}


def test_verdicts():
    both = {"llama.cpp": 2.0, "ik_llama.cpp": 1.09}
    assert targets.verdict("Q4_0", "prompt", both, 0.5) == "missed (1.2 times)"
    assert targets.verdict("Q4_0", "generate", both, 0.5) == "missed (1.1 times)"
    assert targets.verdict("F16", "prompt", {"llama.cpp": 1.1, "ik_llama.cpp": 0.5}, 0.5) == "met (1.1 times)"
    low = {"llama.cpp": 0.9}
    assert targets.verdict("1.1B-Q4_0", "generate", low, 0.95) == "met (90% of the bandwidth)"
    assert targets.verdict("1.1B-Q4_0", "generate", low, 0.85) == "missed (1.05 times)"
    assert targets.verdict("Q4_0", "generate", both, 0.93) == "missed (1.1 times, at 93% of the roofline)"
    assert targets.verdict("other", "prompt", both, 1.0) == ""
    assert targets.verdict("F16", "prompt", {"ik_llama.cpp": 2.0}, 0.5) == ""


# ---- absolute goals

PEAKS = {"read": {1: 8e9}, "read_huge": {1: 16e9}, "int8": {1: 940e9}}


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setattr(aims, "is_reference", lambda: False)


@pytest.fixture
def at_home(monkeypatch):
    monkeypatch.setattr(aims, "is_reference", lambda: True)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("figure", "verdict"), [(601e9, "met"), (599e9, "missed")])
def test_a_rate_is_asked_for_as_a_share_of_this_machines_peak(figure, verdict):
    aim = aims.matmul_aim("q4_0", 512, "hot", 1, PEAKS)
    found = aim.judged(figure)
    assert (found["goal_on_reference"], found["goal_here"]) == (300e9, pytest.approx(600e9))
    told = "at least 600 GOPS (300 on the reference machine, by the peak of int8)"
    assert found["verdict"] == f"{verdict} ({told})"
    assert aim.judged(figure, void="so")["verdict"] == "void: so"


@pytest.mark.usefixtures("at_home")
def test_goals_of_the_reference_machine_are_taken_as_they_are():
    found = aims.matmul_aim("q4_K", 512, "hot", 1, PEAKS).judged(279e9)
    assert (found["verdict"], found["scaled_by"]) == ("missed (at least 280 GOPS)", "")
    assert aims.peer_aim(0.35, 1.6, 3.2).here == 0.35


@pytest.mark.usefixtures("elsewhere")
def test_every_goal_of_products():
    def here(*words):
        aim = aims.matmul_aim(*words, PEAKS)
        return aim and round(aim.here / 1e9, 3)

    assert here("q4_0", 1, "hot", 1) == 55  # half the rate of reading: 16 of 32 GB/s
    assert here("q4_0", 1, "cold", 1) == 37.5
    assert here("q2_K", 512, "hot", 1) == 400
    for none in (("q4_0", 1, "hot", 2), ("q8_0", 1, "hot", 1), ("q4_0", 512, "cold", 1), ("f32", 512, "hot", 1)):
        assert here(*none) is None


def timed(load, short, late):
    return [{"load_s": load, "short_s": short, "long_s": late}]


@pytest.mark.usefixtures("elsewhere")
def test_first_tokens_are_judged_by_the_peers_time_in_the_run():
    times = {"llama.cpp": timed(0.2, 0.152, 3.214), "jackfield": timed(0.1, 0.159, 0.701)}
    found = aims.first_goals("Q4_1", times, "")
    assert found["first_short"]["goal_here"] == pytest.approx(0.26)  # llama.cpp takes twice the 0.176 s
    assert found["first_short"]["verdict"] == "met (at most 260 ms (130 on the reference machine, by llama.cpp's time))"
    assert found["first_long"]["verdict"].startswith("missed (at most 700 ms")
    assert aims.first_goals("Q8_0", times, "") == aims.first_goals("Q4_1", {"llama.cpp": timed(1, 1, 1)}, "") == {}
    alone = aims.first_goals("Q4_1", {"jackfield": timed(0, 0, 0)}, "")
    assert alone["first_long"]["verdict"] == "void: llama.cpp has no time to scale the goal by"
    assert aims.first_goals("Q4_1", times, "x: not built for this CPU")["first_long"]["verdict"].startswith("void: x")


def test_the_workers_are_judged():
    found = {
        "one_ns": 51.0,
        "all_ns": 99.0,
        "exchange_ns": 66.0,
        "idle_us": 13.0,
        "beside": 0.6,
        "fair": 0.7,
        "bound": 0.5,
        "bound_fair": 0.7,
    }
    two = {name: goal["verdict"] for name, goal in pool.goals(2, [found]).items()}
    assert two == {
        "idle": "met (at most 50 us)",
        "step": "met (at most 100 ns)",
        "beside": "met (at least 0.85 of the fair share)",
        "bound": "missed (at least 0.85 of the fair share)",
    }
    assert pool.goals(1, [found])["step"]["verdict"] == "missed (at most 50 ns)"
    assert list(pool.goals(5, [found])) == ["idle"]
    rounds = [found, {**found, "all_ns": 132.0}, {**found, "all_ns": 165.0}]
    step = pool.goals(2, rounds)["step"]
    why = "noisy: 99 to 165 ns in single rounds; by the median missed (at most 100 ns)"
    assert (step["verdict"], step["exchange_share"]) == (why, 0.5)
    assert pool.line("step", step) == f"  step: {why}; 50% of it is what a bare exchange of cache lines takes here"


def test_a_missed_goal_of_the_workers_is_the_exit_status(monkeypatch, tmp_path):
    found = {"one_ns": 49.0, "all_ns": 60.0, "turns_ns": 60.0, "exchange_ns": 66.0, "idle_us": 13.0}
    found |= {"beside": 0.6, "fair": 0.7, "bound": 0.6, "bound_fair": 0.7}
    monkeypatch.setattr(pool, "build", lambda folder: folder)
    monkeypatch.setattr(pool, "measure", lambda *_: found)
    assert pool.main(["--threads", "1,2", "--json", str(tmp_path / "p.json")]) == 0
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["goals"] == {"met": 6, "missed": 0, "void": 0}
    assert document["machine"]["commit"]
    monkeypatch.setattr(pool, "measure", lambda *_: {**found, "one_ns": 51.0})
    assert pool.main(["--threads", "1"]) == 1


WRITERS = [p for p in BENCH.glob("*.py") if '"--json"' in (text := p.read_text("utf-8")) and ".write_text(json" in text]


@pytest.mark.parametrize("script", sorted(p.name for p in WRITERS))
def test_every_document_tells_the_commit(script):
    """Scripts that write through another one, as families_llama.py does, are not here."""
    text = (BENCH / script).read_text("utf-8")
    assert '"machine": origin()' in text


def test_the_commit_tells_of_changes(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=n", "-c", "user.email=e", *words], check=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "first")
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "bench" / "machine.py"))
    (tmp_path / "bench").mkdir()
    assert re.fullmatch("[0-9a-f]{40}", machine.commit())
    (tmp_path / "a").write_text("2")
    assert re.fullmatch(r"[0-9a-f]{40}\+changes", machine.commit())


def test_samples_far_apart_are_told():
    quiet, noisy = [100.0, 104.0, 109.0], [100.0, 104.0, 111.0]
    assert judged({"llama.cpp": quiet, "jackfield": noisy})["noisy"] == ["jackfield"]
    assert judged({"llama.cpp": noisy, "jackfield": quiet})["noisy"] == ["llama.cpp"]
    assert judged({"llama.cpp": quiet, "jackfield": quiet[:1]})["noisy"] == []


def test_memory_is_judged_with_pythons_own_at_each_number_of_threads():
    def told(model, sizes):
        return {name: goal["verdict"] for name, goal in aims.memory_goals(model, sizes).items()}

    sizes = {"jackfield": 195_000_000, "imports": 53_000_000}
    small = {**sizes, "imports": 51_000_000}
    assert told("Q4_1", {1: sizes, 2: small}) == {
        "memory_1": "met (at most 196 MB)",
        "memory_2": "missed (at most 194 MB)",
    }
    for size, verdict in ((801_000_000, "missed (at most 800 MB)"), (799_000_000, "met (at most 800 MB)")):
        assert told("1.1B-Q4_0", {2: {**sizes, "jackfield": size}}) == {"memory_2": verdict}
    assert told("Q8_0", {1: sizes}) == told("Q4_1", {1: {"imports": 1}}) == {}


@pytest.mark.usefixtures("any_machine")
def test_a_goal_between_the_rounds_is_noisy():
    """Medians 1.2 times and more, one round below: another run may say the opposite. Rounds are paired."""
    peers = {"llama.cpp": [100.0, 100.0, 100.0], "ik_llama.cpp": [500.0, 600.0, 500.0]}
    found = judged({**peers, "jackfield": [590.0, 780.0, 650.0]})
    assert found["ratio_of_rounds"] == (pytest.approx(1.18), pytest.approx(1.3))
    assert found["goal"] == "noisy: 1.18 to 1.30 times in single rounds; by the medians met (1.2 times)"
    assert judged({**peers, "jackfield": [610.0, 780.0, 650.0]})["goal"] == "met (1.2 times)"
    assert judged({**peers, "jackfield": [590.0, 600.0, 500.0]})["goal"] == "missed (1.2 times)"
    late = judged({**peers, "jackfield": [580.0, 590.0, 610.0]})
    assert late["goal"] == "noisy: 0.98 to 1.22 times in single rounds; by the medians missed (1.2 times)"
    own = judged({**peers, "jackfield": [590.0, 600.0, 610.0]}, least=1.1, model="moe.gguf", targets=False)
    assert own["goal"].startswith("noisy: 1.00 to 1.22")
    assert judged({"llama.cpp": [100.0], "jackfield": [120.0]})["ratio_of_rounds"] is None


@pytest.mark.usefixtures("any_machine")
def test_a_goal_about_one_peer_is_noisy_by_its_rounds_alone():
    samples = {"llama.cpp": [100.0, 100.0], "ik_llama.cpp": [200.0, 50.0], "jackfield": [150.0, 150.0]}
    found = judged(samples, model="F16")
    assert (found["ratio_of_rounds"], found["goal"]) == ((1.5, 1.5), "met (1.1 times)")


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10))
def test_what_every_round_agrees_on_is_decided(goal, one, other):
    between = (min(one, other), max(one, other))
    assert judging.undecided(goal, between) == ((one >= goal) != (other >= goal))


@pytest.mark.parametrize(("figures", "noisy"), [([9e-6, 8e-6], False), ([11e-6, 12e-6], False), ([9e-6, 12e-6], True)])
def test_rounds_on_both_sides_of_an_absolute_goal_are_noisy(figures, noisy):
    aim = aims.Aim(10e-6, 10e-6, ("us", 1e-6), most=True)
    assert aim.judged(figures[0], samples=figures)["verdict"].startswith("noisy: 9 to 12 us") == noisy
    assert aim.judged(1.0, void="so", samples=[9e-6, 12e-6])["verdict"] == "void: so"


@pytest.mark.usefixtures("any_machine")
def test_more_than_the_machine_can_do_makes_the_roofline_void():
    """Other work slowed the roofline down: no share of it excuses a missed goal then."""
    peak = 4e11 / (1e9 + 2e9 / 512)
    samples = {"ik_llama.cpp": [0.98 * peak], "jackfield": [0.97 * peak]}
    fair = judged(samples)
    assert (fair["roofline_void"], fair["goal"]) == ("", "missed (1.2 times, at 97% of the roofline)")
    found = judged({**samples, "ik_llama.cpp": [1.02 * peak]})
    why = "ik_llama.cpp at 102%: the roofline was measured too low, so no share of it counts"
    assert (found["roofline_void"], found["goal"]) == (why, "missed (1.2 times)")
    row = {**found, "roofline_void": why}
    assert (compare_llama.share_told(row, "jackfield"), compare_llama.share_told(fair, "jackfield")) == ("void", "97%")


def test_verdicts_are_counted():
    words = ["met (x)", "missed (x)", "void: x", "", "met (y)"]
    assert aims.counted(words) == {"met": 2, "missed": 1, "void": 1}
    assert aims.counted([*words, "noisy: x"]) == {"met": 2, "missed": 1, "void": 1, "noisy": 1}
    model = {"rows": [{"goal": "met (x)"}, {"goal": ""}], "goals": {"memory": {"verdict": "void: x"}}}
    assert compare_llama.verdicts([model]) == ["met (x)", "", "void: x"]


def test_goals_speak_of_runs_of_full_size_alone():
    def whole(quick=False, **sizes):
        return compare_llama.Run((), "", compare_llama.Sizes(**sizes), (1,), quick).whole

    assert whole() and whole(runs=1, depths=(0,))
    assert not whole(prompt=16) and not whole(quick=True)


def test_depths_are_words_or_one_word():
    for words in (["0", "512", "2048"], ["0,512,2048"]):
        assert compare_llama.parsed(["Q4_1", "--depths", *words]).depths == (0, 512, 2048)
