"""A GGUF file written again with other types. Which tensor gets which is decided in `quantization`."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

import jackfield as jf
from jackfield_llm.errors import QuantizationError, shown
from jackfield_llm.gguf_header import Entry, write_header
from jackfield_llm.importance import Importance, read_importance
from jackfield_llm.metadata import parts_of
from jackfield_llm.mixes import model_facts
from jackfield_llm.progress import Report
from jackfield_llm.quantization import FILE_TYPES, Choice, FileType, Tensor, assign, file_type, role
from jackfield_llm.whole_file import whole_file

__all__ = ["Summary", "quantize"]

_PIECE = 1 << 18  # elements decoded and encoded together: small enough that Ctrl-C is not long in coming
_NEEDS_IMPORTANCE = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")
_LARGEST = {"nvfp4": 6 * 448.0}  # block types whose scales reach less far than f32: their codec would clip
_LONGEST_ALIGNMENT = 2 << 20  # the pages of no usual machine are larger; a few bytes must not become gigabytes
_QUANTIZATION_VERSION = 2  # of the block formats, as llama.cpp counts them
_HINTS = {
    errno.ENOSPC: "make room, or write elsewhere",
    errno.EDQUOT: "make room, or write elsewhere",
    errno.EFBIG: "raise the limit on the size of files, or write elsewhere",
}
_DTYPES = jf.dtypes.DTYPES


@dataclass
class Summary:
    """What was written. nbytes: of the tensors' data, before and after; elements: of all tensors.

    types: how many tensors have each type now. requantised: how many were quantised before and are otherwise now.
    stand_ins: tensors whose rows did not fit the type they should have; name to (wanted, got).
    unguided: types that are poor without an importance, and were given to matrices that had none.
    uncovered: matrices that the importance file does not know, though it should: not the token embeddings and the
    output, of which llama-imatrix seldom writes one.
    """

    file_type: str
    elements: int = 0
    nbytes_before: int = 0
    nbytes: int = 0
    types: Counter[str] = field(default_factory=Counter)
    requantised: Counter[str] = field(default_factory=Counter)
    stand_ins: dict[str, tuple[str, str]] = field(default_factory=dict)
    unguided: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()

    @property
    def bits_per_weight(self) -> float:
        return self.nbytes * 8 / self.elements if self.elements else 0.0


def quantize(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    kind: str,
    *,
    pure: bool = False,
    token_embedding_type: str | None = None,
    output_type: str | None = None,
    importance: str | os.PathLike[str] | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: Report | None = None,
) -> Summary:
    """Write the GGUF file `source` again as `target`, its matrices in the types of the file type `kind`.

    kind: a name of `quantization.FILE_TYPES`, such as "Q4_K_M"; in any case.
    pure: the one type for all matrices. token_embedding_type, output_type: names of dtypes for these two tensors.
    importance: a GGUF file of llama.cpp's imatrix, which says how much each column matters.
    force: replace a `target` that is there. threads: that encode; default one a core.
    progress: called with a label, bytes of the source done, and bytes in all.
    The target is there whole or not at all; tensors that keep their type are copied. A finite weight that the new type
    can't hold is refused, and so are blocks of the source whose scale is no finite number.
    Raises: QuantizationError; jackfield.errors.GGUFError for a malformed source; OSError, as for a full disk.
    """
    chosen = file_type(kind)
    source, target = _path("source", source), _path("target", target)
    _check_places(source, target, force=force)
    weights = None if importance is None else read_importance(_path("importance", importance))
    with jf.gguf.open(source) as file:
        job = _Job(
            file,
            chosen,
            weights,
            pure=pure,
            token_embedding_type=_dtype_name(token_embedding_type),
            output_type=_dtype_name(output_type),
        )
        job.check()
        _check_room(target, job.room)
        with _named_errors(target), whole_file(target) as part:
            job.write(part, threads or os.cpu_count() or 1, progress)
            _check_places(source, target, force=force)  # hours may have passed
    return job.summary()


def _path(name: str, path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise QuantizationError(f"{name} is {path!r}: must be the path of a file") from None


def _check_places(source: Path, target: Path, *, force: bool) -> None:
    if not source.is_file():
        what = "is a folder" if source.is_dir() else "no such file"
        raise QuantizationError(f"{source}: {what}; the source must be a GGUF file")
    if not target.parent.is_dir():
        raise QuantizationError(f"{target}: there is no folder {target.parent}; make it first")
    if not os.path.lexists(target):
        return
    if target.exists() and source.samefile(target):
        raise QuantizationError(f"{target}: is the source itself; the result must be another file")
    if not target.is_file():
        raise QuantizationError(f"{target}: is no plain file; the result must be one")
    if not force:
        raise QuantizationError(f"{target}: is there already; name another file, or replace it with --force")


def _check_room(target: Path, nbytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if nbytes > free:
        raise QuantizationError(f"{target}: needs {nbytes:,} bytes, {target.parent} has {free:,} left")


@contextmanager
def _named_errors(target: Path) -> Iterator[None]:
    """A failure of the disk says what was written and what to do; it stays an OSError of its number."""
    try:
        yield
    except OSError as e:
        if e.errno is None or e.filename is not None:
            raise
        hint = _HINTS.get(e.errno, "try again, or write elsewhere")
        raise OSError(e.errno, f"{e.strerror}; {hint}", str(target)) from e


def _dtype_name(name: str | None) -> str | None:
    """The dtype's own spelling of a name in any case. Raises: QuantizationError where it is none of a weight."""
    if name is None:
        return None
    known = {file.main.lower(): file.main for file in FILE_TYPES.values() if file.main in _DTYPES}
    if name.lower() not in known:
        raise QuantizationError(f"there is no type {name!r} to write; known: {' '.join(known.values())}")
    return known[name.lower()]


