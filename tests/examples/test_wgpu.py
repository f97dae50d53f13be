"""examples/jackfield-wgpu as its users have it: a wheel, installed, on the adapter that is here.

A sample of the kit; the whole of level silver is a step of .ci/full.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import presence
import pytest
from environments import Environment

EXAMPLE = Path(__file__).parents[2] / "examples/jackfield-wgpu"
# Without `claims`, which test_wgpu_parts.py asks, and the long ones: memory and threads.
SUITES = (
    *("packaging", "manifest", "registry", "lifecycle", "names", "buffers", "errors"),
    *("ops", "views", "block-dtypes", "packed", "guards"),
    *("fork", "fallback", "window"),  # what level gold adds, but for a list of ops that no example needs
)


def start(environment, *words):
    settings = {k: v for k, v in os.environ.items() if not k.startswith("JACKFIELD_") or k == "JACKFIELD_CACHE"}
    run = [environment.python, "-m", "jackfield", *map(str, words)]
    return subprocess.run(run, env=settings, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """(environment with the wheel, name of its first device)."""
    uv = shutil.which("uv") or presence.absent("uv", "uv is not installed")
    if importlib.util.find_spec("wgpu") is None:
        presence.absent("wgpu", "the package wgpu is not installed: uv sync --group wgpu")
    folder = tmp_path_factory.mktemp("wgpu")
    build = [uv, "build", "-q", "--wheel", "--out-dir", folder / "dist", "--python", sys.executable, EXAMPLE]
    subprocess.run(build, check=True, capture_output=True, text=True)
    environment = Environment(folder)
    environment.install(*(folder / "dist").glob("*.whl"))
    found = "import jackfield as jf; print(*[d.name for d in jf.devices() if d.kind == 'wgpu'])"
    _, out, err = environment.run(found)
    if not out.split():
        presence.absent("wgpu", f"no adapter; on Debian: apt-get install mesa-vulkan-drivers; {err}")
    return environment, out.split()[0]


def test_a_sample_of_the_kit(installed, tmp_path):
    environment, device = installed
    suites = [word for suite in SUITES for word in ("--suite", suite)]
    report = tmp_path / "report.json"
    done = start(environment, "conform", device, *suites, "--sample", 1, "--report", report)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(report.read_text())["suites"]
    assert counts["ops"]["passed"] > 80
    assert counts["views"]["passed"] > 80
    for suite in ("fork", "fallback", "window"):
        assert counts[suite]["passed"] == sum(counts[suite].values()) > 1, suite


CASTS = """
import numpy as np, ml_dtypes, jackfield as jf
def cast(a, old, new):
    x = jf.input("x", a.shape, getattr(jf, old))
    return jf.compile(jf.ops.cast(x, dtype=new), device=DEVICE, policy="strict")(x=a)
def same(got, want):
    nan = want != want
    assert ((got != got) == nan).all()
    bits = f"u{want.itemsize}"
    wrong = (got.view(bits) != want.view(bits)) & ~nan
    assert not wrong.any(), (got[wrong][:3], want[wrong][:3])
halves = np.arange(1 << 16, dtype=np.uint16)
same(cast(halves.view(np.float16), "f16", "f32"), halves.view(np.float16).astype(np.float32))
same(cast(halves.view(ml_dtypes.bfloat16), "bf16", "f32"), halves.view(ml_dtypes.bfloat16).astype(np.float32))
rng = np.random.default_rng(0)
steps = np.array([[0], [4095], [4096], [4097]], np.uint32)  # to the middle between two f16, and beside it
near = halves.view(np.float16).astype(np.float32).view(np.uint32)[None] + steps
bits = np.concatenate([near.reshape(-1), rng.integers(0, 1 << 32, 1 << 17, dtype=np.uint64).astype(np.uint32)])
floats = bits.view(np.float32)
with np.errstate(all="ignore"):
    same(cast(floats, "f32", "f16"), floats.astype(np.float16))
    same(cast(floats, "f32", "bf16"), floats.astype(ml_dtypes.bfloat16))
    whole = np.clip(np.trunc(floats.astype(np.float64)), -(2**31), 2**31 - 1)
same(cast(floats, "f32", "i32"), np.where(np.isnan(floats), 0, whole).astype(np.int32))
same(cast(bits.view(np.int32), "i32", "f32"), bits.view(np.int32).astype(np.float32))
print("exact")
"""


def test_conversions_are_exact(installed):
    """Every f16 and bf16, what lies between two f16, and random bits: with integers, so that no driver has a say."""
    environment, device = installed
    code, out, err = environment.run(f"DEVICE = {device!r}\n{CASTS}")
    assert (code, out.strip()) == (0, "exact"), err


NAMES = """
import jackfield as jf
soft = [d.name for d in jf.devices() if d.name == "wgpu:soft"]
x = jf.input("x", (3,))
assert not soft or "wgpu:soft" not in jf.Session().devices
try:
    jf.Session("wgpu").close()
    print("card")
except jf.errors.DeviceNameError as e:
    assert "wgpu:soft" in str(e), e
    print("soft")
