"""The manifest that spec texts and docs show: every field, each as it should be."""

from __future__ import annotations

__all__ = ["ACME", "GOOD"]

ACME = {
    "name": "acme",
    "summary": "Acme A1 and A2 accelerators",
    "vendor": "Acme Inc.",
    "issues": "https://example.com/acme/issues",
    "contract": {"min": "0.1", "max": "0.1"},
    "kinds": [{"kind": "acme", "class": "npu"}, {"kind": "acme", "variant": "emu", "simulated": True}],
    "platforms": ["linux/x86_64", "linux/aarch64"],
    "needs": [{"lib": "libacme.so.3", "from": "the Acme driver 3.1 or newer"}],
    "hardware": [{"pci": "1d9b:*"}],
    "priority": 50,
    "probe": {"depth": "devices", "timeout_s": 20, "watch": ["/sys/module/acme/version"]},
    "env": {"JACKFIELD_ACME_QUEUES": "number of hardware queues, default 2"},
    "claims": "claims.txt",
}
GOOD = {"schema": "jackfield.backend/1", "backends": [ACME]}
