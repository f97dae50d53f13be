"""A plugin is found and trusted in each place that an installer may choose: an environment's packages, the user's."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from fake_dists import good, install

import jackfield

OPENS = """
import jackfield as jf
(status,) = [s for s in jf.status() if s.name == "acme"]
print(status.state, *jf.Session(device="acme").devices)
"""


def settings(tmp_path, **more):
    """The core and what it needs, by path; nothing else of this environment."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("JACKFIELD_", "PYTHON"))}
    path = os.pathsep.join([str(Path(jackfield.__file__).parents[1]), sysconfig.get_path("purelib")])
    return {**plain, "PYTHONPATH": path, "JACKFIELD_CACHE": str(tmp_path / "cache"), **more}


def asked(python, code, env):
    done = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def in_a_virtual_environment(tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    return python, "import sysconfig; print(sysconfig.get_path('purelib'))", settings(tmp_path)


def in_the_users_folder(tmp_path):
    env = settings(tmp_path, PYTHONUSERBASE=str(tmp_path / "user"))
    return sys._base_executable, "import site; print(site.getusersitepackages())", env


@pytest.mark.parametrize("place", [in_a_virtual_environment, in_the_users_folder])
def test_a_plugin_is_found_where_it_was_installed(place, tmp_path):
    python, where, env = place(tmp_path)
    (folder,) = asked(python, where, env)
    assert Path(folder).is_relative_to(tmp_path)
    Path(folder).mkdir(parents=True, exist_ok=True)
    install(Path(folder), "acme", good("acme"))
    assert asked(python, OPENS, env) == ["pending", "acme:0"]
