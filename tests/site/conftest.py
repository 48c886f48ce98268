"""The built site for tests of what is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.site.building import built_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built site, with en/ and zh/ in it."""
    base = tmp_path_factory.getbasetemp()
    return built_site(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)
