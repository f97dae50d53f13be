"""Wheels with one fault each, and the cases of the kit that must fail for it, in which alone.

As a script: every suite of the kit on every wheel; exits 1 when another case fails than those named, or one of them
does not. Usage: python wheel_faults.py [NAME ...]; without names, all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from environments import Environment  # noqa: E402 (beside this file and above it, which need not be on the path)
from wheels import build, source  # noqa: E402 (likewise)

ABOUT = ("packaging", "manifest", "registry", "names", "window")
TWO = "        other = Toy()\n        other.name = 'gaps:2'\n        return [Toy(), other]\n"
SHUFFLED = "        other = Toy()\n        other.name = 'shuffles:1'\n        made.append([Toy(), other])\n"
SHUFFLED += "        return made[-1][:: 1 if len(made) % 2 else -1]\n"
COPIED = "from jackfield.backend import API\n"
# Of the core, of another plugin, of its own and of the contract; the last two are what a plugin is to do.
NOSY = "import jackfield.session, jackfield.backend\nfrom jackfield import backend, plan\n"
INSIDE = "def late():\n    from jackfield_acme.device import Acme\n"
INSIDE += "    import jackfield_nosy, jackfieldish\n    from . import other\n"


def changed(name, old, new):
    text = source(name)
    assert text.count(old) == 1
    return text.replace(old, new)


def named(name, **fields):
    """A source whose device tells more of itself."""
    more = "".join(f"; self.{key} = {value}" for key, value in fields.items())
    return changed(name, f'self.name = "{name}:0"', f'self.name = "{name}:0"{more}')


# name: (source, what is wrong with the wheel, the cases that fail)
FAULTS = {
    "good": (source("good"), {}, ()),
    "fixed": (source("fixed"), {"needs_core": "jackfield==0.1.0"}, ("packaging/dependency",)),
    "alone": (source("alone"), {"needs_core": ""}, ("packaging/dependency",)),
    "unbound": (source("unbound"), {"needs_core": "jackfield"}, ("packaging/dependency",)),
    "also_fixed": (
        source("also_fixed"),
        {"needs_core": ("jackfield>=0.1", 'jackfield==0.1.0; python_version >= "3.8"')},
        ("packaging/dependency",),
    ),
    "also_unbound": (
        source("also_unbound"),
        {"needs_core": ("jackfield>=0.1", 'jackfield; python_version >= "3.8"')},
        ("packaging/dependency",),
    ),
    "extra": (source("extra"), {"needs_core": ("jackfield>=0.1", "jackfield==0.1.0; extra == 'old'")}, ()),
    "minor": (source("minor"), {"needs_core": "jackfield>=0.1,<0.2"}, ("packaging/dependency",)),
    "twice": (source("twice"), {"outside": {"other_name/__init__.py": b""}}, ("packaging/one-import-name",)),
    "outside": (
        source("outside"),
        {"outside": {"jackfield_outside-1.0.data/data/share/outside.txt": b"x"}},
        ("packaging/nothing-outside",),
    ),
    "half": (source("half"), {"more_entries": ("other_half = numpy.linalg",)}, ("packaging/entry-point",)),
    "free": (source("free"), {"licence": False}, ("packaging/licence",)),
    "plain": (source("plain"), {"has_manifest": False}, ("packaging/manifest",)),
    "mistyped": (source("mistyped"), {"prioritty": 3}, ("manifest/known-keys",)),
    "lacking": (source("lacking"), {"claims": "claims.txt"}, ("manifest/claims",)),
    "copied": (
        COPIED + changed("copied", 'api = "copied", (0, 1)', 'api = "copied", API'),
        {},
        ("window/literal",),
    ),
    "gaps": (changed("gaps", "        return [Toy()]\n", TWO), {}, ("names/whole",)),
    "shuffles": (
        changed("shuffles", "        return [Toy()]\n", SHUFFLED) + "\nmade = []\n",
        {},
        ("names/twice", "names/another-process"),
    ),
    "restless": (named("restless", id='f"id-{os.getpid():08}"'), {}, ("names/another-process",)),
    "short": (named("short", id='"abc"'), {}, ("names/ids",)),
    "nosy": (NOSY + source("nosy"), {"files": {"inside.py": INSIDE.encode()}}, ()),  # told, and no fault
    "noisy": (source("noisy", "noise", "open"), {}, ("registry/hooks",)),
}

# A Python without the GIL, as far as anybody asks: the tests' own has it. A module turns it on by PRETENDED.
PRETEND = """
import os, sys, sysconfig
if "PRETENDED" in os.environ:
    sys._pretended = False
    sys._is_gil_enabled = lambda: sys._pretended
    asked = sysconfig.get_config_var
    sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else asked(name)
