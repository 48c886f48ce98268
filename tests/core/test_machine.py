"""Naming and measuring the machine."""

import time

import pytest
import torch

from tracegen import machine
from tracegen.errors import UserError


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("AMD EPYC 9654 96-Core Processor 4c", "amd-epyc-9654-96-4c"),
        ("Apple M3 Max 16c", "apple-m3-max-16c"),
    ],
)
def test_slug(name, slug):
    assert machine.slugify(name) == slug


def test_median_ignores_a_slow_first_call():
    calls = []

    def work():
        calls.append(None)
        time.sleep(0.3 if len(calls) == 1 else 0.01)

    seconds = machine.median_seconds(work, torch.device("cpu"))
    assert len(calls) == machine.WARMUPS + machine.REPEATS
    assert 0.01 <= seconds < 0.1


def test_ceilings_are_measured(monkeypatch):
    monkeypatch.setattr(machine, "BUFFER_BYTES", {"cpu": 2**24})
    monkeypatch.setattr(machine, "MATRIX_SIZE", {"cpu": 256})
    found = machine.measure(torch.device("cpu"))
    assert found.slug == machine.identify(torch.device("cpu")).slug
    assert found.copy_bytes_per_s > 1e8
    assert found.read_bytes_per_s > 1e8
    assert set(found.matmul_flops_per_s) == {"float32", "bfloat16", "float16"}
    assert min(found.matmul_flops_per_s.values()) > 1e7


def test_bandwidth_counts_both_directions_of_a_copy(monkeypatch):
    monkeypatch.setattr(machine, "BUFFER_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(machine, "median_seconds", lambda work, device: 1.0)
    assert machine.copy_bandwidth(torch.device("cpu")) == 2 * 2**20
    assert machine.read_bandwidth(torch.device("cpu")) == 2**20


@pytest.mark.parametrize("wanted", ["cuda:99", "toaster"])
def test_an_absent_device_is_one_clear_line(wanted):
    with pytest.raises(UserError, match="try --device cpu"):
        machine.pick_device(wanted)


def test_versions_name_what_computes():
    assert {"python", "torch", "pyarrow"} <= set(machine.versions())
