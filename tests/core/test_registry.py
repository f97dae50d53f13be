"""Selections, fallbacks, registered backends and listings, with backends that need no wheel."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading

import pytest

from jackfield import registry as module
from jackfield.backend import Backend, Device, Kernel, Memory, Target, Unavailable
from jackfield.discovery import Found
from jackfield.errors import ContractError, DeviceError, DeviceNameError, ForkedError, HookError
from jackfield.errors import Unavailable as UnavailableError
from jackfield.loading import Plugin
from jackfield.registry import Registry
from jackfield.stages import Stop, error_of

F32 = frozenset({"f32"})


class Toy(Device):
    memory = Memory(total=1 << 30, free=1 << 20)

    def __init__(self, name):
        self.name = name
        self.target = Target(kind="toy", arch="t1", features=frozenset({"f16", "bf16"}))

    def alloc(self, nbytes, usage):
        return bytearray(nbytes)

    def free(self, buffer):
        """The collector does it."""

    def write(self, buffer, offset, data):
        buffer[offset : offset + data.nbytes] = data

    def read(self, buffer, offset, out):
        out[:] = memoryview(buffer)[offset : offset + out.nbytes]

    def compile(self, run, scratch):
        raise AssertionError("these toys are chosen, never compiled")


def backend(kind, names, error=None):
    class Toys(Backend):
        name, api = kind, (0, 1)
        asked = 0

        def devices(self):
            type(self).asked += 1
            if error:
                raise error
            return [Toy(n) for n in names]

        def kernels(self):
            return {"add": Kernel({"a": F32, "b": F32}, F32)}

    return Toys


@pytest.fixture
def registry(monkeypatch):
    for name in ("JACKFIELD_DEVICE", "JACKFIELD_SIM"):
        monkeypatch.delenv(name, raising=False)
    # What happens to be installed has no say here.
    monkeypatch.setattr(module, "scan", lambda wishes, *, anew=False: ([], True))
    return Registry()


def add(registry, kind, names, device_class="accel", error=None):
    return registry.register(backend(kind, names, error), device_class, "here.py")


def names(selection):
    return [d.name for d in selection.devices]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("toy", ["toy:0"]),
        ("toy:0", ["toy:0"]),
        ("toy:1", ["toy:1"]),
        ("toy:*", ["toy:0", "toy:1"]),
        ("toy:1+toy", ["toy:1", "toy:0"]),
        ("toy:0:0", ["toy:0"]),
        ("cut", ["cut:0:0", "cut:0:1"]),
        ("cut:0", ["cut:0:0", "cut:0:1"]),
        ("cut:0:1", ["cut:0:1"]),
        ("cut:0:0+cut:0:1", ["cut:0:0", "cut:0:1"]),
        ("toy+cut", ["toy:0", "cut:0:0", "cut:0:1"]),
        ("cut:7, toy", ["toy:0"]),
        ("nix, toy:1", ["toy:1"]),
        ("nix+toy, cut:0:1, toy", ["cut:0:1"]),
        ("reference", ["reference:0"]),
        ("reference:0", ["reference:0"]),
        ("sim", ["sim:0"]),
        ("sim+toy+reference", ["sim:0", "toy:0", "reference:0"]),
        ("toy:emu", ["toy:emu"]),
    ],
)
def test_selections(registry, text, expected):
    add(registry, "toy", ["toy:1", "toy:emu", "toy:0"])
    add(registry, "cut", ["cut:0:1", "cut:0:0"])
    chosen = registry.select(text)
    assert names(chosen) == expected
    assert chosen.named
    assert names(registry.select(chosen.text)) == expected
    for opened in chosen.devices:
        assert opened.device in opened.backend.devices() or opened.backend.name in ("toy", "cut")
        assert opened.kernels.keys() == opened.backend.kernels().keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("toy:7", "2 devices of kind toy: toy:0 (t1, 1.0GiB), toy:1 (t1, 1.0GiB)"),
        ("toy:0:1", "2 devices of kind toy"),
        ("toy:fast", "variants of toy: emu"),
        ("toj", "near: toy; installed: reference, sim, toy"),
        ("toy0", "did you mean toy:0?"),
        ("gpu", "no installed backend has a device of class gpu"),
        ("cpu", "no backend for cpu is installed; `pip install 'jackfield[cpu]'` brings it"),
        ("sim:*", "answer to their exact name"),
        ("sim:1", "1 device of kind sim: sim:0"),
        ("toy+toy:0", "column 5: toy:0 stands twice in one set"),
        ("toy:1+toy:*", "toy:1 stands twice"),
        ("toj, toy:7", "no set can be had"),
    ],
)
def test_names_of_nothing(registry, text, says):
    add(registry, "toy", ["toy:1", "toy:emu", "toy:0"])
    with pytest.raises(DeviceNameError) as caught:
        registry.select(text)
    assert says in str(caught.value)
    assert repr(text) in str(caught.value)


def test_the_variable_and_the_default(registry, monkeypatch):
    add(registry, "toy", ["toy:0"])
    add(registry, "host", ["host:0"], "cpu")
    assert names(registry.select(None)) == ["toy:0", "host:0", "reference:0"]
    assert not registry.select(None).named
    assert registry.select(None).text == "auto"
    monkeypatch.setenv("JACKFIELD_DEVICE", "host")
    assert names(registry.select(None)) == ["host:0"]
    assert names(registry.select("toy")) == ["toy:0"]
    assert registry.select(None).named


def test_auto_takes_classes_in_their_order_and_no_simulated_device(registry):
    for kind, device_class in [("d", "dsp"), ("n", "npu"), ("a", "accel"), ("c", "cpu"), ("g", "gpu")]:
        add(registry, kind, [f"{kind}:0", f"{kind}:emu"], device_class)
    assert names(registry.select("auto")) == ["g:0", "n:0", "d:0", "a:0", "c:0", "reference:0"]
    assert [d.name for d in registry.fallbacks()] == ["c:0", "reference:0"]
    assert names(registry.select("nix, auto"))[0] == "g:0"


def test_with_simulated_devices_only_auto_ends_at_the_reference(registry):
    add(registry, "cuda", ["cuda:emu"], "gpu")
    add(registry, "host", ["host:emu"], "cpu")
    assert names(registry.select("auto")) == ["reference:0"]
    assert [d.name for d in registry.fallbacks()] == ["reference:0"]
    with pytest.raises(DeviceNameError):
        registry.select("cuda")
    with pytest.raises(DeviceNameError):
        registry.select("cuda:*")


def test_unavailable_named_and_not(registry, caplog):
    add(registry, "toy", ["toy:0"], error=Unavailable("no toy driver"))
    add(registry, "bad", ["bad:0"], error=ValueError("boom"))
    with caplog.at_level(logging.INFO, "jackfield"):
        assert names(registry.select("auto")) == ["reference:0"]
    told = [(r.levelno, r.getMessage()) for r in caplog.records]
    assert [level for level, text in told if "no toy driver" in text] == [logging.INFO]
    assert [level for level, text in told if "boom" in text or "is slow" in text] == [logging.WARNING] * 2
    with pytest.raises(UnavailableError, match="toy: no toy driver") as caught:
        registry.select("toy")
    assert caught.value.status.code == "no-device"
    with pytest.raises(DeviceError, match="boom") as failed:
        registry.select("bad")
    assert isinstance(failed.value.__cause__, ValueError)
    assert failed.value.status.code == "open-error"
    caplog.clear()
    assert names(registry.select("toy, reference")) == ["reference:0"]
    assert "passed over in 'toy, reference': toy: no toy driver" in caplog.text
    with pytest.raises(UnavailableError, match="no set can be had"):
        registry.select("toy, nix")


def test_registering(registry):
    made = add(registry, "toy", ["toy:0"])
    (status,) = (s for s in registry.status() if s.name == "toy")
    assert (status.dist, status.state, status.notes) == ("<registered>", "pending", ("registered by here.py",))
    assert registry.open_backend("toy") is made
    assert made.spoken == (0, 1)
    (status,) = (s for s in registry.status() if s.name == "toy")
    assert (status.stage, status.state, status.error) == ("open", "ok", None)
    with pytest.raises(HookError, match="there already"):
        add(registry, "toy", ["toy:0"])
    with pytest.raises(HookError, match="there already"):
        add(registry, "reference", [])
    with pytest.raises(HookError, match="takes a Backend, not a int"):
        registry.register(3, "accel", "here.py")
    with pytest.raises(DeviceError, match="device_class is 'gpus'"):
        registry.register(backend("x", []), "gpus", "here.py")
    registry.unregister("toy")
    with pytest.raises(DeviceNameError):
        registry.select("toy")
    with pytest.raises(DeviceNameError, match="near: "):
        registry.open_backend("referenc")


def test_the_public_function_names_the_caller():
    made = module.register_backend(backend("mine", ["mine:0"]))
    try:
        (status,) = (s for s in module.status() if s.name == "mine")
        assert status.notes == (f"registered by {__file__}",)
        assert module.select("mine").devices[0].backend is made
    finally:
        module.unregister_backend("mine")


def test_a_registered_backend_of_another_contract(registry):
    toys = backend("toy", ["toy:0"])
    toys.api = (7, 0)
    registry.register(toys, "accel", "here.py")
    with pytest.raises(ContractError, match=r"toy speaks 7\.0, jackfield 0\.1"):
        registry.select("toy")


def test_opened_once_and_again_after_refresh(registry):
    toys = type(add(registry, "toy", ["toy:0"]))
    for _ in range(5):
        registry.select("toy")
        registry.devices()
    assert toys.asked == 1
    registry.refresh()
    registry.select("toy")
    assert toys.asked == 2


def test_opened_once_by_many_threads(registry):
    toys = type(add(registry, "toy", ["toy:0"]))
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(registry.select("toy").devices[0].device)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, seen))) == 1
    assert toys.asked == 1


def test_listing(registry):
    add(registry, "toy", ["toy:0"])
    toy, reference, sim = registry.devices()
    assert (toy.name, toy.kind, toy.device_class, toy.backend, toy.arch) == ("toy:0", "toy", "accel", "toy", "t1")
    assert (toy.memory.total, toy.flags, toy.simulated, toy.state) == (1 << 30, ("bf16", "f16"), False, "ok")
    assert (reference.name, reference.simulated) == ("reference:0", False)
    assert (sim.name, sim.simulated) == ("sim:0", True)


@pytest.mark.parametrize("text", ["toy: TOY_QUEUES is 0", "toy is not plugged in", "no card", "toys: none"])
def test_the_name_is_said_once(text):
    found = Found("toy", "jackfield-toy", "1", "", "")
    status = Stop("open", "absent", "no-device", text).on(Plugin(found).status)
    says = str(error_of(status))
    assert says == (text if text.startswith(("toy:", "toy ")) else f"toy: {text}")


def test_status_as_text(registry):
    add(registry, "toy", ["toy:0"], error=Unavailable("no\ndriver"))
    with pytest.raises(UnavailableError):
        registry.select("toy")
    (text,) = (str(s) for s in registry.status() if s.name == "toy")
    assert text == "toy (<registered>): absent at open [no-device]: no driver"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_gets_the_error_and_its_own_reference(registry):
    add(registry, "toy", ["toy:0"])
    registry.select("toy+reference+sim")
    gc.collect()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs dies, and the test fails
        code = 1
        try:
            registry.select("reference+sim").devices[1].device.synchronize()
            registry.select("toy")
        except ForkedError as e:
            code = 0 if "start workers by spawn" in str(e) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_backend_that_cannot_be_opened_again_in_a_child_says_so_in_its_own_words(registry):
    """Who names it gets the error that a forked child gets of every device; nobody else is held up."""
    text = "toy: process 7 opened the driver, this is its child"
    add(registry, "toy", ["toy:0"], error=ForkedError(text))
    with pytest.raises(ForkedError, match=text) as caught:
        registry.select("toy")
    assert isinstance(caught.value.__cause__, ForkedError)
    assert (caught.value.status.state, caught.value.status.code) == ("failed", "open-error")
    assert names(registry.select("auto"))[-1] == "reference:0"
