r"""How a byte-level vocabulary cuts text into words before any merge: one list of patterns a pre-tokenizer name.

The patterns of a list are applied in turn, each to the pieces the one before left; a match becomes a piece, and so does
what lies between two matches. They are in the dialect of Oniguruma, which the library `tokenizers` uses.

Source: the names and what they mean were read in llama.cpp (build 11434) and compared with its own tokenizer by running
both on the same texts; where that program simplifies a model's original pattern, this table does as the program does.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRE_TOKENIZERS", "PreTokenizer"]


@dataclass(frozen=True)
class PreTokenizer:
    """How one pre-tokenizer cuts.

    patterns: applied in turn, as above.
    whole_words: a word that is itself a token is not merged.
    add_bos: whether a text begins with the token for that, where the file is silent.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


# Parts. "'s" and its like are spelt out: ignoring case would let the long s of old prints (U+017F) pass for an "s".
_SHORT = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_HAN_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_ASCII_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"

# Whole patterns.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_SHORT}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_SHORT}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_DEEPSEEK3 = (
    rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
# Letters with and without case, as llama.cpp tells them apart: any letter that is not a small (large) one of ASCII.
_UPPER = r"(?:(?=\p{L})[^a-z])"
_LOWER = r"(?:(?=\p{L})[^A-Z])"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_SHORT}?|{_LEAD}{_UPPER}+{_LOWER}*{_SHORT}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_BAILING = rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = rf"{_SHORT}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_EXAONE_MOE = (
    rf"{_SHORT}|{_LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
# Letters that have case, in DeepSeek's first tokenizer: ranges of code points, in hexadecimal.
_CASED_RANGES = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5
3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15
1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3
1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139
213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787
A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2
118A0-118DF 1E900-1E943
"""
_CASED = "".join("-".join(rf"\x{{{end}}}" for end in reach.split("-")) for reach in _CASED_RANGES.split())
_DEEPSEEK_SIGNS = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}\x{3002}]+"
_HAN_HANGUL = r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}&&\S]+"

_DIGITS_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_PLAIN_QWEN2 = PreTokenizer((_QWEN2,))
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_LIKE_LLAMA3 = PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_LIKE_CHATGLM = PreTokenizer((_LLAMA3,))
_LIKE_GPT4O = PreTokenizer((_GPT4O,))
_LIKE_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3))
_LIKE_BAILING = PreTokenizer((_BAILING,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"), _LIKE_LLAMA3),
    **dict.fromkeys(("lfm2", "jina-v5-nano"), _LIKE_LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LIKE_CHATGLM),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_LLAMA3,), whole_words=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), _PLAIN_QWEN2),
    **dict.fromkeys(("stablelm2", "hunyuan", "grok-2", "solar-open"), _PLAIN_QWEN2),
    "qwen35": PreTokenizer((_QWEN35,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS_THEN_GPT2),
    **dict.fromkeys(("minerva-7b", "mellum2"), _DIGITS_THEN_GPT2),
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de"), _PLAIN_GPT2),
    **dict.fromkeys(("a.x-4.0", "mellum", "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion"), _PLAIN_GPT2),
    **dict.fromkeys(("granite-docling", "jina-v1-en", "jina-v2-code", "roberta-bpe"), _PLAIN_GPT2),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "deepseek-llm": PreTokenizer((r"[\r\n]", rf"\s?[{_CASED}]+", _DEEPSEEK_SIGNS, r"\s+\z", _HAN_HANGUL, r"\p{N}+")),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _LIKE_DEEPSEEK3),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _LIKE_GPT4O),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _LIKE_BAILING),
    "seed-coder": PreTokenizer((_SEED,)),
    "ufakzeka": PreTokenizer((rf"{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}",)),
    "laguna": PreTokenizer((r"[^\n]+|\n+", _QWEN2)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", rf"{_SHORT}|{_WORD}|\p{{N}}+|{_SIGNS}|{_SPACES}"), whole_words=True),
}
"""By the value of `tokenizer.ggml.pre`; a name that is not here is refused."""
