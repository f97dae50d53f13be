"""`jackfield conform` as a whole: crashes and hangs are counted, nothing goes green by skipping, reports add up."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from copy import copy
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jackfield
import jackfield_conformance
from jackfield import ops
from jackfield.cli.app import app
from jackfield.conformance.cases import examples
from jackfield.op import OPS, Case, values
from jackfield_conformance import report
from jackfield_conformance.results import KINDS, Expected, Result, XfailError, judge, read_expected
from jackfield_conformance.runner import Request, Runner, run
from jackfield_conformance.suites import DEFAULT, SUITES, chosen, sampled, trials_of
from jackfield_conformance.trials import Trial

HERE = Path(__file__).parent
SOURCES = [str(Path(package.__file__).parents[1]) for package in (jackfield, jackfield_conformance)]
HANG = 5.0  # seconds after which the planted hang counts as one


@pytest.fixture
def fakes(monkeypatch):
    """The planted suites, here and in every worker."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])))
    monkeypatch.setenv("KIT_FAKES_WORKER", "1")
    before = dict(SUITES)
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.delenv("KIT_FAKES_WORKER")
    import kit_fakes

    SUITES.update({name: getattr(kit_fakes, name) for name in ("twenty", "seven", "stuck", "deadly", "told")})
    monkeypatch.setenv("KIT_FAKES_WORKER", "1")
    yield ("kit_fakes",)
    SUITES.clear()
    SUITES.update(before)


def conform(*arguments):
    return CliRunner().invoke(app, ["conform", *map(str, arguments)])


# Crashes and hangs


def test_a_crash_and_a_hang_are_charged_to_their_cases(fakes):
    _, results = run(Request("sim", ("twenty",), imports=fakes, deadline=HANG))
    assert [r.id for r in results] == [f"twenty/{n}" for n in range(1, 21)]
    assert Counter(r.result for r in results) == {"passed": 18, "crashed": 1, "hung": 1}
    assert results[4].result == "crashed"
    assert "SIGSEGV" in results[4].reason
    assert results[8].result == "hung"
    assert results[8].seconds >= HANG


def test_a_suite_that_kills_every_worker_is_given_up(fakes):
    _, results = run(Request("sim", ("deadly",), imports=fakes))
    assert all(r.result == "crashed" for r in results)
    assert sum("not tried" in r.reason for r in results) == 20


def test_each_result_is_told_apart(fakes, tmp_path):
    file = tmp_path / "xfail.toml"
    known = '[[xfail]]\ncase = "seven/{}"\nreason = "being mended"\nissue = "https://example.com/1"\n'
    file.write_text(known.format("known-*") + known.format("passes"))
    request = Request("sim", ("seven",), imports=fakes, deadline=HANG, expected=read_expected(file))
    _, results = run(request)
    found = {r.id.partition("/")[2]: r for r in results}
    assert {name: r.result for name, r in found.items()} == {
        "passes": "xpass",
        "fails": "failed",
        "refuses": "unsupported",
        "refuses-without-a-word": "failed",
        "known-to-fail": "xfail",
        "leaves": "crashed",
        "hangs": "hung",
        "raises": "failed",
    }
    assert (found["refuses"].reason, found["refuses"].code) == ("seven: no", "size")
    assert found["known-to-fail"].issue == "https://example.com/1"
    assert "exit code 0" in found["leaves"].reason
    assert "ZeroDivisionError" in found["raises"].reason
    assert "without a reason" in found["refuses-without-a-word"].reason


