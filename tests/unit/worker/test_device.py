from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from atom_lite.errors import ConfigError
from atom_lite.worker.device import check_accelerators, device_name, take_device

if TYPE_CHECKING:
    from pathlib import Path


def test_stages_on_a_cpu_share_it() -> None:
    assert take_device("cpu", 1, 2) == torch.device("cpu")


def test_stages_never_share_an_accelerator() -> None:
    check_accelerators(2, 2)
    with pytest.raises(
        ConfigError, match="3 pipeline stages on this host need as many accelerators, and 2 can"
    ):
        check_accelerators(3, 2)


def test_a_cpu_is_named_by_its_model_and_not_by_its_architecture_alone(tmp_path: Path) -> None:
    names = set()
    for number, model in enumerate(("1", "17")):
        cpuinfo = tmp_path / f"{number}"
        cpuinfo.write_text(
            f"processor\t: 0\ncpu family\t: 25\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n\n"
        )
        names.add(device_name(torch.device("cpu"), cpuinfo))
    assert len(names) == 2
    assert all("AMD EPYC 25" in name for name in names)
    assert device_name(torch.device("cpu"), tmp_path / "missing")


@pytest.mark.gpu
def test_each_stage_takes_the_accelerator_of_its_number() -> None:
    last = torch.cuda.device_count() - 1
    assert take_device("cuda", last, last + 1) == torch.device("cuda", last)
    assert torch.cuda.current_device() == last
