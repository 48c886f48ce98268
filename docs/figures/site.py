"""Builds both languages at once: `python -m docs.figures.site [folder]`.

Each is an ordinary `mkdocs build` with its own configuration into its own folder, so the two may
run side by side; they share the cache of drawn figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MKDOCS = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
CONFIGURATIONS = {"en": "mkdocs.yml", "zh": "mkdocs.zh.yml"}


def build(folder: Path, repository: Path = REPOSITORY) -> dict[str, str]:
    """Build into `folder`/en and `folder`/zh; returns what mkdocs said, for each that failed."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    running = {
        lang: subprocess.Popen(
            [*MKDOCS, "--config-file", configuration, "--site-dir", str(folder / lang)],
            cwd=repository,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for lang, configuration in CONFIGURATIONS.items()
    }
    said = {lang: process.communicate()[0] for lang, process in running.items()}
    return {lang: text for lang, text in said.items() if running[lang].returncode}


def main() -> int:
    """Build the site; the exit status is 1 when a language failed."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    began = time.monotonic()
    failures = build(folder)
    for lang, text in failures.items():
        print(f"{CONFIGURATIONS[lang]}:\n{text.strip()}", file=sys.stderr)
    if failures:
        return 1
    print(f"site: {folder / 'index.html'} ({time.monotonic() - began:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
