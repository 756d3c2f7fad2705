from __future__ import annotations

import pytest
import torch

from atom_lite.errors import ConfigError
from atom_lite.worker.device import check_accelerators, take_device


def test_stages_on_a_cpu_share_it() -> None:
    assert take_device("cpu", 1, 2) == torch.device("cpu")


def test_stages_never_share_an_accelerator() -> None:
    check_accelerators(2, 2)
    with pytest.raises(
        ConfigError, match="3 pipeline stages on this host need as many accelerators, and 2 can"
    ):
        check_accelerators(3, 2)


@pytest.mark.gpu
def test_each_stage_takes_the_accelerator_of_its_number() -> None:
    last = torch.cuda.device_count() - 1
    assert take_device("cuda", last, last + 1) == torch.device("cuda", last)
    assert torch.cuda.current_device() == last
