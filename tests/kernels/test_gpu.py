"""`make gpu`: limits, what travels with it, what it prints; with commands that end at once."""

from __future__ import annotations

import sys

import pytest
import torch

from kernels import gpu
from tracegen.model.default import FILE_NAME


def test_the_limits_stay_below_eight_minutes(tmp_path):
    found = gpu.phases(tmp_path)
    assert [phase.name for phase in found] == ["tests", "bench", "record"]
    assert sum(phase.limit_s for phase in found) < 480


def test_a_phase_that_fails_or_hangs_is_told_apart_and_leaves_its_output(tmp_path):
    def run(code: str, limit: int = 20):
        return gpu.run(gpu.Phase("p", [sys.executable, "-c", code], limit), tmp_path)[0]

    assert run("print('fine')") == "ok"
    assert (tmp_path / "p.log").read_text() == "fine\n"
    assert run("raise SystemExit(3)") == "FAILED (exit 3)"
    assert run("import time; print('on', flush=True); time.sleep(60)", 2) == "STOPPED after 2 s"
    assert (tmp_path / "p.log").read_text() == "on\n"


def test_the_model_is_joined_only_when_both_halves_are_there(tmp_path, monkeypatch):
    monkeypatch.setenv("IOL_CACHE", str(tmp_path / "cache"))
    (tmp_path / f"{FILE_NAME}.0").write_bytes(b"first ")
    gpu.join_model(tmp_path)
    whole = tmp_path / "cache" / FILE_NAME
    assert not whole.exists()
    (tmp_path / f"{FILE_NAME}.1").write_bytes(b"second")
    gpu.join_model(tmp_path)
    assert whole.read_bytes() == b"first second"
    (tmp_path / f"{FILE_NAME}.1").write_bytes(b"other")
    gpu.join_model(tmp_path)
    assert whole.read_bytes() == b"first second"  # one that is there is left alone


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_to_do(capsys, tmp_path):
    assert gpu.main(["--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: no GPU found; without one use `make test`")
    assert not (tmp_path / "out").exists()
