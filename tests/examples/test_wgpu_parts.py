"""What of examples/jackfield-wgpu needs no adapter: claims, windows, grids, numbers, names, every shader's text."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jackfield_wgpu.adapters import card_of, named
from jackfield_wgpu.backend import LEAST, WgpuBackend
from jackfield_wgpu.dispatch import each
from jackfield_wgpu.kernels import ENTRIES, dispatches
from jackfield_wgpu.kernels.norms import slopes
from jackfield_wgpu.program import grid
from jackfield_wgpu.shading import layout, source
from jackfield_wgpu.windows import windows

from jackfield import backend as jb
from jackfield import rules
from jackfield.conformance.cases import examples
from jackfield.conformance.claims import claims
from jackfield.dtypes import f16, f32, u8
from jackfield.op import OPS
from jackfield.registry import Registry

EXAMPLE = Path(__file__).parents[2] / "examples/jackfield-wgpu"
BACKEND = WgpuBackend()


def test_claims_are_what_the_kernels_take():
    """Written anew by `python -m jackfield_conformance wgpu`, where the wheel is installed."""
    assert claims(BACKEND, LEAST) == (EXAMPLE / "claims.txt").read_text()


def test_every_op_of_the_first_priority_has_a_kernel():
    wanted = {name for name, op in OPS.items() if op.declared.priority == "P0" and not op.is_view}
    assert wanted == set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_shaders_know_the_numbers_they_read(name):
    """A field that is not given, a word that is not filled in, and a workgroup too few show in the text alone."""
    seen = set()
    for example in examples(OPS[name]):
        step = jb.Step(name, example.specs, example.result, example.attrs)
        refused = jb.refusal(step, BACKEND.kernels(), LEAST) or BACKEND.why_not(step, LEAST)
        if example.layout != "dense" or refused:
            continue
        there = [spec for spec in example.specs if spec is not None]
        buffers = [SimpleNamespace(size=max(4, -(-spec.extent_nbytes // 4) * 4)) for spec in (*there, example.result)]
        places = iter([jb.Place(b, 0, spec) for b, spec in zip(buffers, there, strict=False)])
        operands = tuple(None if spec is None else next(places) for spec in example.specs)
        for one in dispatches(jb.PlacedStep(step, operands, jb.Place(buffers[-1], 0, example.result))):
            assert one.groups >= 1
            shown = windows({**one.reads, "out": one.out}, one.units, 256, LEAST.limits.max_operand)
            fields, raw = layout({**one.numbers, **shown.bases, "groups": one.groups, "infinite": 0, "step": 1})
            key = one.shader, fields
            if key in seen:
                continue
            seen.add(key)
            text = source(one.shader, shown.tensors, shown.accesses, fields)
            given_names = {line.split(":")[0].strip() for line in fields}
            assert set(re.findall(r"\bp\.(\w+)", text)) <= given_names
            assert "$" not in text
            assert text.count("{") == text.count("}")
            assert len(raw) % 16 == 0
    assert seen


@given(st.data())
def test_windows_show_each_tensor_whole(data):
    most = data.draw(st.sampled_from([1024, 4096, 1 << 20]))
    blocks = [SimpleNamespace(size=16384) for _ in range(data.draw(st.integers(1, 3)))]
    places = {}
    for name in ("x", "mask", "out"):
        dtype = data.draw(st.sampled_from([f32, f16, u8]))
        count = data.draw(st.integers(0, 512 // dtype.block_nbytes))
        offset = data.draw(st.integers(0, (16384 - 512) // 4)) * 4
        places[name] = jb.Place(data.draw(st.sampled_from(blocks)), offset, jb.Spec(dtype, (count,)))
    shown = windows(places, {}, 256, most)
    for tensor in shown.tensors:
        place, window = places[tensor.name], shown.windows[tensor.slot]
        nbytes = place.spec.dtype.block_nbytes
        assert window.block is place.buffer
        assert window.low <= place.offset
        assert place.offset + place.spec.nbytes <= window.high
        assert window.low + shown.bases[f"{tensor.name}_base"] * nbytes == place.offset
    for window, access in zip(shown.windows, shown.accesses, strict=True):
        assert window.low % 256 == 0
        assert 0 < window.high - window.low <= max(most, 1024)
        assert (window.high - window.low) % 4 == 0
        assert (access == "read") is (window.block is not places["out"].buffer)
        if access != "read":
            assert (access == "atomic") is (places["out"].spec.dtype is not f32)


@given(st.integers(1, 65535 * 65535))
def test_a_grid_holds_all_groups_and_few_more(groups):
    x, y = grid(groups)
    assert 1 <= x <= 65535
    assert 1 <= y <= 65535
    assert groups <= x * y < groups + y


@given(st.integers(0, 1 << 20))
def test_no_dispatch_is_of_nothing(size):
    assert each(size) >= 1
    assert (each(size) - 1) * 64 < max(size, 1) <= each(size) * 64


def test_numbers_lie_where_wgsl_looks():
    """vec4 is aligned to 16 bytes, a scalar to 4: wide fields come first, so there are no gaps."""
    fields, raw = layout({"a": 7, "shape": (1, 2, 3, 4), "b": -1.5, "c": -1, "flag": True})
    assert [line.strip() for line in fields] == ["shape: vec4<u32>,", "a: u32,", "b: f32,", "c: u32,", "flag: u32,"]
    assert np.frombuffer(raw[:20], np.uint32).tolist() == [1, 2, 3, 4, 7]
    assert np.frombuffer(raw[20:24], np.float32)[0] == -1.5
    assert np.frombuffer(raw[24:32], np.uint32).tolist() == [2**32 - 1, 1]


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12])
@pytest.mark.parametrize("bias", [0.0, 8.0])
def test_slopes_are_the_cores(heads, bias):
    assert np.allclose(slopes(heads, bias), rules.slopes(heads, bias), rtol=1e-6)


def adapter(kind):
    return SimpleNamespace(info={"adapter_type": kind})


def test_cards_are_numbered_and_a_software_adapter_is_not():
    adapters = [adapter("CPU"), adapter("DiscreteGPU"), adapter("CPU"), adapter("IntegratedGPU")]
    assert [(one.name, adapters.index(one.adapter)) for one in named(adapters)] == [
        ("wgpu:0", 1),
        ("wgpu:1", 3),
        ("wgpu:soft", 0),
    ]


def test_a_card_is_known_where_one_alone_has_its_ids(tmp_path):
    info = {"vendor_id": 0x10DE, "device_id": 0x2335}
    for place, device in (("0000:01:00.0", "0x2335"), ("0000:02:00.0", "0x1234")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "vendor").write_text("0x10de\n")
        (tmp_path / place / "device").write_text(f"{device}\n")
    assert card_of(info, tmp_path) == "pci-0000:01:00.0"
    (tmp_path / "0000:02:00.0" / "device").write_text("0x2335\n")
    assert card_of(info, tmp_path) == ""
    assert card_of(info, tmp_path / "nothing") == ""


class Soft(jb.Device):
    name = "softy:soft"
    target = jb.Target("softy", "none")

    def nothing(self, *_):
        raise NotImplementedError

    alloc = free = write = read = compile = nothing


class Softy(jb.Backend):
    name = "softy"
    api = (0, 1)

    def devices(self):
        return [Soft()]

    def kernels(self):
        return {}


def test_where_there_is_no_card_the_name_of_the_software_one_is_told():
    registry = Registry()
    registry.register(Softy, "gpu", __file__)
    with pytest.raises(jb.Error, match="answer to their exact name: softy:soft"):
        registry.select("softy")
    assert "softy:soft" not in [opened.name for opened in registry.select("auto").devices]
