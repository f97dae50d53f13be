"""What the scripts under bench/ say before they begin their long work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench"


def test_the_comparison_looks_for_the_model_before_it_builds_the_peer(tmp_path):
    built = tmp_path / "peer"
    command = [sys.executable, str(BENCH / "compare_llama.py"), "gone.gguf"]
    env = os.environ | {"JACKFIELD_PEER_DIR": str(built), "PATH": ""}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "compare: gone.gguf: no such file; give the path of a GGUF model\n"
    assert not built.exists()
