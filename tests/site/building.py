"""The real site, built once for all test processes, and what it consists of."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.figures.site import REPOSITORY, build

LANGUAGES = ("en", "zh")


def built_site(base: Path) -> Path:
    """The folder with en/ and zh/: the one that IOL_SITE names, else built below `base`.

    `base` is shared by the workers of one test run; the first one builds, the others wait.
    """
    if "IOL_SITE" in os.environ:
        return Path(os.environ["IOL_SITE"]).resolve()
    site, done = base / "site", base / "site.done"
    with open(base / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            failures = build(site)
            if failures:
                pytest.fail("\n".join(failures.values()), pytrace=False)
            done.touch()
    return site


def sources() -> list[str]:
    """Pages of the English site as paths below docs/en, in Markdown or as notebooks."""
    folder = REPOSITORY / "docs" / "en"
    return sorted(
        str(path.relative_to(folder))
        for pattern in ("**/*.md", "labs/*.py")
        for path in folder.glob(pattern)
    )


def page_url(source: str) -> str:
    """Where a page is served, below its language's folder."""
    stem = source.rsplit(".", 1)[0]
    return "" if stem == "index" else f"{stem.removesuffix('/index')}/"


def urls() -> list[str]:
    """All pages of both sites: `en/techniques/kv-cache/`."""
    return [f"{lang}/{page_url(source)}" for lang in LANGUAGES for source in sources()]


def html_files(site: Path) -> Iterator[Path]:
    """All pages of a built site but the ones for errors."""
    for lang in LANGUAGES:
        yield from (f for f in sorted((site / lang).rglob("*.html")) if f.name != "404.html")