class _Job:
    """One file on its way: what becomes of each tensor, and the writing."""

    def __init__(self, file: jf.gguf.File, chosen: FileType, weights: Importance | None, **options: Any) -> None:
        self.file, self.file_type, self.weights = file, chosen, weights
        facts = [Tensor(t.name, t.shape, t.type.name) for t in file.tensors.values()]
        model = model_facts(file.metadata, importance=weights is not None)
        self.choices: dict[str, Choice] = assign(facts, chosen, model, **options)
        for tensor in file.tensors.values():
            if tensor.type.name in ("i8", "i16", "i32", "i64"):  # indices, not weights
                self.choices[tensor.name] = Choice(tensor.type.name, tensor.type.name)
        self.entries = {name: self._entry(tensor) for name, tensor in file.tensors.items()}
        self.nbytes = sum(entry.nbytes for entry in self.entries.values())
        padding = sum(-entry.nbytes % file.alignment for entry in self.entries.values())
        self.room = self.nbytes + padding  # and a header of some kilobytes

    def check(self) -> None:
        """Say what can't be done before anything is done."""
        parts = parts_of(self.file.metadata)
        if parts > 1:
            raise QuantizationError(f"{self.file.name}: is one of {parts} parts of a model; join them first")
        if self.file.alignment > _LONGEST_ALIGNMENT:
            raise QuantizationError(
                f"{self.file.name}: its tensors are aligned to {self.file.alignment:,} bytes; "
                f"must be at most {_LONGEST_ALIGNMENT:,}"
            )
        for name, tensor in self.file.tensors.items():
            if not self._changes(tensor):
                continue
            try:
                tensor.dtype  # noqa: B018 - raises for a type that can't be decoded
            except jf.Error as e:
                raise QuantizationError(f"tensor {shown(name)}: {e}") from e
        if self.weights is not None:
            self._check_importance(self.weights)

    def _check_importance(self, weights: Importance) -> None:
        if not any(name in weights for name in self.file.tensors):
            raise QuantizationError(
                f"{weights.name}: knows no tensor of {self.file.name}; the importance must be measured on this model"
            )
        for name, tensor in self.file.tensors.items():
            if self._changes(tensor):
                weights.check(name, tensor.shape)

    def summary(self) -> Summary:
        result = Summary(self.file_type.name, nbytes=self.nbytes)
        for name, tensor in self.file.tensors.items():
            choice = self.choices[name]
            result.elements += int(np.prod(tensor.shape, dtype=np.int64))
            result.nbytes_before += tensor.nbytes
            result.types[choice.dtype] += 1
            if self._changes(tensor) and tensor.type.block > 1:
                result.requantised[tensor.type.name] += 1
            if choice.dtype != choice.wanted:
                result.stand_ins[name] = (choice.wanted, choice.dtype)
        plain = [t.name for t in self.file.tensors.values() if self._changes(t) and not self._knows(t.name)]
        types = dict.fromkeys(self.choices[name].dtype for name in plain)
        result.unguided = tuple(name for name in types if name in _NEEDS_IMPORTANCE)
        if self.weights is not None:
            result.uncovered = tuple(
                name
                for name in plain
                if _DTYPES[self.choices[name].dtype].heeds_importance and role(name) not in ("token_embd", "output")
            )
        return result

    def _knows(self, name: str) -> bool:
        return self.weights is not None and name in self.weights

    def write(self, part: Path, threads: int, progress: Report | None) -> None:
        write_header(part, *self._metadata(), self.entries.values(), self.file.alignment)
        total = sum(tensor.nbytes for tensor in self.file.tensors.values())
        done = 0
        label = f"{self.file.name} to {self.file_type.name}"
        pool = ThreadPoolExecutor(threads)
        try:
            with part.open("ab") as out:
                for tensor in self.file.tensors.values():
                    for nbytes, coded in _ordered(pool, threads, self._pieces(tensor)):
                        out.write(coded)
                        done += nbytes
                        if progress is not None:
                            progress(label, done, total)
                    _pad(out, self.entries[tensor.name].nbytes, self.file.alignment)
                    tensor.release()
        finally:
            pool.shutdown(cancel_futures=True)

    def _metadata(self) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        new = {"general.quantization_version": _QUANTIZATION_VERSION, "general.file_type": self.file_type.number}
        return {**self.file.metadata, **new}, {**self.file.kinds, **dict.fromkeys(new, "u32")}

    def _changes(self, tensor: jf.gguf.Tensor) -> bool:
        return self.choices[tensor.name].dtype != tensor.type.name

    def _entry(self, tensor: jf.gguf.Tensor) -> Entry:
        if not self._changes(tensor):
            return Entry(tensor.name, tensor.shape, tensor.type.id, tensor.nbytes)
        name = self.choices[tensor.name].dtype
        dtype = _DTYPES.get(name)
        if dtype is None or dtype.gguf_id is None:
            raise QuantizationError(f"{self.file_type.name} needs the type {name}, which can't be encoded here")
        return Entry(tensor.name, tensor.shape, dtype.gguf_id, dtype.nbytes(tensor.shape))

    def _pieces(self, tensor: jf.gguf.Tensor) -> Iterator[partial[tuple[int, Any]]]:
        """Calls that give the bytes read and the bytes to write, a piece each."""
        if not self._changes(tensor):
            data, block = tensor.data, max(1, tensor.type.block_nbytes)
            step = max(1, 4 * _PIECE // block) * block
            for at in range(0, len(data), step):
                yield partial(_copied, tensor, data[at : at + step], at // block)
            return
        new = _DTYPES[self.choices[tensor.name].dtype]
        columns, matrix = tensor.shape[-1], tensor.shape[-2]
        row = tensor.dtype.row_nbytes(columns)
        raw = np.frombuffer(tensor.data, np.uint8).reshape(-1, matrix, row)
        step = max(1, _PIECE // columns)
        for number, rows in enumerate(raw):  # a stack of experts has an importance for each
            weights = None if self.weights is None else self.weights.columns(tensor.name, number)
            for first in range(0, matrix, step):
                before = (number * matrix + first) * (columns // tensor.dtype.block)
                where = f"tensor {shown(tensor.name)}, rows from {first}"
                yield partial(_recoded, tensor, new, rows[first : first + step], weights, before, where)


def _copied(tensor: jf.gguf.Tensor, data: memoryview, before: int) -> tuple[int, Any]:
    """before: blocks of the tensor that precede these."""
    known = _DTYPES.get(tensor.type.name)
    if known is not None:
        _check_scales(tensor, known, np.frombuffer(data, np.uint8), before)
    return len(data), data


def _recoded(
    tensor: jf.gguf.Tensor,
    new: jf.DType,
    raw: NDArray[np.uint8],
    weights: NDArray[np.float32] | None,
    before: int,
    where: str,
) -> tuple[int, Any]:
    """raw: rows, before which the tensor has so many blocks; where: what an error calls them."""
    old = tensor.dtype
    _check_scales(tensor, old, raw, before)
    values = _values(old, raw)
    if old.is_block and not np.isfinite(values).all():
        raise QuantizationError(
            f"{where}: {old.name} holds a weight beyond f32; the data is damaged, get or convert the file again"
        )
    largest = _LARGEST.get(new.name)
    if largest is not None and (np.isfinite(values) & (np.abs(values) > largest)).any():
        raise _too_large(where, values, new)
    try:
        coded = new.encode(values) if weights is None else new.encode(values, importance=weights)
    except jf.Error as e:
        raise QuantizationError(f"{where}: {e}") from e
    if not new.is_block and (np.isfinite(values) & ~np.isfinite(new.decode(coded))).any():
        raise _too_large(where, values, new)
    return raw.nbytes, coded


def _values(dtype: jf.DType, raw: NDArray[np.uint8]) -> NDArray[Any]:
    """As wide as they are stored: what is beyond f32 must be seen, not become inf."""
    return raw.view("<f8") if dtype.name == "f64" else dtype.decode(raw)


def _check_scales(tensor: jf.gguf.Tensor, dtype: jf.DType, raw: NDArray[np.uint8], before: int) -> None:
    bad = dtype.first_bad_block(raw)
    if bad is not None:
        raise QuantizationError(
            f"tensor {shown(tensor.name)}: the scale of block {before + bad} is no finite number; the data is "
            "damaged, get or convert the file again"
        )


def _too_large(where: str, values: NDArray[Any], dtype: jf.DType) -> QuantizationError:
    top = np.abs(values[np.isfinite(values)]).max()
    instead = "take bf16 or f32" if top <= np.finfo(np.float32).max else "no type to write holds that"
    return QuantizationError(f"{where}: holds {top:g}, more than {dtype.name} can; {instead}")


def _ordered(
    pool: ThreadPoolExecutor, threads: int, calls: Iterator[partial[tuple[int, Any]]]
) -> Iterator[tuple[int, Any]]:
    """Results in the calls' order; no more are under way or waiting than keep the threads busy."""
    waiting: deque[Future[tuple[int, Any]]] = deque()
    for call in calls:
        waiting.append(pool.submit(call))
        if len(waiting) > 2 * threads:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _pad(out: IO[bytes], nbytes: int, alignment: int) -> None:
    out.write(bytes(-nbytes % alignment))
