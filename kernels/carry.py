"""Fills `.carry/` with what a GPU machine without a network lacks: `make carry`.

    .carry/python/              gguf, unpacked (pure Python)
    .carry/<model file>.0, .1   the default model in two halves

Copy the checkout there with `.carry/` (ignored by git), then `make gpu`. Where one copy may hold
only one half, keep the halves in a folder of their own and name it: `IOL_PARTS=folder make gpu`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tracegen.errors import UserError
from tracegen.model.default import FILE_NAME, default_model_path

CARRY = Path(__file__).parent.parent / ".carry"
PACKAGES = ["gguf==0.19.0"]  # what the recorder needs and a GPU image rarely has


def main() -> int:
    """Fill the folder anew. Returns the exit code."""
    try:
        model = default_model_path()
        shutil.rmtree(CARRY, ignore_errors=True)
        target = ["--quiet", "--no-deps", "--target", str(CARRY / "python")]
        subprocess.run([sys.executable, "-m", "pip", "install", *target, *PACKAGES], check=True)
        whole = model.read_bytes()
        half = len(whole) // 2
        for number, part in enumerate((whole[:half], whole[half:])):
            (CARRY / f"{FILE_NAME}.{number}").write_bytes(part)
    except (UserError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{CARRY}: gguf and both halves of the model; take them along and run `make gpu` there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