def test_an_expected_failure_that_is_mended_is_a_failure(fakes, monkeypatch):
    monkeypatch.setenv("KIT_FAKES_MENDED", "1")
    expected = (Expected("seven/known-to-fail", "broken", "https://example.com/1"),)
    with Runner(Request("sim", ("seven",), imports=fakes, expected=expected)) as runner:
        result = runner.one("seven/known-to-fail")
    assert result.result == "xpass"
    assert result.is_bad
    assert "take it off the list" in result.reason


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_the_workers(fakes, tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    monkeypatch.setenv("KIT_FAKES_PID", str(pid))
    code = (  # what a shell starts in the background has Ctrl-C ignored, and hands that on
        "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "os.environ.pop('KIT_FAKES_WORKER'); import kit_fakes; os.environ['KIT_FAKES_WORKER'] = '1'; "
        "from jackfield.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "conform", "sim", "--suite", "stuck", "--import", "kit_fakes"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not (pid.exists() and pid.read_text()):
        assert started.poll() is None, started.stdout.read()
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    started.communicate()
    assert started.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


# Workers that are hard to be rid of


@pytest.fixture
def module(fakes, tmp_path, monkeypatch):
    """From the text of a module to the modules a worker imports: the planted suites and this one."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))

    def made(text):
        (tmp_path / "planted_module.py").write_text(text)
        return (*fakes, "planted_module")

    return made


LEAVER = """
import os, time
if os.fork() == 0:
    {}
    held = open({!r}, "w")
    time.sleep(4 * {})
    held.write("it outlived its parent")
    held.close()
    os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes of POSIX")
@pytest.mark.parametrize("daemon", [False, True])
def test_a_process_that_a_backend_leaves_holds_nothing_up(module, tmp_path, daemon):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    said = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    imports = module(LEAVER.format("os.setsid()" if daemon else "", str(path), HANG))
    with Runner(Request("sim", ("twenty",), imports=imports, deadline=HANG)) as runner:
        results = list(runner.results(["twenty/4", "twenty/5"]))
    assert [r.result for r in results] == ["passed", "crashed"]
    assert "SIGSEGV" in results[1].reason
    os.set_blocking(said, True)
    if not daemon:  # one in a session of its own is nobody's to end
        assert os.read(said, 100) == b"", "it was ended"
    os.close(said)


@pytest.mark.skipif(sys.platform == "win32", reason="processes of POSIX")
def test_a_hung_worker_ends_with_the_command_that_started_it(fakes, tmp_path, monkeypatch):
    path = tmp_path / "pid"
    monkeypatch.setenv("KIT_FAKES_PID", str(path))
    command = [sys.executable, "-m", "jackfield_conformance.worker"]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    worker.stdin.write(json.dumps({"device": "sim", "seed": 0, "imports": fakes}) + "\n" + json.dumps("stuck/1") + "\n")
    worker.stdin.flush()
    while not (path.exists() and path.read_text()):
        assert worker.poll() is None
        time.sleep(0.05)
    worker.stdin.close()
    assert worker.wait() == 1


FLAKY = """
import os
from jackfield.errors import Unavailable
if os.path.exists({0!r}):
    raise Unavailable("flaky: the driver has lost the device")
open({0!r}, "w").close()
"""


def test_a_device_that_a_crash_costs_is_told_case_by_case(module, tmp_path):
    imports = module(FLAKY.format(str(tmp_path / "lost")))
    arguments = ("sim", "-s", "deadly", *(f"--import={name}" for name in imports))
    done = conform(*arguments, "--report", tmp_path / "r.json")
    assert done.exit_code == 1
    assert "crashed: deadly/0: the process was killed by SIGSEGV" in done.output
    assert "sim:0 (sim)" in done.output
    cases = report.load(tmp_path / "r.json")["cases"]
    assert [c["result"] for c in cases] == ["crashed"] * 30
    lost = "the device can't be opened again: flaky: the driver has lost the device"
    assert [c["reason"] for c in cases[1:10]] == [lost] * 9
    assert all(c["reason"].startswith("not tried: 10 workers in a row died") for c in cases[10:])
    assert lost in cases[10]["reason"]


def test_under_pytest_a_device_that_is_lost_on_the_way_fails(module, tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import os\nos.environ.pop('KIT_FAKES_WORKER', None)\nimport kit_fakes\nos.environ['KIT_FAKES_WORKER'] = '1'\n"
    )
    imports = module(FLAKY.format(str(tmp_path / "lost")))
    suites = ("--suite", "twenty", *(f"--import={name}" for name in imports))
    done = pytest_run(tmp_path, "--device", "sim", *suites, "-k", "twenty/5 or twenty/6")
    assert "2 failed" in done.stdout
    assert "FAILED conformance::twenty/6 - Failed: crashed: the device can't be" in done.stdout


SCRIBBLER = """
import os
from jackfield_conformance.suites import SUITES
from jackfield_conformance.trials import Trial

def scribble(text, subject):
    for number in range(3, 12):
        try:
            os.write(number, text)
        except OSError:
            pass
    return []

from functools import partial
texts = (b"rubbish\\n", b"[3]\\n", b"\\xff\\xfe\\n", b"[" * 100_000 + b"\\n", b"1" * 6000 + b"\\n", b"")
SUITES["scribbles"] = lambda seed: [Trial(f"scribbles/{n}", partial(scribble, t)) for n, t in enumerate(texts)]
"""


def test_a_backend_that_writes_between_the_answers_is_told(module):
    imports = module(SCRIBBLER)
    with Runner(Request("sim", ("scribbles",), imports=imports, deadline=HANG)) as runner:
        results = [runner.one(f"scribbles/{number}") for number in range(5)]
        assert runner.one("twenty/1").result == "passed"
    assert [r.result for r in results] == ["crashed"] * 5
    assert "'rubbish\\n' was written where the worker's answers go" in results[0].reason


# Nothing goes green by skipping


def test_a_backend_that_refuses_everything_fails(fakes):
    with Runner(Request("refuser", ("ops", "claims"), imports=fakes)) as runner:
        nothing = runner.one("ops/any/claimed")
        one = runner.one(next(i for i in runner.ids() if i.startswith("ops/tanh/")))
        runs = runner.one("claims/runs/tanh")
    assert nothing.result == "failed"
    assert "at least one kernel" in nothing.reason
    assert (one.result, one.reason) == ("unsupported", "refuser: not today")
    assert runs.result == "failed"
    assert "every case is refused: refuser: not today" in runs.reason


def test_a_refusal_without_words_fails(fakes):
    with Runner(Request("silent", ("ops", "claims"), imports=fakes)) as runner:
        assert runner.one(next(i for i in runner.ids() if i.startswith("ops/tanh/"))).result == "failed"
        assert "must be a sentence" in runner.one("claims/reasons/tanh").reason


@pytest.mark.parametrize("name", ["nothing", "sim:7", "cuad"])
def test_a_device_that_is_not_there_fails(name):
    done = conform(name, "--suite", "buffers")
    assert done.exit_code in (1, 2)
    assert "passed" not in done.output
    assert name in done.output


def pytest_run(cwd, *arguments, **env):
    command = [sys.executable, "-m", "pytest", "-p", "jackfield_conformance.pytest", "-p", "no:cacheprovider", "-rA"]
    return subprocess.run(
        [*command, *arguments], cwd=cwd, env=os.environ | env, capture_output=True, text=True, check=False
    )


def test_under_pytest_each_case_is_a_test(tmp_path):
    done = pytest_run(tmp_path, "--device", "sim", "--suite", "buffers", "-k", "zero or borrow")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 skipped" in done.stdout
    assert "PASSED conformance::buffers/zero-bytes" in done.stdout
    assert "seed 0" in done.stdout


def test_under_pytest_no_device_is_told(tmp_path):
    done = pytest_run(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "name one with --device" in done.stderr
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    done = pytest_run(tmp_path, "test_own.py")  # the files of somebody else, who has the plugin loaded
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_under_pytest_an_absent_device_skips_or_fails(tmp_path):
    (tmp_path / "lost.py").write_text(
        "import jackfield\nfrom jackfield.backend import Unavailable\nfrom jackfield.simulated import SimBackend\n"
        "class Nothing(SimBackend):\n    name = 'nothing'\n"
        "    def devices(self):\n        raise Unavailable('no driver')\n"
        "jackfield.register_backend(Nothing())\n"
    )
    arguments = ("--device", "nothing:0", "--suite", "buffers", "-k", "zero", "--import", "lost")
    done = pytest_run(tmp_path, *arguments, JACKFIELD_REQUIRE="")
    assert done.returncode == 0
    assert "2 skipped" in done.stdout
    done = pytest_run(tmp_path, *arguments, JACKFIELD_REQUIRE="cpu,nothing")
    assert done.returncode == 1
    assert "2 failed" in done.stdout
    assert "nothing:0 is required" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--device", "nosuch:0"), "no kind of device is called 'nosuch'"),
        (("--device", "sim", "--import", "no.such"), "there is no module 'no.such' to import"),
    ],
)
def test_what_nothing_has_is_a_wrong_use_and_not_a_skip(tmp_path, arguments, text):
    done = pytest_run(tmp_path, *arguments, "--suite", "buffers")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert text in done.stderr
    command = [sys.executable, "-m", "jackfield", "conform", arguments[1], "-s", "buffers", *arguments[2:]]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode != 0
    assert text in told.stderr
    assert "Traceback" not in told.stderr


def test_under_pytest_a_bad_case_fails(fakes, tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import os\nos.environ.pop('KIT_FAKES_WORKER', None)\nimport kit_fakes\nos.environ['KIT_FAKES_WORKER'] = '1'\n"
    )
    done = pytest_run(tmp_path, "--device", "sim", "--suite", "seven", "--import", "kit_fakes", "-k", "fails or leaves")
    assert done.returncode == 1, done.stdout
    assert "FAILED conformance::seven/fails - Failed: failed: planted" in done.stdout
    assert "FAILED conformance::seven/leaves - Failed: crashed" in done.stdout


# From the wheel alone


def test_the_kit_needs_no_checkout_and_no_pytest(tmp_path):
    for name in ("pytest", "_pytest", "hypothesis"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')\n")
    work = tmp_path / "work"
    work.mkdir()
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *SOURCES])
    command = [sys.executable, "-P", "-m", "jackfield", "conform", "sim", "-s", "buffers", "--report", "out.json"]
    done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"\d+ cases on sim: buffers\n", done.stderr)
    fields = report.load(work / "out.json")
    assert fields["suites"]["buffers"]["passed"] > 30
    assert fields["device"]["name"] == "sim:0"
    assert list(work.iterdir()) == [work / "out.json"]


