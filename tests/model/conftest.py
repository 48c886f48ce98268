"""Fixtures of the model tests: threads, random tiny models, the default model and its peer."""

from __future__ import annotations

import os

import pytest
import torch

from tests.model.peer import transformers_twin
from tracegen.errors import UserError
from tracegen.model import Model, load_model


@pytest.fixture(scope="session", autouse=True)
def _threads() -> None:
    """Share the cores between pytest-xdist's workers."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, min(2, (os.cpu_count() or 1) // workers)))


@pytest.fixture(scope="session")
def default_model() -> Model:
    """SmolLM2-135M-Instruct in float32 on the CPU.  Skips only where it cannot be fetched."""
    try:
        return load_model(device="cpu", dtype=torch.float32)
    except UserError as error:
        if "cannot fetch" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="session")
def default_twin(default_model):
    return transformers_twin(default_model)
