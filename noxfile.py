"""The tasks of the project by name; continuous integration calls the same ones."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "tests"]

PYTHON = ("core/src", "conformance/src", "plugins/cpu/src", "llm/src")


@nox.session
def lint(session: nox.Session) -> None:
    """Style of Python and C++."""
    session.run("uv", "run", "ruff", "check", external=True)
    session.run("uv", "run", "ruff", "format", "--check", external=True)
    session.run(
        "bash", "-c", "git ls-files '*.cpp' '*.h' | xargs uv run clang-format --dry-run --Werror", external=True
    )


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict over core, kit, llm, the plugins' Python and the example."""
    session.run("uv", "run", "mypy", *PYTHON, external=True)
    session.run("uv", "run", "mypy", "--config-file", "examples/jackfield-wgpu/pyproject.toml", external=True)


@nox.session
def tests(session: nox.Session) -> None:
    """Everything; arguments go to pytest."""
    session.run("uv", "run", "pytest", *session.posargs, external=True)


@nox.session
def conformance(session: nox.Session) -> None:
    """Every op on every device found."""
    session.run("uv", "run", "pytest", "tests/conformance", *session.posargs, external=True)


@nox.session
def wheels(session: nox.Session) -> None:
    """A wheel of each dist under dist/, looked at; another folder may be given."""
    session.run("uv", "run", "--group", "wheels", "python", ".ci/wheels.py", *session.posargs, external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The examples of README and docs, run."""
    session.run("uv", "run", "pytest", "tests/test_docs.py", *session.posargs, external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Overhead of the core; see bench/README.md for the comparison with llama.cpp."""
    session.run("uv", "run", "python", "bench/overhead.py", *session.posargs, external=True)
