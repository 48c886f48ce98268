"""The roofline against hand arithmetic and the papers' critical batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegen.roofline import Device, datasheet_devices, measured_device

TOY = Device("toy", bytes_per_s=10.0, flops_per_s={"f": 100.0}, memory_bytes=1, source="test")


def test_time_is_the_longer_of_both():
    assert TOY.ridge("f") == 10
    assert TOY.seconds(flops=50, moved_bytes=10, dtype="f") == 1.0
    assert TOY.seconds(flops=200, moved_bytes=10, dtype="f") == 2.0
    assert TOY.memory_bound(flops=99, moved_bytes=10, dtype="f")
    assert not TOY.memory_bound(flops=101, moved_bytes=10, dtype="f")


@given(st.floats(1, 1e15), st.floats(1, 1e15))
def test_left_of_the_ridge_is_memory_bound(flops, moved):
    assert TOY.memory_bound(flops, moved, "f") == (flops / 100.0 < moved / 10.0)
    assert TOY.seconds(flops, moved, "f") >= max(flops / 100.0, moved / 10.0)


def test_all_devices_the_site_models():
    devices = datasheet_devices()
    assert set(devices) == {
        "a100-80g", "h100-sxm", "h200", "b200", "mi300x", "rtx-4090", "l40s"
    }  # fmt: skip
    for device in devices.values():
        assert device.source
        assert 1e11 < device.bytes_per_s < 1e13
        assert device.memory_bytes >= 24e9
        assert device.flops_per_s["bfloat16"] >= device.flops_per_s.get("float32", 0)


@pytest.mark.parametrize(("key", "batch"), [("a100-80g", 153), ("h100-sxm", 295), ("h200", 206)])
def test_critical_batch_of_bfloat16_weights(key, batch):
    # 2 FLOPs a weight of 2 bytes: intensity = batch, so the ridge is the critical batch.
    assert round(datasheet_devices()[key].ridge("bfloat16")) == batch


def test_measured_device_takes_the_faster_of_copy_and_read():
    machine = {
        "name": "m",
        "copy_bytes_per_s": 2.0,
        "read_bytes_per_s": 3.0,
        "matmul_flops_per_s": {"float32": 6.0},
        "memory_bytes": 1,
    }
    assert measured_device(machine).ridge("float32") == 2.0
