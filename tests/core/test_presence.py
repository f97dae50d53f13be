"""What is required is told by its very word."""

from __future__ import annotations

import presence
import pytest


@pytest.mark.parametrize(
    ("text", "words"), [("", ()), ("cpu", ("cpu",)), ("cpu,model", ("cpu", "model")), ("cpu:0 models,", ())]
)
def test_words_are_compared_whole(monkeypatch, text, words):
    monkeypatch.setenv("JACKFIELD_REQUIRE", text)
    assert tuple(w for w in ("cpu", "model", "vocab", "qemu") if presence.is_required(w)) == words


def test_absent_skips_or_fails(monkeypatch):
    monkeypatch.delenv("JACKFIELD_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="none here"):
        presence.absent("model", "none here")
    monkeypatch.setenv("JACKFIELD_REQUIRE", "vocab, model")
    with pytest.raises(pytest.fail.Exception, match="model is required: none here"):
        presence.absent("model", "none here")
