"""Loaded first: importing `kernels` chooses interpreter or GPU, and must come before Triton does."""

import kernels  # noqa: F401
