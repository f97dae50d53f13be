"""The command line: `jackfield X` and `python -m jackfield X`. The only part of the core that needs click and rich."""

from __future__ import annotations

from .app import main

__all__ = ["main"]