# Reports


def some_results():
    return [
        Result("ops/a", "passed", max_ulp=0.5, seconds=0.25),
        Result("ops/b", "unsupported", "only rows", "attribute"),
        Result("buffers/c", "failed", "byte 3 is 7"),
        Result("buffers/d", "xfail", "known", issue="https://example.com/2"),
    ]


def written(results, path, suites=("ops", "buffers")):
    fields = report.document({"core": "0", "backend": {"name": "x"}}, suites, 7, results)
    path.write_text(report.text(fields))
    return fields


def test_counts_equal_cases(tmp_path):
    fields = written(some_results(), tmp_path / "r.json")
    again = report.load(tmp_path / "r.json")
    assert again == fields
    for suite, row in again["suites"].items():
        cases = [c["result"] for c in again["cases"] if c["id"].startswith(f"{suite}/")]
        assert row == {kind: cases.count(kind) for kind in KINDS}
    assert again["cases"][1] == {
        "id": "ops/b", "result": "unsupported", "code": "attribute", "reason": "only rows", "max_ulp": None,
        "seconds": 0.0,
    }  # fmt: skip
    assert (again["schema"], again["seed"], again["level"]["asked"]) == ("jackfield.conformance/1", 7, None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each try writes the whole file anew
@given(st.integers(0, 10_000), st.characters(min_codepoint=48, max_codepoint=122))
def test_any_byte_changes_the_digest(tmp_path, at, other):
    path = tmp_path / "r.json"
    written(some_results(), path)
    text = path.read_text()
    places = [i for i, c in enumerate(text) if not c.isspace()]
    i = places[at % len(places)]
    if text[i] != other:
        path.write_text(text[:i] + other + text[i + 1 :])
        with pytest.raises(report.ReportError):
            report.load(path)


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (lambda f: f["suites"]["buffers"].update(failed=0), "buffers counts"),
        (lambda f: f["suites"]["ops"].update(passed=2, unsupported=0), "ops counts"),
        (lambda f: f["suites"].update(views=dict.fromkeys(KINDS, 1)), "views counts"),
        (lambda f: f["suites"].pop("ops"), "'ops/a'"),
        (lambda f: f["cases"].pop(), "buffers counts"),
        (lambda f: f["cases"][0].update(result="fine"), "'fine'"),
        (lambda f: f.pop("cases"), "no cases"),
        (lambda f: f.update(suites=[]), "no suites"),
    ],
)
def test_counts_must_be_those_of_the_cases(tmp_path, forge, words):
    fields = report.document({"core": "0"}, ("ops", "buffers"), 7, some_results())
    forge(fields)
    (tmp_path / "r.json").write_text(json.dumps(fields | {"digest": report.digest(fields)}))
    with pytest.raises(report.ReportError, match=words):
        report.load(tmp_path / "r.json")


