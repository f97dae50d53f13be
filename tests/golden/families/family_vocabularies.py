"""The tokenizer sections of the tiny models: valid and small, VOCABULARY tokens each."""

from __future__ import annotations

from collections.abc import Callable

import gguf
from family_sizes import VOCABULARY


def byte_letters() -> list[str]:
    """The letter of each byte in byte-level BPE (GPT-2's table): itself where printable, else from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def add_byte_pairs(writer: gguf.GGUFWriter) -> None:
    """A byte-level BPE vocabulary: three special tokens, the 256 bytes, and merges up to VOCABULARY tokens."""
    special = ["<|begin|>", "<|end|>", "<|pad|>"]
    letters = byte_letters()
    pairs = [(left, right) for left in "Ġthaeinors" for right in "thaeinorsd"][: VOCABULARY - 256 - len(special)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*special, *letters, *(left + right for left, right in pairs)])
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCABULARY - 3))
    writer.add_token_merges([f"{left} {right}" for left, right in pairs])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)


def add_pieces(writer: gguf.GGUFWriter) -> None:
    """A SentencePiece vocabulary: pad, end, begin and unknown as in gemma, 256 bytes, pieces with falling scores."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.UNKNOWN]
    singles = ["▁", *"etaoinshrdlucmfwypvbgkqjxz"]
    pairs = [left + right for left in "▁taehi" for right in "taeoinshr"]
    pieces = list(dict.fromkeys(pairs + singles))[-(VOCABULARY - 256 - len(special)) :]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 260 + [-float(rank) for rank in range(len(pieces))])
    writer.add_token_types(kinds + [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(pieces))
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def add_world(writer: gguf.GGUFWriter) -> None:
    """RWKV's kind: an end, the 256 bytes, strings of bytes, two unused ones; written as Python writes bytes."""
    words = ["\n\n", "\r\n", "  ", "    ", "\t\t", "\\n", "'\"", "é", "ü", "中", "文", "中文", "🦙", " the", " the end"]
    parts = [b"\xe4\xb8", b"\xf0\x9f", b"\xf0\x9f\xa6"]
    pairs = [left + right for left in "thaei" for right in "thaeinors"][: VOCABULARY - 259 - len(words) - len(parts)]
    strings = [bytes([byte]) for byte in range(256)] + [text.encode() for text in [*words, *pairs]] + parts
    tokens = ["<s>", *(repr(string)[2:-1] for string in strings), "[PAD318]", "[PAD319]"]
    kinds = [gguf.TokenType.NORMAL] * len(strings)
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL, *kinds, gguf.TokenType.UNUSED, gguf.TokenType.UNUSED])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_eot_token_id(257)


TOKENIZERS: dict[str, Callable[[gguf.GGUFWriter], None]] = {
    "pairs": add_byte_pairs,
    "pieces": add_pieces,
    "world": add_world,
}
