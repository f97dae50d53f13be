"""Models of experts and of Mamba, random weights, against llama.cpp: compare_llama.py with sizes of their own.

    uv run python bench/families_llama.py [NAME ...] [OPTION ...]

NAME is one of family_models.py (all where none is given), OPTION one of compare_llama.py. Measured are a prompt of 512
tokens and 64 generated ones at 1 and 2 threads, in alternating runs; medians and ratios are printed, and everything
that compare_llama.py tells besides. The goal of each is the speed of the better peer whose output is right; whether it
is met, missed or void is told under each and in the JSON. ik_llama.cpp does not run Mamba and is void there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import compare_llama
from peer import BENCH

SIZES = ("--depths", "0", "--generate", "64")
GOAL = ("--goal", "1.0")
"""Times the better peer whose output is right, in prompts and in generation."""


def files(names: Sequence[str]) -> list[str] | None:
    """Their paths, made by a process of its own: what makes them is too large to be imported here, see sides.py."""
    command = [sys.executable, str(BENCH / "family_models.py"), *names]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return None if done.returncode else done.stdout.split("\n")[:-1]


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    settings = () if "--quick" in words else (*SIZES, *GOAL)
    paths = files(words[:first])
    return 1 if paths is None else compare_llama.main([*paths, *settings, *words[first:]])


if __name__ == "__main__":
    sys.exit(main())
