"""Checksums of weight files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(paths: Sequence[Path]) -> str:
    """One file's sha256; for several, the sha256 of their `digest  name` lines, sorted by name."""
    if len(paths) == 1:
        return file_sha256(paths[0])
    lines = [f"{file_sha256(path)}  {path.name}\n" for path in sorted(paths, key=lambda p: p.name)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