def signed(fields):
    return json.dumps(fields | {"digest": report.digest(fields)})


NO_REPORTS = {
    "nothing": "",
    "no text": b"\xff\xfe\0\0",
    "no document": "[1]",
    "a number": "NaN",
    "a large number": "1" * 6000,
    "deep lists": "[" * 200_000,
    "deep tables": '{"a":' * 5000 + "1" + "}" * 5000,
    "half a letter": '{"schema": "jackfield.conformance/1", "x": "\\ud800", "digest": "x"}',
    "numbers for cases": signed({"schema": report.SCHEMA, "suites": {}, "cases": [1, 2]}),
    "a number for an id": signed({"schema": report.SCHEMA, "suites": {}, "cases": [{"id": 5}]}),
    "no result": signed({"schema": report.SCHEMA, "suites": {"ops": {}}, "cases": [{"id": "ops/a"}]}),
    "a list as result": signed(
        {"schema": report.SCHEMA, "suites": {"ops": {}}, "cases": [{"id": "ops/a", "result": []}]}
    ),
    "no suites": signed({"schema": report.SCHEMA, "cases": []}),
    "suites without counts": signed({"schema": report.SCHEMA, "suites": {"ops": None}, "cases": []}),
    "a table of cases": signed({"schema": report.SCHEMA, "suites": {}, "cases": {"id": 1}}),
    "the same twice": signed(report.document({}, ("ops",), 0, [Result("ops/a", "passed"), Result("ops/a", "failed")])),
}


