"""Model files with the right structure and hostile content: an error that names what is wrong, before anything runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import families
import gguf
import numpy as np
import pytest

import jackfield as jf
import jackfield_llm
from jackfield_llm.chat import ChatTemplate
from jackfield_llm.errors import ChatError, ModelError, shown
from jackfield_llm.weights import Weights

ESCAPE = "\x1b]0;mine\x07"
LLAMA = families.family_files.by_name("llama")


class Edited(gguf.GGUFWriter):
    """Writes other values under some keys, and other tensors."""

    edits: dict
    tensors_instead: dict

    def write_header_to_file(self, path=None):
        for key, value in self.edits.items():
            found = self.kv_data[0].get(key)
            if found is None:
                kind = gguf.GGUFValueType.FLOAT32 if isinstance(value, float) else gguf.GGUFValueType.UINT32
                self.add_key_value(key, value, gguf.GGUFValueType.STRING if isinstance(value, str) else kind)
            else:
                found.value = value
        super().write_header_to_file(path)

    def add_tensor(self, name, tensor, *args, **keywords):
        if name in self.tensors_instead:
            changed = self.tensors_instead[name](tensor)
            tensor, keywords["raw_dtype"] = changed if isinstance(changed, tuple) else (changed, None)
        super().add_tensor(name, tensor, *args, **keywords)


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """edited(keys, tensors): the tiny llama's file with these changes."""

    def write(keys=None, tensors=None, more=()):
        class Writer(Edited):
            edits, tensors_instead = keys or {}, tensors or {}

            def __init__(self, *args, **given):
                super().__init__(*args, **given)
                for name in more:
                    super().add_tensor(name, np.zeros(4, np.float32))

        monkeypatch.setattr(families.family_files.gguf, "GGUFWriter", Writer)
        path = tmp_path / "edited.gguf"
        families.family_files.write(LLAMA, path)
        return path

    return write


def load(path):
    return jackfield_llm.load(path, "reference", context=16)


