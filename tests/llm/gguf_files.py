"""GGUF files made byte by byte from the format's description: whatever the format allows, and no package has a say."""

from __future__ import annotations

import struct

KINDS = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
CODES = dict(zip(KINDS, "BbHhIif?**Qqd"))  # of the module struct; strings and arrays have none


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, content):
    """A value without its kind; an array is (kind of its elements, elements)."""
    if kind == "string":
        return string(content)
    if kind == "array":
        inner, items = content
        head = struct.pack("<IQ", KINDS.index(inner), len(items))
        return head + b"".join(value(inner, item) for item in items)
    return struct.pack("<" + CODES[kind], content)


def header(metadata, tensors=(), alignment=32):
    """metadata: key to (kind, value). tensors: (name, shape in numpy order, number of the type, bytes of its data)."""
    made = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, (kind, content) in metadata.items():
        made += [string(key), struct.pack("<I", KINDS.index(kind)), value(kind, content)]
    offset = 0
    for name, shape, gguf_id, data in tensors:
        made += [string(name), struct.pack("<I", len(shape)), struct.pack(f"<{len(shape)}Q", *reversed(shape))]
        made += [struct.pack("<IQ", gguf_id, offset)]
        offset += len(data) + -len(data) % alignment
    raw = b"".join(made)
    return raw + bytes(-len(raw) % alignment)


def file(metadata, tensors=(), alignment=32):
    """All bytes of a file."""
    padded = (data + bytes(-len(data) % alignment) for _, _, _, data in tensors)
    return header(metadata, tensors, alignment) + b"".join(padded)