@pytest.mark.parametrize("name", NO_REPORTS)
def test_what_is_no_report_is_told(tmp_path, name):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    written(some_results(), good)
    content = NO_REPORTS[name]
    bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    for pair in ((good, bad), (bad, good)):
        done = conform("--compare", *pair)
        assert (done.exit_code, type(done.exception)) == (1, SystemExit)
        assert "bad.json: " in done.output
    with pytest.raises(report.ReportError):
        report.load(bad)


def test_compare_lists_what_got_worse(tmp_path):
    old = some_results()
    written(old, tmp_path / "old.json")
    worse = [Result("ops/a", "unsupported", "no more"), old[1], old[2]]
    written(worse, tmp_path / "new.json")
    done = conform("--compare", tmp_path / "old.json", tmp_path / "new.json")
    assert done.exit_code == 1
    assert done.output.splitlines() == ["ops/a: passed -> unsupported: no more", "1 regressions"]
    assert conform("--compare", tmp_path / "old.json", tmp_path / "old.json").exit_code == 0
    done = conform("--compare", tmp_path / "new.json", tmp_path / "old.json")
    assert (done.exit_code, done.output) == (0, "nothing got worse\n")
    (tmp_path / "new.json").write_text((tmp_path / "new.json").read_text().replace("no more", "no less"))
    done = conform("--compare", tmp_path / "old.json", tmp_path / "new.json")
    assert done.exit_code == 1
    assert "changed after it was written" in done.output


