"""What tests of the scripts under bench/ share: a tiny model, peers that are made up, and how a script is run."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import machine
import models
import peer
from peer_sources import IK, LLAMA

BENCH = Path(__file__).parents[2] / "bench"
TINY = models.Shape(layers=2, hidden=64, heads=4, kv_heads=2, feed=96, vocabulary=320, context=64)
SIDES = ["llama.cpp", "llama.cpp packed", "ik_llama.cpp"]
ROOFLINE = {"read": {1: 10e9, 2: 18e9}, "read_huge": {1: 20e9, 2: 16e9}, "f32": {1: 1e11, 2: 2e11}, "int8": {1: 4e11}}

# One program for all that is built: it knows what it is by the name it is called by. llama.cpp's score is what our
# reference device computes, so it agrees with ours; the fork's has a NaN.
FAKE = """#!{python}
import json, os, pathlib, subprocess, sys
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
fork = "fork" in sys.argv[0]
if name == "llama-bench":
    speed = 30.0 if fork else 20.0 if words[words.index("--repack") + 1] == "1" else 10.0
    print(json.dumps([{{"avg_ts": 1.0, "samples_ts": [1.0, speed]}}]))
elif name == "roofline":
    for threads in range(1, int(words[0]) + 1):
        for what in ("read", "read_huge", "copy_16MiB", "f32", "int8"):
            print(what, threads, threads * 1e9)
elif name == "peer-matmul" and words[0] == "q4_0":
    for rows in words[6:]:
        print(rows, 1e-3)
elif name == "peer-probe" and words[0] == "first":
    print(json.dumps({{"load_s": 0.1, "short_s": 0.2, "long_s": 0.3}}))
elif name == "peer-probe":
    command = [sys.executable, {ours!r}, "score", words[1], "reference", words[4], *words[5:]]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    told["batch"][0] = float("nan") if fork else told["batch"][0]
    print(json.dumps(told))
"""


def program(folder: Path, name: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(FAKE.format(python=sys.executable, ours=str(BENCH / "ours.py")))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def fake_peers(folder: Path) -> list[peer.Peer]:
    found = []
    for recipe, place in ((LLAMA, "plain"), (IK, "fork")):
        programs = {name: program(folder / place, name) for name in ("llama-bench", "peer-probe", "peer-matmul")}
        found.append(
            peer.Peer(recipe.name, "1", f"{recipe.package} 1", recipe.flags, "cc 1", machine.cpu_mark(), programs)
        )
    return found


def written(folder: Path) -> list[str]:
    """Options that make a script take the made-up programs."""
    path = folder / "peers.json"
    path.write_text(json.dumps([vars(one) for one in fake_peers(folder)]))
    return ["--peers", str(path), "--roofline", program(folder / "plain", "roofline")]


def run(script: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / script), *words]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=False)
