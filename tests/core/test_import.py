"""What `import jackfield` loads and touches; the public names."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import jackfield as jf

LATE = {
    "jackfield.registry",
    "jackfield.session",
    "jackfield.plan",
    "jackfield.gguf",
    "logging",
    "importlib_metadata",
    "importlib.metadata",
    "click",
    "rich",
    "platformdirs",
    "hypothesis",
    "pytest",
    "email",
    "zipfile",
    "asyncio",
    "socket",
    "multiprocessing",
    "urllib.request",
}

# The whole of what `import jackfield` loads of itself. A longer list is a slower import: what is not needed to build a
# graph is imported by who needs it.
CORE = set(
    """
    jackfield jackfield.attributes jackfield.draws jackfield.dtypes jackfield.dtypes.activation_blocks
    jackfield.dtypes.activations jackfield.dtypes.arrays jackfield.dtypes.codebook_blocks jackfield.dtypes.codebooks
    jackfield.dtypes.dtype jackfield.dtypes.fits jackfield.dtypes.float4_blocks jackfield.dtypes.gguf_types
    jackfield.dtypes.grid_blocks jackfield.dtypes.grid_fits jackfield.dtypes.k_blocks jackfield.dtypes.low_k_blocks
    jackfield.dtypes.small_blocks jackfield.dtypes.table jackfield.dtypes.ternary_blocks jackfield.errors
    jackfield.findings jackfield.graph jackfield.op jackfield.ops jackfield.ops.activations jackfield.ops.attention
    jackfield.ops.columns jackfield.ops.convolution jackfield.ops.copies jackfield.ops.elementwise
    jackfield.ops.fills jackfield.ops.gated jackfield.ops.gradients jackfield.ops.host
    jackfield.ops.hyper_connections jackfield.ops.image_gradients jackfield.ops.images jackfield.ops.linear_algebra
    jackfield.ops.linear_attention jackfield.ops.masks jackfield.ops.norms jackfield.ops.pooling
    jackfield.ops.position jackfield.ops.products jackfield.ops.reduce jackfield.ops.rounding jackfield.ops.rows
    jackfield.ops.sliding jackfield.ops.sparse_attention jackfield.ops.state_space jackfield.ops.training
    jackfield.ops.views jackfield.ops.windowed jackfield.rules jackfield.spec
    """.split()  # noqa: SIM905 (a list to be read)
)

PROGRAM = """
import json, sys
import numpy, ml_dtypes, pluggy
before = set(sys.modules)
events = []
sys.addaudithook(lambda event, args: events.append((event, str(args[0]) if args else "")))
import jackfield
watched = set('open subprocess.Popen socket.connect socket.bind os.putenv os.scandir os.system os.fork'.split())
print(json.dumps({
    "modules": sorted(set(sys.modules) - before),
    "events": [e for e in events if e[0] in watched],
    "plugins": sorted(m for m in sys.modules if m.startswith("jackfield_")),
    "threads": __import__("threading").active_count(),
}))
"""


def imported():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_import_loads_little_and_touches_nothing():
    seen = imported()
    assert seen["plugins"] == []
    assert seen["threads"] == 1
    assert LATE.isdisjoint(seen["modules"])
    assert {m for m in seen["modules"] if m.partition(".")[0] == "jackfield"} == CORE
    outside = sorted({m.partition(".")[0] for m in seen["modules"]} - sys.stdlib_module_names - {"jackfield", "numpy"})
    assert [m for m in outside if not m.startswith("__editable__")] == []
    odd = [e for e in seen["events"] if e[0] != "open" or not e[1].endswith((".py", ".pyc", ".so"))]
    assert odd == []
    assert not [e for e in seen["events"] if "dist-info" in e[1]]


def test_public_names():
    pinned = [
        "input",
        "constant",
        "state",
        "ops",
        "compile",
        "Session",
        "Plan",
        "devices",
        "status",
        "refresh",
        "register_backend",
        "sim",
        "save",
        "load_graph",
        "gguf",
        "errors",
        "Error",
        "Spec",
        "Tensor",
        "DType",
        "__version__",
        *("bool_" if name == "bool" else name for name in jf.dtypes.DTYPES),  # test_dtypes pins these
    ]
    assert sorted(pinned) == sorted(jf.__all__)
    for name in jf.__all__:
        assert getattr(jf, name) is not None


def test_the_version_is_that_of_the_distribution():
    assert jf.__version__ == version("jackfield")


def test_late_names_stay_what_they_are_whatever_is_imported_first():
    program = (
        "import jackfield.simulated, jackfield.registry, jackfield.gguf\nimport jackfield as jf\n"
        "assert jf.sim is jackfield.registry.sim and callable(jf.status) and jf.gguf.open\n"
        "assert set(jf.__all__) <= set(dir(jf))\n"
        "try:\n    jf.nix\nexcept AttributeError as e:\n    print(e)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert result.stdout == "module 'jackfield' has no attribute 'nix'\n"
