"""Every way in which a GGUF file can be wrong, with its text.

All errors of the reader are made here, so that a test can demand to have seen each of them.
"""

from __future__ import annotations

from jackfield.errors import GGUFError

FAULTS: dict[str, str] = {
    "irregular": "this is no regular file: give the path of a GGUF file",
    "short": "the file has {size} bytes: the header alone takes 24",
    "magic": "{found} is not the magic b'GGUF': the file has another format or is damaged",
    "big-endian": "the file is big-endian: convert it again for little-endian machines",
    "version-1": "version 1 has another layout and is not read: convert the model again from its source",
    "version": "version {found} is unknown: versions 2 and 3 are read",
    "end": "{need} bytes are needed and {left} are left in the file: it is cut short or damaged",
    "count": "{count} entries take at least {need} bytes and {left} are left in the file: it is cut short or damaged",
    "key-length": "the key has {found} bytes: it must have 1 to {limit}",
    "utf-8": "the text is not UTF-8 from its byte {at} on",
    "duplicate-key": "the key {name} appears twice: each may stand once",
    "value-type": "value type {found} is unknown: 0 to 12 are known",
    "bool": "a bool is {found}: it must be 0 or 1",
    "depth": "arrays lie more than {limit} deep in each other",
    "arrays": "more than {limit} arrays lie in other arrays",
    "alignment-type": "the alignment is of type {found}: it must be u32",
    "alignment": "the alignment is {found}: it must be a power of two",
    "duplicate-tensor": "a tensor of this name stands in the file already",
    "rank": "the tensor has {found} axes: at most {limit} are read",
    "extent": "an axis has {found} elements: it must have 1 to 2**63 - 1",
    "elements": "the shape {shape} has more than 2**63 - 1 elements",
    "removed-type": "type {found} ({name}) was removed from the format: convert the model again from its source",
    "type": "tensor type {found} is unknown: a newer jackfield may know it",
    "row": "rows have {found} elements: type {name} needs a multiple of {block}",
    "misaligned": "the offset {found} must be a multiple of the alignment {alignment}",
    "outside": "its data would end at byte {end} of the file's {size}: the file is cut short or damaged",
    "overlap": "its data overlaps that of tensor {other}",
    "shrunk": "the file has {now} bytes now and had {before} when it was opened: open it again",
    "closed": "the file is closed: open it again",
}

_LONGEST_QUOTE = 80


def fault(code: str, file: str, field: str, offset: int, **values: object) -> GGUFError:
    """The error for FAULTS[code]; `field` names the part of the file, `offset` its first byte in the file."""
    return GGUFError(f"{file}: {field} at byte {offset}: {FAULTS[code].format(**values)}")


def quoted(name: str) -> str:
    """A name from a file, safe to print: escapes are shown, long ones cut."""
    text = ascii(name)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 4]}...{text[0]}"