def test_reports_with_no_case_in_common_are_not_compared(tmp_path):
    def kept(name, suite, sample=None):
        cases = [Result(f"{suite}/{name}", "passed")]
        (tmp_path / f"{name}.json").write_text(json.dumps(report.document({}, (suite,), 0, cases, sample=sample)))
        return tmp_path / f"{name}.json"

    old, other, sampled = kept("a", "ops"), kept("b", "packed"), kept("c", "ops", sample=1)
    for new in (other, sampled):
        done = conform("--compare", old, new)
        assert done.exit_code == 1
        assert "no case in common" in done.output
    assert conform("--compare", sampled, sampled).exit_code == 0


def test_a_case_that_crashes_where_it_was_refused_is_worse():
    def one(result):
        return report.document({}, ("ops",), 0, [Result("ops/a", result)] if result else [])

    worse = {
        ("passed", "failed"), ("passed", "unsupported"), ("passed", "crashed"), ("passed", "xfail"), ("passed", ""),
        ("unsupported", "crashed"), ("unsupported", "failed"), ("xfail", "hung"), ("passed", "hung"),
    }  # fmt: skip
    for was in ("passed", "unsupported", "xfail", "failed"):
        for now in ("passed", "failed", "unsupported", "xfail", "crashed", "hung", ""):
            expected = (was, now) in worse or (was in ("unsupported", "xfail") and now in ("failed", "crashed", "hung"))
            assert bool(report.regressions(one(was), one(now))) == expected, (was, now)


def test_the_command_prints_a_table_or_the_report(tmp_path):
    done = conform("sim", "-s", "buffers", "--report", tmp_path / "r.json")
    assert done.exit_code == 0
    assert "buffers  38      0       3" in done.output
    assert "seed 0: nothing is wrong" in done.output
    report.load(tmp_path / "r.json")
    done = conform("sim", "-s", "buffers", "--json", "--seed", 3)
    fields = json.loads(done.stdout)
    assert fields["digest"] == report.digest(fields)
    assert fields["seed"] == 3


def test_what_a_passed_case_has_to_tell_is_printed_and_kept(fakes, tmp_path):
    done = conform("sim", "-s", "told", "--import", "kit_fakes", "--report", tmp_path / "r.json")
    assert done.exit_code == 0
    assert "\ntold/1: 3 us a call, 1.02 of the stored run\n" in done.output
    (case,) = report.load(tmp_path / "r.json")["cases"]
    assert (case["result"], case["reason"]) == ("passed", "3 us a call, 1.02 of the stored run")


def test_a_report_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text("the one before")
    arguments = ("sim", "-s", "buffers", "--report", path)

    def full(self, words, encoding):
        self.write_bytes(words.encode(encoding)[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        done = conform(*arguments)
    assert done.exit_code == 1
    assert "seed 0: nothing is wrong" in done.output
    assert done.output.endswith(f"Error: --report: {path}: it is not written: No space left on device\n")
    assert path.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [path]
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert conform(*arguments[:-1], link).exit_code == 0
    assert link.is_symlink()
    report.load(path)
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_a_report_that_has_no_place_is_told_before_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "no" / "r.json", tmp_path / "file" / "r.json"):
        done = conform("nothing-of-this-name", "--report", place)
        assert done.exit_code == 2
        assert f"--report: {place}: no file can be made there: " in " ".join(done.output.split())


def test_a_report_may_go_to_a_device():
    assert conform("sim", "-s", "buffers", "--report", os.devnull).exit_code == 0
    assert not Path(os.devnull).is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_report_may_go_to_a_pipe(tmp_path):
    reading, writing = os.pipe()
    place = f"/dev/fd/{writing}"
    command = [sys.executable, "-m", "jackfield", "conform", "sim", "-s", "buffers", "--report", place]
    done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=[writing])
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        fields = json.load(pipe)
    assert done.returncode == 0
    assert re.fullmatch(r"\d+ cases on sim: buffers\n", done.stderr)
    assert fields["digest"] == report.digest(fields)


