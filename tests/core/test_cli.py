"""The command line: recording, skipping, stopping, and one clear line for bad input."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.core.tiny_folder import write_tiny_folder
from tracegen import machine
from tracegen.__main__ import main
from tracegen.events import is_measured
from tracegen.session import TECHNIQUES, source_hash, sources_of, technique_names
from tracegen.trace import read_trace

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def quick_probe(monkeypatch):
    """Measure small ceilings: what they are is not the point here."""
    monkeypatch.setattr(machine, "BUFFER_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(machine, "MATRIX_SIZE", {"cpu": 64})


def record(out: Path, model: Path, *more: str) -> int:
    return main(
        ["record", "--out", str(out), "--model", str(model), "--device", "cpu",
         "--only", "kv_cache", *more]
    )  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, tiny_path) -> Path:
    """A folder with one recording of this machine, to copy from."""
    out = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "BUFFER_BYTES", {"cpu": 2**20})
        patch.setattr(machine, "MATRIX_SIZE", {"cpu": 64})
        assert record(out, tiny_path) == 0
    return out


@pytest.fixture
def traces(tmp_path, recorded, quick_probe) -> Path:
    """A copy of the recording."""
    return Path(shutil.copytree(recorded, tmp_path / "traces"))


def failing(capsys, *arguments: str) -> str:
    """Run a command that must fail; returns its one line on standard error."""
    assert main(list(arguments)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def test_list_names_every_technique(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in technique_names())


def test_two_recordings_agree_in_all_but_measured_columns(traces, tmp_path, tiny_path):
    assert record(tmp_path / "again", tiny_path) == 0
    first, second = (
        read_trace(next(out.glob("*/*.parquet"))) for out in (traces, tmp_path / "again")
    )
    assert first.table.num_rows > 100
    measured = [name for name in first.table.column_names if is_measured(name)]
    assert first.table.drop_columns(measured).equals(second.table.drop_columns(measured))
    assert first.meta["fingerprint"] == second.meta["fingerprint"]


def test_metadata_describes_the_recording(traces):
    meta = read_trace(next(traces.glob("*/kv_cache.parquet"))).meta
    assert meta["technique"] == "kv_cache"
    assert meta["machine"]["slug"] == next(traces.iterdir()).name
    assert meta["machine"]["matmul_flops_per_s"]["float32"] > 0
    assert meta["model"]["dtype"] == "float32"
    assert len(meta["model"]["sha256"]) == 64
    assert meta["source"]["text"] == (TECHNIQUES / "kv_cache.py").read_text()
    assert meta["scenarios"]["none_16"]["context"] == 16
    assert meta["command"] == "make traces ONLY=kv_cache PRESET=quick"
    assert {"python", "torch"} <= set(meta["versions"])


def test_what_is_up_to_date_is_skipped(traces, tiny_path, capsys):
    path = next(traces.glob("*/*.parquet"))
    before = path.stat().st_mtime_ns
    assert record(traces, tiny_path) == 0
    assert "up to date" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == before
    assert record(traces, tiny_path, "--seed", "5") == 0
    assert path.stat().st_mtime_ns != before
    assert read_trace(path).meta["seed"] == 5


def test_validate(traces, tmp_path, capsys):
    path = next(traces.glob("*/*.parquet"))
    assert main(["validate", str(path)]) == 0
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(path.read_bytes()[:500])
    capsys.readouterr()
    assert main(["validate", str(path), str(damaged)]) == 2
    printed = capsys.readouterr()
    assert "valid" in printed.out
    assert "1 of 2 trace files are not valid" in printed.err


def test_machine(quick_probe, capsys):
    assert main(["machine", "--device", "cpu"]) == 0
    assert "copy bandwidth" in capsys.readouterr().out


def test_a_technique_whose_package_is_missing_is_skipped_unless_asked_for(monkeypatch, capsys):
    """As on platforms for which Triton has no release."""
    monkeypatch.delitem(sys.modules, "tracegen.techniques.kernels", raising=False)
    monkeypatch.setitem(sys.modules, "kernels.binary", None)
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "kv_cache" in said
    assert "not here    kernels needs kernels.binary, which is not installed here" in said
    assert main(["record", "--only", "kernels"]) == 2
    assert "kernels needs kernels.binary, which is not installed" in capsys.readouterr().err


def test_generate(tiny_path, capsys):
    arguments = ["generate", "hello", "--model", str(tiny_path), "--max-new-tokens", "5"]
    assert main([*arguments, "--temperature", "1", "--seed", "3"]) == 0
    first = capsys.readouterr().out
    assert main([*arguments, "--temperature", "1", "--seed", "3"]) == 0
    assert capsys.readouterr().out == first != "\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="bfloat16 there: ties may fall either way")
def test_generate_says_the_same_with_the_kernel(tiny_path, capsys):
    arguments = ["generate", "hello", "--model", str(tiny_path), "--max-new-tokens", "5"]
    said = []
    for attention in ("sdpa", "triton"):
        assert main([*arguments, "--attention", attention]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != "\n"


def test_the_kernel_is_refused_where_it_cannot_run(tiny_path, capsys, monkeypatch):
    """Compiled kernels, as where there is a GPU, and a model on the CPU."""
    monkeypatch.setattr("kernels.launch.INTERPRETED", False)
    line = failing(
        capsys, "generate", "hi", "--model", str(tiny_path),
        "--device", "cpu", "--attention", "triton",
    )  # fmt: skip
    assert "--attention triton cannot run on cpu here; use --attention sdpa" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["record", "--only", "magic"], "no technique 'magic'; there are: flash_attention, "),
        (["record", "--device", "toaster"], "device 'toaster' cannot be used here"),
        (["record", "--model", "/no/such/model", "--force"], "/no/such/model"),
        (["generate", ""], "the prompt is empty"),
        (["generate", "hi", "--model", "/no/such/model"], "/no/such/model"),
        (["generate", "hi", "--top-p", "2"], "top_p is 2.0"),
        (["validate", "/no/such.parquet"], "/no/such.parquet"),
    ],
)
def test_bad_input(arguments, message, capsys):
    if arguments[0] == "validate":
        assert main(arguments) == 2
        assert message in capsys.readouterr().err
    else:
        assert message in failing(capsys, *arguments)


def test_a_prompt_longer_than_the_context(tmp_path, capsys):
    short = write_tiny_folder(tmp_path / "short", max_positions=16)
    line = failing(capsys, "generate", "a" * 20, "--raw", "--model", str(short))
    assert "exceed the context of 16 tokens" in line


def test_a_corrupt_model_loses_no_trace(traces, tmp_path, capsys):
    path = next(traces.glob("*/*.parquet"))
    before = path.read_bytes()
    corrupt = tmp_path / "corrupt.gguf"
    corrupt.write_bytes(b"GGUF" + b"\xff" * 64)
    capsys.readouterr()
    assert "corrupt.gguf" in failing(
        capsys, "record", "--only", "kv_cache", "--out", str(traces), "--model", str(corrupt)
    )
    assert path.read_bytes() == before


def test_ctrl_c_says_what_was_finished_and_leaves_whole_files(tmp_path, tiny_path):
    """Interrupt while the second technique is being recorded."""
    script = tmp_path / "slow.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it\n"
        "from tracegen import machine, session\n"
        "machine.BUFFER_BYTES, machine.MATRIX_SIZE = {'cpu': 2**20}, {'cpu': 64}\n"
        "inner = session.Session.record\n"
        "def slow(self, name, on_pass):\n"
        "    if name == 'prefill_decode':\n"
        "        print('second', flush=True)\n"
        "        time.sleep(60)\n"
        "    return inner(self, name, on_pass)\n"
        "session.Session.record = slow\n"
        "from tracegen.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    out = tmp_path / "traces"
    arguments = ["record", "--only", "kv_cache,prefill_decode", "--out", str(out)]
    arguments += ["--model", str(tiny_path), "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "second" not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1].startswith("stopped: finished kv_cache;")
    assert [path.name for path in out.glob("*/*")] == ["kv_cache.parquet"]
    read_trace(next(out.glob("*/*.parquet")))


def test_the_fingerprint_follows_imported_sources():
    names = set(sources_of(TECHNIQUES / "prefill_decode.py"))
    assert {
        "tracegen/techniques/prefill_decode.py",
        "tracegen/techniques/kv_cache.py",
        "tracegen/model/decoder.py",
        "tracegen/model/cost.py",
        "tracegen/events.py",
    } <= names
    assert "tracegen/__main__.py" not in names
    assert source_hash(TECHNIQUES / "kv_cache.py") != source_hash(TECHNIQUES / "prefill_decode.py")


def test_committed_traces_are_valid_and_hold_the_code_they_name():
    paths = sorted(ROOT.glob("traces/*/*.parquet"))
    assert paths
    for path in paths:
        trace = read_trace(path)
        assert path.stem == trace.meta["technique"]
        assert path.parent.name == trace.meta["machine"]["slug"]
        assert path.stat().st_size < 500_000
        json.dumps(trace.meta, allow_nan=False)
        assert set(trace.meta["scenarios"]) == set(trace.table["scenario"].to_pylist())
