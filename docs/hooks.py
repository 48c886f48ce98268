"""MkDocs hooks, thin: they hand the site's figures to Markdown and write them when it is built."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from docs.cjk import ChineseLinesExtension  # noqa: E402
from docs.figures.build import Figures, content_key  # noqa: E402
from docs.figures.fence import FigureElement, fence_for  # noqa: E402
from docs.figures.lab_page import to_markdown  # noqa: E402
from docs.figures.markup import ROOT  # noqa: E402
from docs.figures.notebook import BUILDING  # noqa: E402
from docs.figures.values import ValueExtension  # noqa: E402
from docs.mathml import MathExtension  # noqa: E402


def on_config(config: MkDocsConfig) -> None:
    """Give Markdown the figure block and formulas, and the notebooks their cache."""
    lang = config.theme["language"]
    if "SITE_URL" in os.environ:
        config.site_url = f"{os.environ['SITE_URL'].rstrip('/')}/{lang}/"
    traces = Path(os.environ.get("IOL_TRACES", REPOSITORY / "traces"))
    figures = Figures(REPOSITORY, lang, traces)
    config.extra["figures"] = figures
    superfences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    superfences["custom_fences"] = [fence_for(figures)]
    config.markdown_extensions += [FigureElement(), MathExtension(), ValueExtension(figures)]
    config.markdown_extensions.append(ChineseLinesExtension())
    if "mkdocs-jupyter" in config.plugins:
        os.environ[BUILDING] = "1"
        os.environ["PYTHONPATH"] = str(REPOSITORY)
        os.environ["JUPYTER_CONFIG_DIR"] = str(REPOSITORY / "docs" / "jupyter")  # not the user's
        config.plugins["mkdocs-jupyter"].config["cache_dir"] = str(lab_cache(figures))


def lab_cache(figures: Figures) -> Path:
    """Where executed notebooks are kept: they run again when anything that they read changes."""
    code = [REPOSITORY / "docs" / "figures", REPOSITORY / "tracegen" / "trace.py"]
    key = content_key(figures.traces, *code)
    key += "".join(f"-{version(package)}" for package in ("altair", "duckdb", "pyarrow"))
    folder = REPOSITORY / ".cache" / "labs"
    cache = folder / f"{figures.t.lang}-{key}"
    for old in folder.glob(f"{figures.t.lang}-*"):
        if old != cache:
            shutil.rmtree(old, ignore_errors=True)
    return cache


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Section titles in the site's language; pages are named by their first heading."""
    for item in nav.items:
        if isinstance(item, Section):
            item.title = config.extra["sections"].get(item.title, item.title)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Set a notebook like any page; point figures' URLs from this page to the site's root."""
    source = Path(page.file.abs_src_path or "")
    if source.suffix == ".py":
        page.markdown = to_markdown(source, html, config.extra["figures"])
        page.__dict__.pop("title", None)  # mkdocs-jupyter's, with the heading's id in it
        Page.render(page, config, files)
        html = page.content or ""
    return html.replace(ROOT, get_relative_url(".", page.url).rstrip("/") + "/")


def on_post_build(config: MkDocsConfig) -> None:
    """Write payloads, posters, Vega and traces into the built site."""
    site = Path(config.site_dir)
    config.extra["figures"].write(site)
    if site.name == config.theme["language"]:  # a site of its own needs no choice of language
        shutil.copyfile(REPOSITORY / "docs" / "theme" / "languages.htm", site.parent / "index.html")
