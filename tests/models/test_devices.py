"""What an error of a GPU means: full memory, a GPU that is lost to this process, or neither."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.engines.devices import device_errors, driver_version
from models.errors import DeviceError, DeviceLost, ModelError


def met(error: Exception, *, lost: bool) -> Exception:
    with pytest.raises(type(error) if not lost else ModelError) as caught, device_errors("GPU", is_lost=lambda: lost):
        raise error
    return caught.value


@pytest.mark.parametrize(
    "error", [torch.AcceleratorError("illegal memory access"), ModelError("no"), RuntimeError("no")]
)
def test_an_error_means_a_lost_gpu_only_if_all_work_is_refused(error: Exception) -> None:
    assert met(error, lost=False) is error

    lost = met(error, lost=True)
    assert isinstance(lost, DeviceLost) and lost.__cause__ is error
    assert str(lost).startswith("GPU stopped computing")


def test_full_memory_is_no_lost_gpu() -> None:
    with pytest.raises(DeviceError, match="the memory of GPU is full") as full, device_errors("GPU", is_lost=_never):
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    assert not isinstance(full.value, DeviceLost)


def _never() -> bool:
    raise AssertionError("waiting for the GPU tells nothing about its memory")


def test_an_error_of_the_program_stays_what_it_is() -> None:
    with pytest.raises(KeyError), device_errors("GPU", is_lost=_never):
        raise KeyError("find")


def test_the_driver_is_told_by_the_system(tmp_path: Path) -> None:
    path = tmp_path / "version"
    assert driver_version(path) == "unknown"

    path.write_text("580.95.05\n")

    assert driver_version(path) == "580.95.05"
