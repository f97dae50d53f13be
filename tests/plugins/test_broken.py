"""One broken plugin per status code, alone and named, and all of them beside two good ones."""

from __future__ import annotations

import logging
import sys
import traceback

import pytest
from fake_dists import good, install, log_of, manifest

from jackfield import errors

HOOK = "from jackfield.backend import hookimpl\n"
OTHER = "class Other:\n    pass\n\n\n"


def window(low, high):
    return {"contract": {"min": low, "max": high}}


# name: (source, manifest, stage, state, code, error when named, what the text says)
BROKEN = {
    "invalid": (
        good("invalid"),
        manifest("invalid", "gpus"),
        "manifest",
        "refused",
        "manifest-invalid",
        "ManifestError",
        'kinds[0].class is "gpus"',
    ),
    "nojson": (good("nojson"), "{", "manifest", "refused", "manifest-invalid", "ManifestError", "not JSON"),
    "othername": (
        good("othername"),
        manifest("zzz"),
        "manifest",
        "refused",
        "manifest-invalid",
        "ManifestError",
        "no entry 'othername'",
    ),
    "later": (
        good("later"),
        {"schema": "jackfield.backend/2", "backends": []},
        "manifest",
        "refused",
        "schema-unknown",
        "ManifestError",
        "known: /1",
    ),
    "mars": (
        good("mars"),
        manifest("mars", platforms=["mars/z80"]),
        "manifest",
        "absent",
        "platform",
        "Unavailable",
        "built for mars/z80",
    ),
    "toonew": (
        good("toonew"),
        manifest("toonew", **window("0.4", "0.6")),
        "contract",
        "refused",
        "too-new",
        "ContractError",
        "toonew speaks 0.4 to 0.6, jackfield 0.1",
    ),
    "tooold": (
        good("tooold"),
        manifest("tooold", **window("0.0", "0.0")),
        "contract",
        "refused",
        "too-old",
        "ContractError",
        "tooold speaks 0.0, jackfield 0.1",
    ),
    "raises": (
        "raise ImportError('libacme.so.3: cannot open')",
        manifest("raises", needs=[{"lib": "libacme.so.3", "from": "the Acme driver"}]),
        "import",
        "failed",
        "import-error",
        "ImportFailed",
        "needs libacme.so.3, part of the Acme driver",
    ),
    "gone": (
        None,
        manifest("gone"),
        "import",
        "failed",
        "import-error",
        "ImportFailed",
        "No module named 'jackfield_gone'",
    ),
    "syntax": ("def (", manifest("syntax"), "import", "failed", "import-error", "ImportFailed", "SyntaxError"),
    "exits": (
        "import sys\nsys.exit(3)",
        manifest("exits"),
        "import",
        "failed",
        "import-error",
        "ImportFailed",
        "SystemExit: 3",
    ),
    "base": (
        "class Odd(BaseException):\n    pass\n\n\nraise Odd('x')",
        manifest("base"),
        "import",
        "failed",
        "import-error",
        "ImportFailed",
        "Odd: x",
    ),
    "misspelt": (
        HOOK + "@hookimpl\ndef jackfield_bakcend():\n    pass",
        manifest("misspelt"),
        "hook",
        "refused",
        "hook-unknown",
        "HookError",
        "did you mean jackfield_backend?",
    ),
    "half": (
        good("half") + "\n\n@hookimpl\ndef jackfield_wrong():\n    pass",
        manifest("half"),
        "hook",
        "refused",
        "hook-unknown",
        "HookError",
        "unknown hook jackfield_wrong; known hooks: jackfield_backend, jackfield_diagnose",
    ),
    "signature": (
        HOOK + "@hookimpl\ndef jackfield_diagnose(wrong):\n    pass",
        manifest("signature"),
        "hook",
        "refused",
        "hook-signature",
        "HookError",
        "arguments of jackfield_diagnose: backend, deep",
    ),
    "nohook": ("", manifest("nohook"), "hook", "failed", "no-backend", "HookError", "gave None"),
    "hookraises": (
        HOOK + "@hookimpl\ndef jackfield_backend():\n    raise SystemExit(0)",
        manifest("hookraises"),
        "hook",
        "failed",
        "no-backend",
        "HookError",
        "raised SystemExit",
    ),
    "gavetext": (
        HOOK + "@hookimpl\ndef jackfield_backend():\n    return 'x'",
        manifest("gavetext"),
        "hook",
        "failed",
        "no-backend",
        "HookError",
        "gave a str",
    ),
    "liar": (
        good("liar").replace("(0, 1)", "(0, 2)"),
        manifest("liar"),
        "contract",
        "refused",
        "disagrees",
        "ContractError",
        "manifest says api 0.1, object says 0.2",
    ),
    "oddapi": (
        good("oddapi").replace("(0, 1)", "'0.1'"),
        manifest("oddapi"),
        "contract",
        "refused",
        "disagrees",
        "ContractError",
        "api is '0.1'",
    ),
    "renamed": (
        good("renamed").replace('"renamed", (0', '"other", (0'),
        manifest("renamed"),
        "contract",
        "refused",
        "disagrees",
        "ContractError",
        "the object's name is 'other'",
    ),
    "kinds": (
        good("kinds", ["else:0"]),
        manifest("kinds"),
        "contract",
        "refused",
        "disagrees",
        "ContractError",
        "called 'else:0'; its kinds are kinds",
    ),
    "badname": (
        good("badname", ["badname:00"]),
        manifest("badname"),
        "contract",
        "refused",
        "disagrees",
        "ContractError",
        "called 'badname:00'",
    ),
    "twins": (
        good("twins", ["twins:0", "twins:0"]),
        manifest("twins"),
        "contract",
        "refused",
        "disagrees",
        "ContractError",
        "two devices are called twins:0",
    ),
    "nodriver": (
        good("nodriver").replace("return [", "raise Unavailable('no driver: libx')\n        return ["),
        manifest("nodriver"),
        "open",
        "absent",
        "no-device",
        "Unavailable",
        "no driver: libx",
    ),
    "empty": (good("empty", "[]"), manifest("empty"), "open", "absent", "no-device", "Unavailable", "gave none"),
    "fails": (
        good("fails").replace("return [", "raise RuntimeError('boom')\n        return ["),
        manifest("fails"),
        "open",
        "failed",
        "open-error",
        "DeviceError",
        "RuntimeError: boom",
    ),
    "notdevices": (
        good("notdevices").replace("Toy(name) for", "object() for"),
        manifest("notdevices"),
        "contract",
        "refused",
        "disagrees",
        "ContractError",
        "holds a object",
    ),
    "notkernels": (
        good("notkernels").replace('return {"add"', 'return ["add"] or {"add"'),
        manifest("notkernels"),
        "contract",
        "refused",
        "disagrees",
        "ContractError",
        "kernels() must give",
    ),
    "alignment": (
        good("alignment").replace("class Toy(Device):", "class Toy(Device):\n    alignment = 48"),
        manifest("alignment"),
        "contract",
        "refused",
        "disagrees",
        "ContractError",
        "alignment is 48",
    ),
}
STATIC = {"invalid", "nojson", "othername", "later", "mars", "toonew", "tooold"}


