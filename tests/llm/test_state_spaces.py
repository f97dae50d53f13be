"""Mamba's files: settings no recorded one has, states, padding, and what is refused."""

from __future__ import annotations

import families
import numpy as np
import pytest
from families import golden, nmse

import jackfield as jf
import jackfield_llm
from jackfield_llm import ModelError

NAMES = ("mamba", "falcon_mamba", "mamba2", "mamba2_one_group")
COUNTS = ("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count")


@pytest.fixture
def config(config):
    """config(name, key=value, ...): keys under `ssm.`; None takes one away."""
    return lambda name, **keys: config(name, **{f"ssm__{key}": value for key, value in keys.items()})


def load(path, device="reference"):
    return jackfield_llm.load(path, device, context=64)


# ---- settings


def test_norms_are_a_flag(config):
    assert config("falcon_mamba").layers[0].mixer.normed
    assert not config("falcon_mamba", dt_b_c_rms=None).layers[0].mixer.normed
    assert not config("mamba").layers[0].mixer.normed
    with pytest.raises(ModelError, match=r"mamba\.ssm\.dt_b_c_rms is 1: must be true or false"):
        config("mamba", dt_b_c_rms=1)


def test_a_convolution_looks_back(config):
    assert config("mamba2_one_group").recurrent.taps == 4
    with pytest.raises(ModelError, match=r"mamba\.ssm\.conv_kernel is 1: must be a whole number from 2"):
        config("mamba", conv_kernel=1)


def test_heads_and_groups_share_evenly(config):
    with pytest.raises(ModelError, match=r"ssm\.time_step_rank is 5: must be a divisor of the 96 channels"):
        config("mamba2", time_step_rank=5)
    with pytest.raises(ModelError, match=r"ssm\.group_count is 4: must be a divisor of the 6 heads"):
        config("mamba2", group_count=4)


def test_snapshots_need_one_rate_a_head(config):
    """The op gives states before the last only for these."""
    assert not config("mamba").recurrent.snapshots
    assert config("mamba2").recurrent.snapshots


@pytest.mark.parametrize("name", NAMES)
def test_there_is_no_cache_of_keys(name, family_path):
    """However long the context: what is stored is the end of the convolution and the sum."""
    size = families.family_files.by_name(name).state_space
    channels = size.inner + 2 * size.groups * size.state
    with load(family_path(name)) as model:
        model.prefill([1, 2, 3])
        shapes = {state: held.read().shape[1:] for state, held in model.session.states.items()}
    heads = (size.rank, size.inner // size.rank) if size.groups else (size.inner, 1)
    for layer in range(2):
        assert shapes[f"conv{layer}"] == ((size.taps - 1) * channels,)
        assert shapes[f"scan{layer}"] == (*heads, size.state)
    assert len(shapes) == 4


# ---- padding


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 31])
def test_padding_leaves_states_alone(name, count, family_path):
    """Rows of tokens that are none, in front of a text's beginning and of its middle."""
    ids, _ = golden(name)
    states = []
    with load(family_path(name)) as model:
        for cut in (0, 2):
            single, padded = [], []
            for steps, into in (([1] * count, single), ([count], padded)):
                model.reset()
                for token in ids[:cut]:
                    model.decode(token)
                at = cut
                for step in steps:
                    row = model.prefill(ids[at : at + step])
                    at += step
                into.append(row)
                into += [newest(model, f"{kind}{layer}") for kind in ("conv", "scan") for layer in (0, 1)]
            for one, other in zip(single, padded, strict=True):
                assert nmse(other, one) < 1e-9
            states += padded[1:]
    assert all(np.abs(state).max() > 1e-3 for state in states)


def newest(model, name):
    """The state after the last token."""
    slot = model._decoder.checkpoints.slot(len(model.cached))
    return model.session.states[name].read()[slot].copy()


# ---- refused


@pytest.mark.parametrize("value", [0, 7, 2**31 - 1, 2**32 - 1, 2.5])
@pytest.mark.parametrize(
    ("name", "key"), [*(("mamba", key) for key in COUNTS[:-1]), *(("mamba2", key) for key in COUNTS)]
)
def test_absurd_counts(key, value, name, opened):
    """An error that names what is wrong, before anything of that size is asked for."""
    file = opened(name)
    file.metadata[f"{name}.{key}"] = value
    with pytest.raises(ModelError, match=rf"{name}\.ssm\.\w+ is .*: must be|hyperparameters say"):
        load("x")


@pytest.mark.parametrize(
    ("name", "stem"),
    [("mamba", "ssm_conv1d.weight"), ("mamba", "ssm_a"), ("mamba2", "ssm_d"), ("mamba2", "ssm_norm.weight")],
)
def test_tables_that_are_rounded_are_refused(name, stem, opened):
    """Converters never round them, and the ops read f32."""
    file = opened(name)
    for layer in (0, 1):
        tensor = file.tensors[f"blk.{layer}.{stem}"]
        half = tensor.numpy().astype(np.float16)
        changed = families.Tensor(tensor.shape, jf.f16, memoryview(half).cast("B"))
        file.tensors[f"blk.{layer}.{stem}"] = changed
    with pytest.raises(ModelError, match=rf"tensor blk\.0\.{stem} is f16: must be f32"):
        load("x")


def test_biases_of_products_are_added_where_a_file_has_them(opened):
    """Zeros change nothing, other numbers do."""
    file = opened("mamba")
    ids, theirs = golden("mamba")
    outputs = file.tensors["blk.0.ssm_out.weight"].shape[0]
    distances = []
    for value in (0.0, 0.5):
        raw = memoryview(np.full(outputs, value, np.float32)).cast("B")
        for layer in (0, 1):
            file.tensors[f"blk.{layer}.ssm_out.bias"] = families.Tensor((outputs,), jf.f32, raw)
        with load("x") as model:
            distances.append(nmse(model.logits(ids), theirs))
    assert distances[0] < 1e-9
    assert distances[1] > 1e-3
