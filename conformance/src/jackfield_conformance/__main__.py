"""`python -m jackfield_conformance NAME` prints the claims of a backend, which its wheel commits as claims.txt.

They are made at the backend's first target: the one that can do least.
"""

from __future__ import annotations

import sys

from jackfield.conformance.claims import claims
from jackfield.errors import Error
from jackfield.registry import Registry


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m jackfield_conformance NAME (cpu, reference, ...)\n")
        return 2
    try:
        backend = Registry().open_backend(arguments[0], hardware_needed=False)
    except Error as e:
        sys.stderr.write(f"Error: {e}\n")
        return 1
    targets = backend.targets()
    if not targets:
        sys.stderr.write(
            f"Error: {arguments[0]}: its backend names no targets; claims are made at one: write targets()\n"
        )
        return 1
    sys.stdout.write(claims(backend, targets[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
