"""Where the script `jackfield` starts.

A module outside the package, because importing the package takes long enough for somebody to press Ctrl-C.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_INTERRUPTED = 130  # the exit code shells give a program that Ctrl-C ended


def main() -> None:
    """The command line; Ctrl-C ends it without a word, also while it is being imported."""
    try:
        from jackfield.cli import main as run  # noqa: PLC0415 (inside, so that its interruption is caught)

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
