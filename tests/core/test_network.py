"""The watch of conftest.py: what it would see, and that nothing of the core is seen."""

from __future__ import annotations

import ast
import socket
from pathlib import Path

import pytest

SOURCES = [Path(__file__).parents[2] / part / "src" for part in ("core", "conformance")]
NETWORK = {
    "socket",
    "socketserver",
    "http",
    "urllib.request",
    "ssl",
    "ftplib",
    "smtplib",
    "xmlrpc",
    "requests",
    "httpx",
}


def bind():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))


@pytest.mark.parametrize(
    "use",
    [
        lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
        lambda: socket.getaddrinfo("localhost", 9),
        bind,
    ],
)
def test_a_socket_would_be_seen(use, no_network):
    with pytest.raises(ConnectionRefusedError, match="the core opens no socket"):
        use()
    assert len(no_network) == 1
    no_network.clear()


def test_no_module_of_the_core_or_the_kit_knows_how():
    for path in (path for folder in SOURCES for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                assert not {name, name.partition(".")[0]} & NETWORK, f"{path.name}:{node.lineno} imports {name}"
