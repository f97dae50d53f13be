"""Our side of a comparison: one measurement a process, one JSON document on stdout.

    python bench/ours.py facts MODEL COUNT                        what a token costs, and COUNT ids of a text
    python bench/ours.py prompt MODEL DEVICE TOKENS               tokens a second after a warm-up of the same length
    python bench/ours.py generate MODEL DEVICE TOKENS DEPTH       tokens a second, DEPTH tokens in the cache before
    python bench/ours.py first MODEL DEVICE SHORT LONG            seconds of loading and of first tokens
    python bench/ours.py score MODEL DEVICE SINGLES ID...         -log probability of each next id, as peer-probe has it
    python bench/ours.py memory MODEL DEVICE TOKENS CONTEXT       fills a context, the last TOKENS one by one
    python bench/ours.py imports MODEL DEVICE                     only imports what a run imports

The number of threads is JACKFIELD_CPU_THREADS'. compare_llama.py calls this; it measures the process's memory from
outside and must stay small itself, which is why all that is large is imported here.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import jackfield as jf
import jackfield_llm

FLOATS = {"BF16": "bf16", "F16": "f32", "F32": "f32"}
"""The arithmetic that bounds a file type; all others are bound by int8. F16 with f16's accuracy is f32's."""


def facts(model: str, count: int) -> dict[str, object]:
    """What one token costs, whatever the device, and `count` ids of the text that evaluations use.

    block_ops, output_ops: operations of the matrix products of a token in the layers, and of its logits.
    weight_nbytes: bytes of the weights read for a token. column_nbytes: of keys and values in f16, a cached token.
    Of experts, those count that a token takes.
    """
    from jackfield_llm.config import read_config  # noqa: PLC0415 - no measurement may pay for it
    from jackfield_llm.quantization import FILE_TYPES  # noqa: PLC0415 - likewise

    names = {
        kind.number: name for name, kind in reversed(list(FILE_TYPES.items()))
    }  # the first of those that share a number
    with jf.gguf.open(Path(model)) as file:
        config = read_config(file.metadata)
        tokenizer = jackfield_llm.Tokenizer.from_metadata(file.metadata)
        kind = names.get(file.metadata.get("general.file_type", -1), "unknown")
        tensors = dict(file.tensors)
        output = tensors.get("output.weight", tensors["token_embd.weight"])
        experts = next((layer.experts for layer in config.layers if layer.experts), None)
        taken = experts.used / experts.count if experts else 1.0
        parts = {name: taken if "_exps." in name else 1.0 for name in tensors}
        matrices = [(t, parts[name]) for name, t in tensors.items() if len(t.shape) > 1 and name.startswith("blk.")]
        read = [(t, parts[name]) for name, t in tensors.items() if name != "token_embd.weight" or t is output]
        heads = config.kv_heads * (config.head_size + config.value_size)
        return {
            "type": kind,
            "arithmetic": FLOATS.get(kind, "int8"),
            "file_nbytes": Path(model).stat().st_size,
            "block_ops": int(2 * sum(part * math.prod(t.shape) for t, part in matrices)),
            "output_ops": 2 * output.shape[0] * output.shape[1],
            "weight_nbytes": int(sum(part * t.nbytes for t, part in read)),
            "column_nbytes": len(config.layers) * heads * 2,
            "ids": tokenizer.encode(jackfield_llm.default_text())[:count],
        }


def some_ids(loaded: jackfield_llm.Model, count: int) -> list[int]:
    """Random ids: speed does not depend on which."""
    dice = random.Random(0)
    words = loaded.tokenizer.vocab_size
    return [dice.randrange(words) for _ in range(count)]


def timed_prefill(loaded: jackfield_llm.Model, ids: list[int]) -> float:
    """Seconds from an empty cache to the logits of the last position."""
    loaded.reset()
    start = time.perf_counter()
    loaded.prefill(ids)
    return time.perf_counter() - start


def timed_decode(loaded: jackfield_llm.Model, ids: list[int]) -> float:
    """Seconds for one token after the other, logits of each read."""
    start = time.perf_counter()
    for token in ids:
        loaded.decode(token)
    return time.perf_counter() - start


def prompt(model: str, device: str, tokens: int) -> dict[str, float]:
    with jackfield_llm.load(model, device=device, context=tokens) as loaded:
        ids = some_ids(loaded, tokens)
        timed_prefill(loaded, ids)
        return {"tokens_per_s": tokens / timed_prefill(loaded, ids)}


def generate(model: str, device: str, tokens: int, depth: int) -> dict[str, float]:
    """After the warm-up of llama-bench: one token."""
    with jackfield_llm.load(model, device=device, context=depth + tokens) as loaded:
        ids = some_ids(loaded, depth + tokens)
        loaded.decode(ids[0])
        loaded.reset()
        if depth:
            loaded.prefill(ids[:depth])
        return {"tokens_per_s": tokens / timed_decode(loaded, ids[depth:])}


def first(model: str, device: str, shorter: int, longer: int) -> dict[str, float]:
    """Seconds of loading, of the first token after `shorter` tokens right then, and after `longer` once warmed up."""
    imports(device)
    start = time.perf_counter()
    with jackfield_llm.load(model, device=device, context=max(shorter, longer)) as loaded:
        load_s = time.perf_counter() - start
        short_s = timed_prefill(loaded, some_ids(loaded, shorter))
        ids = some_ids(loaded, longer)
        timed_prefill(loaded, ids)
        return {"load_s": load_s, "short_s": short_s, "long_s": timed_prefill(loaded, ids)}


def score(model: str, device: str, singles: int, ids: list[int]) -> dict[str, list[float]]:
    """-log of the probability of each next id: all but the last `singles` evaluated together, those one by one."""
    together = len(ids) - singles
    with jackfield_llm.load(model, device=device, context=len(ids)) as loaded:
        rows = loaded.logits(ids[:together])[:-1]
        batch = [surprise(row, token) for row, token in zip(rows, ids[1:together], strict=True)]
        single = [surprise(loaded.decode(ids[i]), ids[i + 1]) for i in range(together, len(ids) - 1)]
    return {"batch": batch, "single": single}


def surprise(logits: np.ndarray, token: int) -> float:
    wide = logits.astype(np.float64)
    most = wide.max()
    return float(np.log(np.exp(wide - most).sum()) + most - wide[token])


def memory(model: str, device: str, tokens: int, context: int) -> dict[str, float]:
    with jackfield_llm.load(model, device=device, context=context) as loaded:
        ids = some_ids(loaded, context)
        loaded.prefill(ids[:-tokens])
        timed_decode(loaded, ids[-tokens:])
    return {}


def imports(device: str) -> dict[str, float]:
    """What a run of ours has imported at its end: late imports and the plugin's module included."""
    jf.Session(device=device).close()
    _ = jf.gguf
    return {}


def measure(mode: str, model: str, rest: Sequence[str]) -> object:
    if mode == "facts":
        return facts(model, int(rest[0]))
    device, numbers = rest[0], [int(word) for word in rest[1:]]
    if mode == "imports":
        return imports(device)
    if mode == "score":
        return score(model, device, numbers[0], numbers[1:])
    modes: dict[str, Callable[..., object]] = {"prompt": prompt, "generate": generate, "first": first, "memory": memory}
    return modes[mode](model, device, *numbers)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], sys.argv[3:])))
