"""Backends and suites with planted behaviour, for tests of the kit: imported by the test and by each worker.

Devices: `refuser` takes nothing; `silent` refuses without a word.
Suites: `twenty` dies in case 5 and hangs in case 9; `seven` has one case of each result; `stuck` hangs at once; `told`
passes and has something to tell.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import jackfield as jf
from jackfield.backend import Reason
from jackfield.reference import ReferenceBackend, ReferenceDevice
from jackfield_conformance.suites import SUITES
from jackfield_conformance.trials import Refused, Trial, Verdict


def device(name):
    made = ReferenceDevice()
    made.name = name
    return made


class Refuser(ReferenceBackend):
    """Lists every kernel and takes no step."""

    name = "refuser"
    reason = Reason("refuser: not today", "other")

    def devices(self):
        return (device(f"{self.name}:0"),)

    def why_not(self, step, target):
        return self.reason


class Silent(Refuser):
    name = "silent"
    reason = ""


def fine(subject):
    return []


def wrong(subject):
    return ["planted"]


def die(subject):
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(subject):
    os._exit(0)


def hang(subject):
    if "KIT_FAKES_PID" in os.environ:
        Path(os.environ["KIT_FAKES_PID"]).write_text(str(os.getpid()))
    while True:
        time.sleep(1)


def refuse(reason, subject):
    raise Refused(reason)


def twenty(seed):
    for number in range(1, 21):
        yield Trial(f"twenty/{number}", {5: die, 9: hang}.get(number, fine))


def seven(seed):
    yield Trial("seven/passes", fine)
    yield Trial("seven/fails", wrong)
    yield Trial("seven/refuses", partial(refuse, Reason("seven: no", "size")))
    yield Trial("seven/refuses-without-a-word", partial(refuse, ""))
    yield Trial("seven/known-to-fail", die if "KIT_FAKES_MENDED" not in os.environ else fine)
    yield Trial("seven/leaves", leave)
    yield Trial("seven/hangs", hang)
    yield Trial("seven/raises", partial(lambda subject: 1 // 0))


def stuck(seed):
    yield Trial("stuck/1", hang)


def deadly(seed):
    for number in range(30):
        yield Trial(f"deadly/{number}", die)


def told(seed):
    yield Trial("told/1", lambda subject: Verdict((), note="3 us a call, 1.02 of the stored run"))


SUITES.update(twenty=twenty, seven=seven, stuck=stuck, deadly=deadly, told=told)
if "KIT_FAKES_WORKER" in os.environ:
    for backend in (Refuser, Silent):
        jf.register_backend(backend)