def test_a_report_without_the_home_folder_has_its_digest(module, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    imports = module(SCRIBBLER.replace("return []", f"return ['it is in ' + {str(tmp_path)!r}]"))
    monkeypatch.setitem(SUITES, "scribbles", lambda seed: [Trial("scribbles/5", None)])
    named = [f"--import={name}" for name in imports]
    done = conform("sim", "-s", "scribbles", *named, "--report", tmp_path / "r.json")
    (case,) = report.load(tmp_path / "r.json")["cases"]
    assert (case["result"], case["reason"]) == ("failed", "it is in ~")
    assert str(tmp_path) not in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nix",), "Invalid value for NAME: 'nix', column 1"),
        (("sim", "--sample", "0"), "Invalid value for --sample: sample is 0, must be at least 1"),
        (("sim", "--suite", "nix"), "Invalid value for --suite: no suite 'nix'"),
        (("sim", "--import", "no.such"), "Invalid value for --import: there is no module 'no.such'"),
    ],
)
def test_an_error_names_the_option(arguments, says):
    done = conform(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr


@pytest.mark.parametrize("arguments", [(), ("sim", "--suite", "nosuch"), ("sim", "--compare", HERE, HERE)])
def test_wrong_use_is_2(arguments):
    assert conform(*arguments).exit_code == 2


@pytest.mark.parametrize(
    "option",
    ["--deadline=-1", "--deadline=0", "--deadline=inf", "--deadline=nan", "--seed=-1", "--sample=0", "--sample=-1"],
)
def test_numbers_that_ask_for_nothing_are_wrong_use(tmp_path, option):
    done = conform("nothing-of-this-name", option)
    assert done.exit_code == 2
    assert "must be" in done.output
    done = pytest_run(tmp_path, "--device", "nothing-of-this-name", option)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "must be" in done.stderr


# What is asked


def test_ids_are_unique_and_the_same_in_every_process():
    ids = [trial.id for trial in trials_of(SUITES, 0)]
    assert len(ids) == len(set(ids)) > 9000
    assert all(i.partition("/")[0] in SUITES for i in ids)
    assert not [i for i in ids if " " in i or "~" in i]
    code = "from jackfield_conformance.suites import *; print(*[t.id for t in trials_of(SUITES, 5)], sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ids


@pytest.mark.parametrize("name", [name for name in ops.__all__ if not OPS[name].is_view])
def test_examples_of_one_id_ask_the_same(name):
    def asked(example):
        return {n: example.draws[n] for n in example.views}, example.views, example.bases, example.attrs

    known = {}
    for example in examples(OPS[name]):
        assert asked(known.setdefault(example.id, example)) == asked(example), example.id


def test_an_id_stays_when_cases_are_added():
    op = OPS["argmax"]
    more = copy(op)
    more.cases = (Case({"x": values([[2.0] * 5] * 3)}), *op.cases)
    new = {example.id for example in examples(more)}
    assert new > {example.id for example in examples(op)}


IDS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map("/".join), unique=True)


def groups_of(ids):
    return Counter("/".join(name.split("/")[:3]) for name in ids)


