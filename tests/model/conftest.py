"""Fixtures of the model tests: threads, random tiny models, the default model and its peer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.model.peer import transformers_twin
from tracegen.errors import UserError
from tracegen.model import Model, load_model


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """One thread: on a busy machine two of them mostly wait for each other at each operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
