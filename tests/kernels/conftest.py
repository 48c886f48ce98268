"""Kernels run under Triton's interpreter on a CPU, natively on a GPU; each test works on either."""

from __future__ import annotations

import pytest
import torch

import kernels  # noqa: F401  (chooses the path, before any kernel is decorated)
from kernels.launch import INTERPRETED


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run in this process."""
    return torch.device("cpu" if INTERPRETED else "cuda")


def pytest_report_header() -> str:
    return f"kernels: {'interpreted on the CPU' if INTERPRETED else 'native on a GPU'}"
