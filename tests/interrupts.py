"""Ctrl-C where the interpreter looks for it: after calls, at the ends of loops and where a function begins."""

from __future__ import annotations

import dis
import sys

# Instructions after which it looks whether a signal came.
LOOKS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}


def handler(code, at):
    """Where the interpreter goes on when the instruction there raises."""
    return next((entry.target for entry in dis._parse_exception_table(code) if entry.start <= at < entry.end), None)


def looks(code, before, at):
    """Whether a signal can raise after the instruction at `before`. A trace raises at the next one instead, which is
    the same only where both have one handler.
    """
    return dis.opname[code.co_code[before]] in LOOKS and handler(code, before) == handler(code, at)


class Interrupt:
    """KeyboardInterrupt at the n-th such place in code that `chosen` takes; counts them where `at` is 0."""

    def __init__(self, chosen, at=0):
        self.chosen, self.at, self.seen, self.last = chosen, at, 0, {}  # last: of a frame, where its instruction lay

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def trace(self, frame, event, _):
        code = frame.f_code
        if not self.chosen(code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            before, self.last[frame] = self.last.get(frame), frame.f_lasti
            if before is not None and looks(code, before, frame.f_lasti):
                self.seen += 1
                if self.seen == self.at:
                    self.last.clear()
                    raise KeyboardInterrupt
        return self.trace