@given(IDS, st.integers(1, 4), st.integers(0, 3))
def test_a_sample_has_so_many_of_each_group_in_their_order(ids, most, seed):
    drawn = sampled(ids, most, seed)
    assert drawn == [name for name in ids if name in drawn]
    assert groups_of(drawn) == {group: min(most, n) for group, n in groups_of(ids).items()}
    assert set(drawn) <= set(sampled(ids, most + 1, seed))
    assert sorted(sampled(ids[::-1], most, seed)) == sorted(drawn)


@given(IDS, IDS, st.integers(1, 4))
def test_cases_that_are_added_push_no_more_than_themselves_out_of_a_sample(ids, more, most):
    added = set(more) - set(ids)
    before, after = sampled(ids, most, 0), sampled([*ids, *added], most, 0)
    assert set(after) - set(before) <= added
    assert len(set(before) - set(after)) <= len(added)


def test_another_seed_draws_other_cases():
    whole = [trial.id for trial in trials_of(["block-dtypes"], 0)]
    draws = [sampled(whole, 2, seed) for seed in range(40)]
    assert draws[0] != draws[1]
    assert set().union(*draws) > {name for name in whole if name.startswith("block-dtypes/linear/q4_0/")}


@pytest.mark.parametrize("seed", [0, 3])
def test_a_sample_is_run_and_told(tmp_path, seed):
    request = Request("sim", ("packed", "buffers"), seed, sample=1)
    asked = sampled([trial.id for trial in trials_of(("buffers", "packed"), seed)], 1, seed)
    arguments = ("sim", "-s", "packed", "-s", "buffers", "--seed", seed, "--sample", 1)
    assert conform(*arguments, "--report", tmp_path / "r.json").exit_code == 0
    fields = report.load(tmp_path / "r.json")
    assert sorted(case["id"] for case in fields["cases"]) == sorted(asked) == sorted(Runner(request).ids())
    assert fields["sample"] == 1
    done = pytest_run(tmp_path, "--device", "sim", "--suite", "buffers", "--suite", "packed", "--sample=1", "--co")
    assert f" {len(asked)} tests collected" in done.stdout


def test_what_a_sample_left_out_is_not_worse():
    old = report.document({}, ("ops",), 0, [Result("ops/a", "passed"), Result("ops/b", "passed")])
    few = [Result("ops/b", "failed", "wrong")]
    assert report.regressions(old, report.document({}, ("ops",), 0, few, 1)) == ["ops/b: passed -> failed: wrong"]
    assert report.regressions(old, report.document({}, ("ops",), 0, few))[0] == "ops/a: passed -> missing"


def test_suites_are_chosen_by_name():
    assert chosen(["views", "ops"]) == ("ops", "views")
    assert chosen([]) == DEFAULT == tuple(n for n in SUITES if n not in ("coverage", "overhead"))
    assert chosen(["all"]) == tuple(SUITES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[xfail]]\ncase = "a"\nreason = "b"\n', "issue is missing"),
        ('[[xfail]]\ncase = "a"\nreason = "b"\nissue = "later"\n', "must be a link"),
        ('[[xfail]]\ncase = "a"\nreason = " "\nissue = "https://x"\n', "reason is missing"),
        ('[[xfail]]\ncase = "a"\nreason = "b"\nissue = "https://x"\nwhen = 1\n', "unknown key 'when'"),
        ("xfail = 3\n", "array of tables"),
        ("xfail = \n", "xfail.toml"),
        ("xfail = " + "[" * 5000, "xfail.toml"),
    ],
)
def test_a_list_of_expected_failures_that_is_wrong(tmp_path, text, words):
    file = tmp_path / "xfail.toml"
    file.write_text(text)
    with pytest.raises(XfailError, match=words):
        read_expected(file)
    assert conform("sim", "--xfail", file).exit_code == 1


def test_an_unsupported_case_is_never_an_expected_failure():
    refused = Result("ops/a", "unsupported", "no")
    assert judge(refused, [Expected("ops/*", "x", "https://x")]) is refused
