"""Triton kernels, one op a file.

A process either interprets or compiles: Triton decides when a kernel is decorated. Where no GPU is
found and nothing else is asked for, importing this package chooses the interpreter, so every kernel
runs on a CPU, slowly. `kernels.launch.INTERPRETED` says which path this process took.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
