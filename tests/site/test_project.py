"""Builds that must fail do fail, and leave the other language alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.figures.site import REPOSITORY
from tests.site.toy_site import write_toy_trace


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of this project with one page and one lab."""
    for name in ("mkdocs.yml", "mkdocs.zh.yml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    shutil.copytree(
        REPOSITORY / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("en", "zh")
    )
    shutil.copytree(REPOSITORY / "tracegen", tmp_path / "tracegen")
    shutil.copy(REPOSITORY / "tests/site/figures/toy.py", tmp_path / "docs/figures/toy.py")
    for lang in ("en", "zh"):
        (tmp_path / "docs" / lang / "labs").mkdir(parents=True)
        (tmp_path / "docs" / lang / "index.md").write_text("# Home { #home }\n\nText.\n")
        write_lab(tmp_path, lang, "1 + 1")
    config = (tmp_path / "mkdocs.yml").read_text()
    start, end = config.index("nav:"), config.index("theme:")
    nav = "nav: [index.md, labs/lab.py]\n\n"
    (tmp_path / "mkdocs.yml").write_text(config[:start] + nav + config[end:])
    write_toy_trace(tmp_path / "traces", "m1")
    return tmp_path


def write_lab(project: Path, lang: str, code: str) -> None:
    text = f"# %% [markdown]\n# # Lab {{ #lab }}\n\n# %%\n{code}\n"
    (project / "docs" / lang / "labs" / "lab.py").write_text(text)


def mkdocs(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`mkdocs build --strict`, as anyone would call it."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", *arguments],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "HOME": str(project), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_one_language_leaves_the_other_alone(project: Path) -> None:
    assert mkdocs(project, "-f", "mkdocs.zh.yml").returncode == 0
    built = mkdocs(project)
    assert built.returncode == 0, built.stderr
    for path in ("en/index.html", "zh/index.html", "index.html", "en/labs/lab/lab.py"):
        assert (project / "site" / path).is_file(), path
    page = (project / "site/en/labs/lab/index.html").read_text()
    assert '<h1 id="lab">Lab' in page
    assert ">2<" in page, "the cell's output"


def test_a_failing_cell_fails_the_build(project: Path) -> None:
    write_lab(project, "en", "1 / 0")
    built = mkdocs(project)
    assert built.returncode != 0
    assert "ZeroDivisionError" in built.stderr


@pytest.mark.parametrize("figure", ["toy.nothing", "absent.plain"])
def test_an_unknown_figure_fails_the_build_in_one_line(project: Path, figure: str) -> None:
    (project / "docs/en/index.md").write_text(f"# Home {{ #home }}\n\n```figure\n{figure}\n```\n")
    built = mkdocs(project)
    assert built.returncode != 0
    assert f"no figure {figure}" in built.stderr
    assert "Traceback" not in built.stderr


def test_an_executed_notebook_runs_again_when_a_trace_changes(project: Path) -> None:
    write_lab(
        project,
        "en",
        'import pathlib; print(len(list(pathlib.Path("traces").glob("*"))), "machine")',
    )
    assert mkdocs(project).returncode == 0
    page = project / "site/en/labs/lab/index.html"
    assert "1 machine" in page.read_text()
    write_toy_trace(project / "traces", "m2")
    assert mkdocs(project).returncode == 0
    assert "2 machine" in page.read_text()