"""


def test_a_software_adapter_is_used_where_it_is_named_alone(installed):
    environment, device = installed
    code, out, err = environment.run(NAMES)
    assert (code, out.strip()) == (0, "soft" if device == "wgpu:soft" else "card"), err
    assert "XDG" not in err


ABSENT = """
import jackfield as jf
jf.devices()
(status,) = [s for s in jf.status() if s.name == "wgpu"]
try:
    jf.Session("wgpu")
except jf.errors.Unavailable as e:
    assert "mesa-vulkan-drivers" in str(e), e
    print(status.state, status.code, *jf.Session().devices)
"""


def test_without_a_driver(installed):
    """The loader of Vulkan is told of no driver: a state that is normal, with a hint; the app goes on elsewhere."""
    environment, _ = installed
    hidden = dict.fromkeys(("VK_ICD_FILENAMES", "VK_DRIVER_FILES"), "/nonexistent.json")
    code, out, err = environment.run(ABSENT, **hidden)
    assert code == 0, err
    assert out.split()[:2] == ["absent", "no-device"]
    assert "wgpu" not in out


MIXED = """
import numpy as np, jackfield as jf
x, rows = jf.input("x", (4, 8)), jf.input("rows", (2,), jf.i32)
y = jf.ops.take_rows(jf.ops.softmax(jf.ops.expm1(jf.ops.add(x, x))), rows)
plan = jf.compile(y, device=DEVICE + "+cpu", pins={"(add|softmax|take_rows).0": DEVICE})
data = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
want = np.exp(np.expm1(2 * data))
want /= want.sum(-1, keepdims=True)
assert np.allclose(plan(x=data, rows=np.array([3, 0], np.int32)), want[[3, 0]], rtol=1e-5)
try:
    plan(x=data, rows=np.array([1, 7], np.int32))
except jf.errors.BadIndex as e:
    assert "take_rows" in str(e) and "7" in str(e)
    assert np.allclose(plan(x=data, rows=np.array([2, 1], np.int32)), want[[2, 1]], rtol=1e-5)
    print(*plan.devices)
"""


def test_beside_the_cpu(installed):
    """Bytes cross both ways, and a bad index is told after what was queued; the next call is right."""
    presence.opens("cpu:0")
    environment, device = installed
    code, out, err = environment.run(f"DEVICE = {device!r}\n{MIXED}")
    assert (code, out.split()) == (0, [device, "cpu:0"]), err


TOKENS = """
import sys
import jackfield_llm

def check(plan, where):
    # Of a plan that ran: all its work was given to the device, by the report and by the parts of the call.
    report, events = plan.explain().to_dict(), plan.trace()["traceEvents"]
    linears = [node for node in report["nodes"] if node["op"] == "linear"]
    assert len(linears) > 100, len(linears)
    elsewhere = [node["id"] for node in linears if node["device"] != where]
    assert not elsewhere, f"{len(elsewhere)} of {len(linears)} products are not on {where}: {elsewhere[:3]}"
    share = report["summary"]["share"].get(where, 0)
    assert share > 0.99, f"{where} has {share:.0%} of the estimated work"
    ran = {}
    for event in events:
        if "nodes" in event.get("args", {}):
            ran[event["args"]["device"]] = ran.get(event["args"]["device"], 0) + len(event["args"]["nodes"])
    assert ran.get(where, 0) > 0.99 * sum(ran.values()), ran
    return ran[where]

def answer(device, where, **more):
    model = jackfield_llm.load(PATH, device=device, context=64, batch=4, **more)
    text = "".join(model.generate("The sky is blue because", max_tokens=COUNT, raw=True))
    ran = [check(plan, where) for plan in model._decoder.plans.values() if plan.trace()["traceEvents"]]
    assert len(ran) > 1, "the prompt and the answer have a plan each"
    cached = model.cached
    model.close()
    return text, cached, ran
"""
SAME = """
mine, want = answer(DEVICE + "+cpu", DEVICE), answer("cpu", "cpu:0")
print(mine, want, sep="\\n")
assert mine[:2] == want[:2]
assert len(mine[1]) >= COUNT
"""
FALLEN = """
try:
    answer(DEVICE + "+cpu", DEVICE, pins={r"blk[.].*|[kv][0-9]+": "cpu"})
except AssertionError as e:
    print(e)
"""


def tokens_on(installed, model, code):
    """24 tokens after a prompt of 5 and less."""
    environment, device = installed
    return environment.run(f"COUNT, DEVICE, PATH = 24, {device!r}, {str(model)!r}\n{TOKENS}{code}")


def test_the_first_tokens_of_the_default_model(installed, default_model):
    """Those of the CPU alone, and nothing of the work fell to the CPU: its answer would be right too."""
    presence.opens("cpu:0")
    code, out, err = tokens_on(installed, default_model, SAME)
    assert code == 0, out + err


def test_a_fall_to_the_cpu_is_seen(installed, default_model):
    """The check above is one that fails."""
    presence.opens("cpu:0")
    code, out, err = tokens_on(installed, default_model, FALLEN)
    assert (code, "products are not on" in out) == (0, True), out + err
