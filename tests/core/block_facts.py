"""What the format notes say about block dtypes, for tests: where scales lie, digests of bytes, allowed errors."""

from __future__ import annotations

import hashlib

import gguf
import numpy as np

from jackfield.dtypes import DTYPES

BLOCKS = [dtype for dtype in DTYPES.values() if dtype.is_block]

# Where the f16 scales of each layout stand, said again here so that the codec's own check is checked.
F16_SCALES = dict.fromkeys(("q1_0", "q2_0", "q4_0", "q5_0", "q8_0", "iq4_nl", "iq4_xs"), (0,))
F16_SCALES |= dict.fromkeys(("iq1_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"), (0,))
F16_SCALES |= dict.fromkeys(("q4_1", "q5_1", "q8_1", "q4_K", "q5_K"), (0, 2))
F16_SCALES |= {"q2_K": (80, 82), "q3_K": (108,), "q6_K": (208,), "tq1_0": (52,), "tq2_0": (64,)}
F16_SCALES |= dict.fromkeys(("q8_K", "iq1_m", "mxfp4", "nvfp4"), ())

# First 12 hex digits of sha256 over what four blocks decode to. All but those of q1_0 and q2_0 equal gguf's.
DECODED = {
    "q1_0": "34a7e64132ce",
    "q2_0": "eb095c6a8024",
    "q4_0": "78f61ec85f70",
    "q4_1": "d6ca93081d56",
    "q5_0": "cadca78afc42",
    "q5_1": "1beb3d33e5bf",
    "q8_0": "62dc53ba715a",
    "q2_K": "e23921541714",
    "q3_K": "a6ee9f381393",
    "q4_K": "696786a7bf71",
    "q5_K": "d18266ba32e6",
    "q6_K": "46315d55591d",
    "tq1_0": "035e272d5713",
    "tq2_0": "2d87ba74e310",
    "iq2_xxs": "1476b23cd503",
    "iq2_xs": "606f44b7956e",
    "iq2_s": "a4f48f4a9983",
    "iq3_xxs": "67e34a931bb8",
    "iq3_s": "33c0ecc32e81",
    "iq1_s": "6326b43bfe8b",
    "iq1_m": "0ea236646437",
    "iq4_nl": "b4757700135e",
    "iq4_xs": "6f06ce067ff5",
    "mxfp4": "7826b51f1e9c",
    "nvfp4": "ef75b5692fa2",
}
# The same over the bytes of four encoded blocks: equal to gguf's, and of the format notes' formula alone.
ENCODED_AS_GGUF = {
    "q4_0": "45669ab9640e",
    "q4_1": "0a59f987dc15",
    "q5_0": "6712f283b1ad",
    "q5_1": "7715a7251c91",
    "q8_0": "e9b161128423",
    "mxfp4": "160babc436ae",
    "tq1_0": "fadf7bc0527b",
    "tq2_0": "c05e896c42ef",
}
ENCODED = ENCODED_AS_GGUF | {
    "q8_1": "a4824091f8ae",
    "q8_K": "ba3bc9149518",
    "q1_0": "29cbe745ac56",
    "q2_0": "72a9ad4e5510",
    "nvfp4": "2ab3f9a5933e",
}
# Allowed mean squared error over mean square, x ~ N(0, 1). The ternary types are exact on {-c, 0, c} instead.
NMSE = {
    "q1_0": 0.38,
    "q2_0": 0.54,
    "q4_0": 0.008,
    "q4_1": 0.0066,
    "q5_0": 0.002,
    "q5_1": 0.0016,
    "q8_0": 3.2e-5,
    "q8_1": 3.2e-5,
    "q8_K": 5.5e-5,
    "q2_K": 0.095,
    "q3_K": 0.025,
    "q4_K": 0.0056,
    "q5_K": 0.0015,
    "q6_K": 3.5e-4,
    "mxfp4": 0.0145,
    "nvfp4": 0.0098,
    "iq4_nl": 0.0067,
    "iq4_xs": 0.0064,
    "iq3_s": 0.023,
    "iq3_xxs": 0.040,
    "iq2_s": 0.070,
    "iq2_xs": 0.098,
    "iq2_xxs": 0.135,
    "iq1_m": 0.23,
    "iq1_s": 0.28,
}

WITHOUT_ORACLE = {"q1_0", "q2_0", "q8_1", "q8_K"}  # the package has no codec for these


def oracle(dtype):
    return gguf.GGMLQuantizationType(dtype.gguf_id)


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()[:12]


def bits(x):
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def f16_bytes(pattern):
    return np.array([pattern], "<u2").view(np.uint8)


def made_valid(dtype, raw):
    """Random blocks (n, bytes) with finite scales, a quarter of them with subnormal f16; in place."""
    quarter = len(raw) // 4
    for at in F16_SCALES[dtype.name]:
        raw[:, at + 1] &= 0xBF  # one exponent bit clear
        raw[:quarter, at + 1] &= 0x83
    if dtype.name == "iq1_m":  # upper nibbles of the last four words
        raw[:, 55] &= 0xBF
        raw[:quarter, 55] &= 0x8F
        raw[:quarter, 53] &= 0x3F
    if dtype.name == "q8_K":
        raw[:, 3] &= 0xBF
    if dtype.name == "mxfp4":
        raw[:, 0] %= 255
    if dtype.name == "nvfp4":
        raw[:, :4] %= 0x7F
    return raw


def random_blocks(dtype, seed, n=600):
    return made_valid(dtype, np.random.default_rng(seed).integers(0, 256, (n, dtype.block_nbytes), dtype=np.uint8))
