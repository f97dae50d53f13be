"""Versions of distributions: which of two is the higher, and which to install where a contract can't be spoken.

The order is that of PEP 440, whose own library is no dependency of the core; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["RELEASES", "cure", "lower_bound", "precedence"]

Contract = tuple[int, int]
RELEASES: dict[Contract, str] = {(0, 1): "0.1.0"}  # the first release of jackfield that had each contract

# Compiled when it is first needed, which takes longer than all else here: most versions are plain numbers.
_VERSION = (
    r"\s*v?(?:(?P<epoch>[0-9]+)!)?(?P<release>[0-9]+(?:\.[0-9]+)*)"
    r"(?:[-_.]?(?P<pre>alpha|beta|preview|pre|a|b|c|rc)[-_.]?(?P<pre_n>[0-9]*))?"
    r"(?:-(?P<post_only>[0-9]+)|[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_n>[0-9]*))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_n>[0-9]*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?\s*"
)
_PHASES = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_LONGEST = 400  # characters; of more digits Python itself makes no number
_BOUND = r"(>=|~=|===?|>)\s*([^\s,;()]+)"

Key = tuple[int, tuple[int, ...], tuple[int, int], int, tuple[int, int], tuple[tuple[int, int, str], ...]]


def precedence(version: str) -> Key | tuple[()]:
    """A key that is greater for the higher version; () for what is no version, which is below all others."""
    if len(version) > _LONGEST:
        return ()
    if all(number.isascii() and number.isdecimal() for number in version.split(".")):
        return 0, _numbers(version), (3, 0), -1, (1, 0), ()
    match = re.fullmatch(_VERSION, version, re.ASCII | re.IGNORECASE)
    if match is None:
        return ()
    part = match.groupdict()
    post = -1
    if part["post"] or part["post_only"]:
        post = int(part["post_only"] or part["post_n"] or 0)
    # A build on the way to a release: 1.0.dev1 comes before 1.0a1, but 1.0a1.dev1 between 1.0a0 and 1.0a1.
    if part["pre"]:
        pre = (_PHASES[part["pre"].lower()], int(part["pre_n"] or 0))
    else:
        pre = (-1, 0) if part["dev"] and post < 0 else (3, 0)
    dev = (0, int(part["dev_n"] or 0)) if part["dev"] else (1, 0)
    words = re.split(r"[-_.]", part["local"].lower()) if part["local"] else []
    local = tuple((1, int(word), "") if word.isdecimal() else (0, 0, word) for word in words)
    return int(part["epoch"] or 0), _numbers(part["release"]), pre, post, dev, local


def _numbers(release: str) -> tuple[int, ...]:
    numbers = [int(number) for number in release.split(".")]
    while numbers and numbers[-1] == 0:  # 1.0 is 1
        numbers.pop()
    return tuple(numbers)


def lower_bound(needs: Iterable[str]) -> str:
    """The highest version that any of these requirements (`Requires-Dist`) sets as the least; "" for none."""
    always = (need for need in needs if not re.search(r";.*\bextra\s*==", need))
    found = [version.removesuffix(".*") for need in always for _, version in re.findall(_BOUND, need.partition(";")[0])]
    return max(found, key=precedence, default="")


def cure(
    core: tuple[Contract, Contract],
    wheel: tuple[Contract, Contract],
    release: str,
    dist: str,
    version: str,
    needs: Sequence[str],
    releases: Mapping[Contract, str] = RELEASES,
) -> str:
    """What to install where the windows of the core and of a wheel do not meet, as far as this core can know it.

    release: of jackfield. dist, version, needs: of the wheel; what it requires of jackfield may say which has its
    contract. releases: what this core knows of those before it.
    """
    bare = version.partition("+")[0] if precedence(version) else ""
    if wheel[0] > core[1]:
        mine = f"pip install 'jackfield>{release}', one that speaks {_dotted(wheel[0])}"
        least = lower_bound(needs)
        if precedence(least) > precedence(release):
            asked = f"which {dist} {version} requires and which speaks {_dotted(wheel[0])}"
            mine = f"pip install 'jackfield>={least}', {asked}"
        older = f"{dist}<{bare}" if bare else dist
        return f"{mine}; or pip install '{older}', one that speaks {_dotted(core[1])}"
    newer = f"{dist}>{bare}" if bare else dist
    theirs = f"pip install '{newer}', one that speaks {_dotted(core[0])} or later"
    former = releases.get(wheel[1])
    return f"{theirs}; or pip install 'jackfield=={former}', which speaks {_dotted(wheel[1])}" if former else theirs


def _dotted(contract: Contract) -> str:
    return f"{contract[0]}.{contract[1]}"