"""
UNMARKED = "import sys\nif hasattr(sys, '_pretended'):\n    sys._pretended = True\n"
LOCKS = {
    "marked": (source("marked"), {}, ()),
    "unmarked": (source("unmarked") + UNMARKED, {}, ("free-threading/gil-stays-off",)),
}

# name: (source, what is wrong with the manifest, words of the refusal when its kind is named). Such a wheel never gets
# as far as the suites.
DISAGREE = {
    "misnamed": (changed("misnamed", 'api = "misnamed", (0, 1)', 'api = "other", (0, 1)'), {}, "the object's name is"),
    "misdated": (
        source("misdated"),
        {"contract": {"min": "0.1", "max": "0.2"}},
        "manifest says api 0.2, object says 0.1",
    ),
    "miskind": (source("miskind"), {"kinds": [{"kind": "other", "class": "npu"}]}, "a device is called 'miskind:0'"),
}

# name: (source, what is wrong with the wheel, words of the refusal when its kind is named): no suite ever sees them.
REFUSED = {
    "foreign": (source("foreign"), {"value": "numpy.linalg"}, "numpy would come from "),
    "borrows": (source("borrows"), {"value": "jackfield_good"}, "jackfield_good would come from "),
}

# Claims more than it takes: only an installed wheel has such a file.
LOST = {
    "lost": (source("lost"), {"claims": "claims.txt", "beside": {"claims.txt": b"tanh f32 5/5\n"}}, ("claims/file",)),
}


def installed(folder, *tables):
    """An environment with the wheels of these tables."""
    made = Environment(folder)
    rows = [(name, text, given) for table in tables for name, (text, given, _) in table.items()]
    made.install(*(build(folder, name, text, **given) for name, text, given in rows))
    (made.site / "pretended.py").write_text(PRETEND)
    (made.site / "pretended.pth").write_text("import pretended\n")
    return made


def conform(environment, device, *words, **settings):
    """The report, the exit code and what was said on stderr."""
    given = {**os.environ, "JACKFIELD_CACHE": str(environment.cache), **settings}
    run = [environment.python, "-m", "jackfield", "conform", device, "--json", *words]
    done = subprocess.run(run, env=given, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.stdout else None, done.returncode, done.stderr


def bad(report):
    return tuple(case["id"] for case in report["cases"] if case["result"] not in ("passed", "unsupported"))


def main(names):
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        environment = installed(Path(folder), FAULTS, LOCKS, LOST)
        for name, (_, _, cases) in {**FAULTS, **LOCKS, **LOST}.items():
            if names and name not in names:
                continue
            report, _, said = conform(environment, f"{name}:0", PRETENDED="1")
            found = bad(report) if report else (said,)
            right = set(found) == set(cases)
            print(f"{'as told' if right else 'NOT AS TOLD'}: {name}: {', '.join(found) or 'nothing fails'}", flush=True)
            wrong += [] if right else [name]
    print(f"{len(wrong)} wheels not as told: {', '.join(wrong)}" if wrong else "all wheels are as told")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
