"""Loaded first: importing `kernels` chooses interpreter or GPU, which must precede Triton."""

import kernels  # noqa: F401