def status_of(registry, name):
    (status,) = (s for s in registry.status() if s.name == name)
    return status


@pytest.mark.parametrize("name", BROKEN)
def test_named(name, folder, registry):
    source, document, stage, state, code, error, says = BROKEN[name]
    install(folder, name, source, document)
    with pytest.raises(getattr(errors, error)) as caught:
        registry.select(name)
    status = status_of(registry, name)
    assert (status.stage, status.state, status.code) == (stage, state, code)
    assert says in str(caught.value)
    assert caught.value.status == status
    assert "\n" not in (status.error or "") + (status.hint or "")
    assert status.where == ("static" if name in STATIC else "here")
    if name in STATIC:
        assert log_of(folder, name) == []
    # asking again gives the same answer and runs nothing again
    before = log_of(folder, name)
    with pytest.raises(getattr(errors, error)):
        registry.select(name)
    assert log_of(folder, name) == before


@pytest.mark.parametrize(
    ("name", "cause"),
    [("raises", ImportError), ("exits", SystemExit), ("hookraises", SystemExit), ("fails", RuntimeError)],
)
def test_the_plugins_own_exception_is_the_cause(name, cause, folder, registry):
    install(folder, name, *BROKEN[name][:2])
    with pytest.raises(errors.Error) as caught:
        registry.select(name)
    assert isinstance(caught.value.__cause__, cause)
    assert f"jackfield_{name}.py" in status_of(registry, name).traceback
    assert status_of(registry, name).traceback.strip() in "".join(traceback.format_exception(caught.value.__cause__))


def test_all_beside_two_good_ones(folder, registry, caplog, capfd):
    for name, (source, document, *_) in BROKEN.items():
        install(folder, name, source, document)
    install(folder, "first", good("first"), manifest("first", "gpu"))
    install(folder, "second", good("second"), manifest("second", "cpu"))
    with caplog.at_level(logging.INFO, "jackfield"):
        chosen = registry.select(None)
    names = [d.name for d in chosen.devices]
    assert [n for n in names if n in ("first:0", "second:0", "reference:0")] == ["first:0", "second:0", "reference:0"]
    assert not chosen.named
    statuses = {s.name: s for s in registry.status() if s.name in BROKEN}
    assert {n: (s.stage, s.state, s.code) for n, s in statuses.items()} == {n: b[2:5] for n, b in BROKEN.items()}
    listed = [s.name for s in registry.status() if s.dist.startswith("jackfield-")]
    assert listed == sorted(listed)
    told = [r for r in caplog.records if "backend not used" in r.message]
    for name, (*_, state, code, _, _) in BROKEN.items():
        levels = [r.levelno for r in told if r.message.split()[3].partition(":")[0] == name]
        assert levels == [logging.INFO if state in ("absent", "off") else logging.WARNING], name
    caplog.clear()
    registry.select(None)
    assert not caplog.records
    for good_one in ("first", "second"):
        assert log_of(folder, good_one) == ["import", "hook", "devices"]
        assert registry.select(good_one).devices[0].kernels.keys() == {"add"}
    assert capfd.readouterr() == ("", "")