ABSURD = (0, 3, 2**31 - 1, 2**32 - 1)
COUNTS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "block_count",
    "embedding_length",
    "expert_count",
    "feed_forward_length",
    "rope.dimension_count",
)


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key in COUNTS for value in ABSURD if (key, value) != ("expert_count", 0)]
)
def test_absurd_counts(edited, key, value):
    with pytest.raises(ModelError, match=r"must be|hyperparameters say|lacks"):
        load(edited({f"llama.{key}": value}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("key", ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"])
def test_absurd_numbers(edited, key, value):
    with pytest.raises(ModelError, match=rf"llama\.{key} is {value}"):
        load(edited({f"llama.{key}": value}))


def test_an_absurd_context_takes_no_memory(edited):
    with load(edited({"llama.context_length": 2**31 - 1})) as model:
        assert model.context == 16


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64, np.float64])
@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_q.weight", "output.weight"])
def test_matrices_of_a_type_that_no_product_takes_are_named(edited, name, kind):
    with pytest.raises(ModelError, match=rf"tensor {name} is .*: a matrix must be"):
        load(edited(tensors={name: lambda a: a.astype(kind)}))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("scale", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.ffn_up.weight"])
def test_scales_that_are_no_numbers_never_become_text(edited, name, kind, scale):
    kind = gguf.GGMLQuantizationType[kind]

    def broken(array):
        raw = gguf.quants.quantize(array, kind).copy()
        raw[:, :2] = np.array(scale, np.float16).reshape(1).view(np.uint8)
        return raw, kind

    with pytest.raises(jf.Error, match=rf"{name}.* has a scale that is no finite number"):
        load(edited(tensors={name: broken}))


# ---- names and texts of strangers in errors


@pytest.mark.parametrize("name", [ESCAPE, "blk.0." + ESCAPE, f"blk.{'9' * 5000}.x", "blk.٣.x", "a\nb", "x" * 60_000])
def test_names_of_tensors_in_errors_are_short_and_safe(name):
    file = families.Changed({}, {name: families.Tensor((4,), jf.f32), "blk.1.y": families.Tensor((4,), jf.f32)})
    for check in (Weights(file).check_all_used, lambda: Weights(file).check_layers([0, 0])):
        with pytest.raises(ModelError) as caught:
            check()
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("key", ["general.architecture", "tokenizer.ggml.pre", "tokenizer.ggml.model"])
@pytest.mark.parametrize("text", [ESCAPE, "y" * 100_000, "line\nline"])
def test_texts_in_errors_are_short_and_safe(edited, key, text):
    with pytest.raises(ModelError) as caught:
        load(edited({key: text}))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 4000


def test_merges_in_errors_are_short(edited):
    path = edited({"tokenizer.ggml.merges": ["a " + "b" * 100_000]})
    with pytest.raises(ModelError, match="merges joins 'a' and 'bbb") as caught:
        load(path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "value", ["", "a", "é", 5, [1], "x" * 10**6, b"y" * 10**6, "\x1b", "\ud800", list(range(10**5))]
)
def test_shown(value):
    assert shown(value).isprintable()
    assert len(shown(value)) <= 83
    assert repr(value).startswith(shown(value).removesuffix("..."))


# ---- the program without its streams


def program(redirection, *arguments):
    """The program `jackfield` with one of its streams redirected by a shell."""
    command = [sys.executable, "-m", "jackfield", *arguments]
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command]
    return subprocess.run(shell, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("redirection", ["", "<&-"])
def test_a_closed_standard_input_is_an_empty_one(chat_path, redirection):
    model = ("-m", str(chat_path), "-d", "reference")
    generated = program(redirection, "generate", "-", "--raw", *model)
    assert (generated.returncode, generated.stdout) == (1, "")
    assert generated.stderr == "Error: no tokens to evaluate: the prompt is empty\n"
    talked = program(redirection, "chat", *model)
    assert (talked.returncode, talked.stdout) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
@pytest.mark.parametrize("json", [(), ("--json",)])
@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_full_disk_is_told_in_one_line(chat_path, json, unbuffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)  # with a buffer, Python writes once more at exit
    model = ("-m", str(chat_path), "-d", "reference")
    for arguments in (("generate", "hi", "-n", "1", *model), ("devices",), ("doctor",)):
        done = program("> /dev/full", *arguments, *json)
        assert done.returncode == 1
        assert done.stderr.endswith("Error: [Errno 28] No space left on device\n")
        assert "Traceback" not in done.stderr


# ---- templates that would fill memory or never end


BOMBS = {
    "doubled": "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "added": "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "lists": "{% set n = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "times": "{{ 'a' * 10**12 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "percent": "{{ '%0999999999d' % 3 }}",
    "percent star": "{{ '%*d' % (999999999, 3) }}",
    "format filter": "{{ '%0999999999d' | format(3) }}",
    "format": "{{ '{:0999999999}'.format(3) }}",
    "format nested": "{{ '{:{}}'.format(3, 999999999) }}",
    "format_map": "{{ '{a:0999999999}'.format_map({'a': 3}) }}",
    "ljust": "{{ 'a'.ljust(10 ** 12) }}",
    "center": "{{ 'a' | center(10 ** 12) }}",
    "center keyword": "{{ 'a' | center(width=10 ** 12) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10 ** 9) }}",
    "zfill": "{{ 'a'.zfill(10 ** 12) }}",
    "indent": "{{ 'a\\nb' | indent(10 ** 12) }}",
    "batch": "{{ [1] | batch(10 ** 12, 'x') | list }}",
    "slices": "{{ [1] | slice(10 ** 12) | list }}",
    "json": "{{ [1] | tojson(indent=10 ** 12) }}",
    "replace": "{{ ('a' * 2 ** 20).replace('a', 'b' * 2 ** 20) }}",
    "replace filter": "{{ ('a' * 2 ** 20) | replace('a', 'b' * 2 ** 20) }}",
    "join": "{{ ('a' * 2 ** 20).join(['b'] * 2 ** 20) }}",
    "join filter": "{{ (['a' * 2 ** 20] * 2 ** 20) | join }}",
    "join glue": "{{ (['a'] * 2 ** 20) | join('b' * 2 ** 20) }}",
    "lorem": "{{ lipsum(n=100000) }}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "printed": "{% for i in range(99999) %}{{ 'a' * 2 ** 20 }}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_templates_are_bounded(name):
    with pytest.raises(ChatError, match="failed"):
        ChatTemplate(BOMBS[name] + "{{ n.x | length }}" * ("n = " in BOMBS[name])).render([])


def test_a_template_has_a_time(monkeypatch):
    """Filters take no steps: 100,000 sums of 100,000 numbers would take minutes."""
    monkeypatch.setattr("jackfield_llm.sandbox._SECONDS", 0.2)
    template = ChatTemplate("{% for i in range(99999) %}{% set x = range(99999) | sum %}{% endfor %}")
    with pytest.raises(ChatError, match="seconds"):
        template.render([])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' ~ 1 ~ nothing ~ ['b'] }}", "a1['b']"),
        ("{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 1 + 2 }}", "ab[1, 2]3"),
        ("{{ '%s-%03d' % ('a', 5) }}{{ 7 % 4 }}{{ '%s' | format(3) }}", "a-0053" + "3"),
        ("{{ '{:>4}|{}'.format('a', 10 ** 12) }}", "   a|1000000000000"),
        ("{{ ', '.join(['a', 'b']) }}{{ [1, 2] | join('-') }}{{ range(3) | map('string') | join }}", "a, b1-2012"),
        ("{{ 'aba' | replace('a', 'c') }}{{ 'aba'.replace('a', '') }}{{ 'a' | center(3) }}|", "cbcb a |"),
        ("{{ [1, 2, 3] | batch(2, 'x') | list }}{{ 1.26 | round(1) }}", "[[1, 2], [3, 'x']]1.3"),
        ("{{ {'a': 1} | tojson }}{{ [1] | tojson(indent=1) }}", '{"a": 1}[\n 1\n]'),
    ],
)
def test_bounds_change_no_template_that_keeps_them(source, text):
    assert ChatTemplate(source).render([]) == text
