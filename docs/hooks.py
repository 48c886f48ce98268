"""MkDocs hooks, thin: they hand the site's figures to Markdown and write them when it is built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from docs.figures.build import Figures  # noqa: E402
from docs.figures.fence import fence_for  # noqa: E402
from docs.figures.markup import ROOT  # noqa: E402
from docs.mathml import MathExtension  # noqa: E402


def on_config(config: MkDocsConfig) -> None:
    """Give Markdown the figure block and formulas."""
    traces = Path(os.environ.get("IOL_TRACES", REPOSITORY / "traces"))
    figures = Figures(REPOSITORY, config.theme["language"], traces)
    config.extra["figures"] = figures
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [
        fence_for(figures)
    ]
    config.markdown_extensions.append(MathExtension())


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the figures' URLs from this page to the site's root."""
    return html.replace(ROOT, get_relative_url(".", page.url).rstrip("/") + "/")


def on_post_build(config: MkDocsConfig) -> None:
    """Write payloads, posters, Vega and traces into the built site."""
    config.extra["figures"].write(Path(config.site_dir))
