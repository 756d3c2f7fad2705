"""The compiled kernels, as this CPU runs them and in the form for CPUs that nothing is known of."""

from __future__ import annotations

import ctypes

import pytest
import torch  # first: the library shares its OpenMP threads

from atom_lite_kernels.cpu import build

assert torch


@pytest.fixture(
    scope="session", params=["native", pytest.param("portable", marks=pytest.mark.full)]
)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library of all kernels; the portable one takes ten seconds to compile, once."""
    native = build.load_library()
    if native is None:
        pytest.skip("this machine has no C++ compiler")
    return native if request.param == "native" else ctypes.CDLL(str(build.build(build.PORTABLE)))
