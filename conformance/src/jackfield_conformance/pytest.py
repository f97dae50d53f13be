"""The kit under pytest: `python -m pytest -p jackfield_conformance.pytest --device NAME`, one test a case, no files.

Files given on the command line are collected as well; without any, the cases are all there is, and --device is owed.
Needs pytest, which the extra `jackfield[conformance]` brings. A device that can't be opened skips, or fails where
JACKFIELD_REQUIRE names it; a name that nothing has, or a module that is not there, is a wrong use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jackfield.errors import AttributeValueError, DeviceNameError, Error

from .results import Result, read_expected
from .runner import DEADLINE, Request, Runner
from .suites import SUITES, chosen

__all__ = ["Case", "Kit"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("jackfield", "conformance of a jackfield device")
    group.addoption("--device", metavar="NAME", help="the device to try, such as sim or acme:0")
    group.addoption("--suite", action="append", default=[], metavar="NAME", help=f"all, {', '.join(SUITES)}")
    group.addoption("--seed", type=int, default=0, help="of the inputs")
    group.addoption("--sample", type=int, metavar="N", help="only so many cases of each suite, op and dtype")
    group.addoption("--deadline", type=float, default=DEADLINE, help="seconds after which a case counts as hung")
    group.addoption("--xfail-file", type=Path, default=None, metavar="FILE", help="known failures, as TOML")
    group.addoption("--import", action="append", default=[], dest="imports", metavar="MODULE", help="imported first")


def pytest_report_header(config: pytest.Config) -> list[str]:
    device = config.getoption("device")
    return [f"jackfield conformance: {device}, seed {config.getoption('seed')}"] if device else []


class Kit(pytest.Collector):
    """All cases of one request, and the worker they share."""

    def __init__(self, *, request: Request, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.runner = Runner(request)
        self.absent: Error | None = None

    def collect(self) -> Iterator[Case]:
        for name in self.runner.ids():
            yield Case.from_parent(self, name=name)

    def enter(self) -> None:
        """Open the device, or keep why it can't be had."""
        try:
            self.runner.__enter__()
        except Error as e:
            self.absent = e

    def result(self, name: str) -> Result:
        """Of one case. Raises: the typed error of a device that can't be had."""
        if self.absent is not None:
            raise self.absent
        return self.runner.one(name)


class Case(pytest.Item):
    """One case as a test."""

    def runtest(self) -> None:
        kit = self.parent
        assert isinstance(kit, Kit)
        try:
            result = kit.result(self.name)
        except Error as e:
            device = kit.runner.request.device
            if _is_required(device):
                pytest.fail(f"{device} is required: {e}", pytrace=False)
            pytest.skip(f"{device}: {e}")
        if result.result == "unsupported":
            pytest.skip(result.reason)
        if result.result == "xfail":
            pytest.xfail(f"{result.reason} {result.issue}")
        if result.is_bad:
            pytest.fail(f"{result.result}: {result.reason}", pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return Path("jackfield"), None, self.name


def _is_required(device: str) -> bool:
    """JACKFIELD_REQUIRE names the device or its kind."""
    words = os.environ.get("JACKFIELD_REQUIRE", "").replace(",", " ").split()
    return device in words or device.partition(":")[0] in words


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool | None:
    """Cases instead of the files of the current folder, which are none of the kit's business."""
    config = session.config
    device = config.getoption("device")
    files = config.args_source is pytest.Config.ArgsSource.ARGS
    if not device and not files:
        raise pytest.UsageError("jackfield_conformance.pytest: no device to try; name one with --device, such as sim")
    if not device:
        return None
    if files:
        session.perform_collect()
    try:
        suites = chosen(config.getoption("suite"))
        file = config.getoption("xfail_file")
        expected = read_expected(file) if file else ()
        imports = tuple(config.getoption("imports"))
        seed, deadline, sample = (config.getoption(name) for name in ("seed", "deadline", "sample"))
        request = Request(device, suites, seed, imports, deadline, expected, sample)
    except Error as e:
        raise pytest.UsageError(str(e)) from e
    kit = Kit.from_parent(session, name="conformance", nodeid="conformance", request=request)
    config.stash[_KIT] = kit
    kit.enter()
    if isinstance(kit.absent, DeviceNameError | AttributeValueError):
        raise pytest.UsageError(str(kit.absent))
    items: list[pytest.Item] = list(kit.collect())
    told = pytest.CollectReport(kit.nodeid, "passed", None, list[pytest.Item | pytest.Collector](items))
    config.hook.pytest_collectreport(report=told)
    config.hook.pytest_collection_modifyitems(session=session, config=config, items=items)
    session.items = [*session.items, *items] if hasattr(session, "items") else items
    config.hook.pytest_collection_finish(session=session)
    session.testscollected = len(session.items)
    return True


_KIT = pytest.StashKey[Kit]()


def pytest_unconfigure(config: pytest.Config) -> None:
    kit = config.stash.get(_KIT, None)
    if kit is not None:
        kit.runner.close()