def test_a_keyboard_interrupt_passes(folder, registry):
    install(folder, "stopme", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.select("stopme")


def test_prints_are_kept_from_stdout_and_told(folder, registry, capfd):
    install(
        folder, "noisy", "print('hello from noisy')\n" + good("noisy").replace('count("devices")', "print('again')")
    )
    assert registry.select("noisy").devices[0].name == "noisy:0"
    assert capfd.readouterr().out == ""
    status = status_of(registry, "noisy")
    assert status.state == "ok"
    assert any("'hello from noisy'" in n for n in status.notes)
    assert any("'again'" in n for n in status.notes)


def test_nothing_runs_before_it_is_asked_for_and_nothing_twice(folder, registry):
    install(folder, "calm", good("calm"))
    install(folder, "idle", good("idle"))
    assert status_of(registry, "calm").state == "pending"
    assert log_of(folder, "calm") == []
    for _ in range(10):
        registry.select("calm")
    assert log_of(folder, "calm") == ["import", "hook", "devices"]
    assert status_of(registry, "calm").state == "ok"
    assert log_of(folder, "idle") == []
    assert "jackfield_idle" not in sys.modules


def test_a_plugin_without_manifest_loads_only_when_named(folder, registry):
    install(folder, "bare", good("bare"), None)
    assert status_of(registry, "bare").code == "manifest-missing"
    assert "bare:0" not in [d.name for d in registry.select("auto").devices]
    assert log_of(folder, "bare") == []
    assert registry.select("bare").devices[0].name == "bare:0"
    assert status_of(registry, "bare").state == "ok"


def test_an_unknown_hook_of_a_later_contract_is_a_note(folder, registry):
    source = good("ahead").replace("(0, 1)", "(0, 2)") + "\n\n@hookimpl\ndef jackfield_later():\n    pass\n"
    install(folder, "ahead", source, manifest("ahead", **window("0.1", "0.2")))
    opened = registry.select("ahead").devices[0]
    assert opened.backend.spoken == (0, 1)
    assert any("jackfield_later" in n for n in status_of(registry, "ahead").notes)


def test_a_failed_read_is_not_remembered(folder, registry, monkeypatch):
    from importlib.metadata import PathDistribution

    install(folder, "flaky", good("flaky"))
    real, failures = PathDistribution.read_text, []

    def read_text(self, filename):
        if filename == "backend.json" and "flaky" in str(self._path) and not failures:
            failures.append(filename)
            raise OSError("disk asleep")
        return real(self, filename)

    monkeypatch.setattr(PathDistribution, "read_text", read_text)
    assert status_of(registry, "flaky").code == "unreadable"
    assert status_of(registry, "flaky").state == "pending"
    assert failures == ["backend.json"]


def test_hatchlings_place_of_the_manifest(folder, registry):
    install(folder, "hatched", good("hatched"), manifest_file="extra_metadata/backend.json")
    assert registry.select("hatched").devices[0].name == "hatched:0"


def test_install_and_remove_are_seen(folder, registry):
    assert "late" not in [s.name for s in registry.status()]
    info = install(folder, "late", good("late"))
    assert status_of(registry, "late").state == "pending"
    info.rename(folder / "gone")
    assert "late" not in [s.name for s in registry.status()]


def test_one_refresh_looks_again(folder, registry):
    install(folder, "again", good("again"))
    registry.select("again")
    registry.refresh()
    assert status_of(registry, "again").state == "pending"
    registry.select("again")
    assert log_of(folder, "again").count("devices") == 2


@pytest.mark.parametrize(
    ("device_class", "level"), [("gpu", logging.INFO), ("npu", logging.INFO), ("cpu", logging.WARNING)]
)
def test_a_host_without_its_cpu_is_told_aloud(folder, registry, caplog, device_class, level):
    source = good("picky").replace("return [", "raise Unavailable('PICKY=7: must be 1 or 2')\n        return [")
    install(folder, "picky", source, manifest("picky", device_class))
    with caplog.at_level(logging.INFO, "jackfield"):
        registry.select(None)
    told = [(r.levelno, r.message) for r in caplog.records if "picky" in r.message]
    assert told == [(level, "backend not used: picky: PICKY=7: must be 1 or 2")]
