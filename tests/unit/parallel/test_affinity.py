from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom_lite.parallel.affinity import Cpu, num_physical_cores, split_cpus, usable_cpus

if TYPE_CHECKING:
    from pathlib import Path


def machine(packages: int, cores: int, threads: int) -> list[Cpu]:
    """Numbered as Linux does: first threads of all cores, then second threads."""
    return [
        Cpu(package, core, thread * packages * cores + package * cores + core)
        for thread in range(threads)
        for package in range(packages)
        for core in range(cores)
    ]


def numbers(shares: list[tuple[Cpu, ...]]) -> list[list[int]]:
    return [[cpu.number for cpu in share] for share in shares]


def test_hyper_threads_of_a_core_stay_together() -> None:
    assert numbers(split_cpus(machine(1, 4, 2), 2)) == [[0, 4, 1, 5], [2, 6, 3, 7]]


def test_a_share_keeps_to_one_socket_where_it_can() -> None:
    shares = split_cpus(machine(2, 4, 1), 2)
    assert [{cpu.package for cpu in share} for share in shares] == [{0}, {1}]


def test_earlier_shares_get_the_cores_that_are_over() -> None:
    assert [len(share) for share in split_cpus(machine(1, 7, 1), 3)] == [3, 2, 2]


def test_hyper_threads_are_dealt_out_when_cores_are_short() -> None:
    assert numbers(split_cpus(machine(1, 2, 2), 3)) == [[0, 2], [1], [3]]


def test_cpus_are_shared_when_they_are_short() -> None:
    assert numbers(split_cpus(machine(1, 2, 1), 4)) == [[0], [0], [1], [1]]


def test_compute_threads_are_counted_by_physical_core() -> None:
    assert num_physical_cores(machine(2, 4, 2)) == 8


@given(
    packages=st.integers(1, 3),
    cores=st.integers(1, 9),
    threads=st.integers(1, 2),
    num_shares=st.integers(1, 12),
    data=st.data(),
)
def test_every_cpu_is_used_and_none_twice(
    packages: int, cores: int, threads: int, num_shares: int, data: st.DataObject
) -> None:
    every = machine(packages, cores, threads)
    cpus = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    shares = split_cpus(cpus, num_shares)
    assert len(shares) == num_shares
    assert all(shares)
    dealt = [cpu for share in shares for cpu in share]
    assert set(dealt) == set(cpus)
    if len(cpus) >= num_shares:
        assert len(dealt) == len(cpus)
    num_cores = num_physical_cores(cpus)
    if num_cores >= num_shares:
        sizes = [num_physical_cores(share) for share in shares]
        assert sum(sizes) == num_cores
        assert max(sizes) - min(sizes) <= 1


def test_cores_are_read_from_the_kernel(tmp_path: Path) -> None:
    for number in os.sched_getaffinity(0):
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text("5\n")
        (topology / "physical_package_id").write_text("1\n")
    assert {cpu.physical_core for cpu in usable_cpus(tmp_path)} == {(1, 5)}


def test_without_word_from_the_kernel_each_cpu_is_a_core(tmp_path: Path) -> None:
    cpus = usable_cpus(tmp_path)
    assert {cpu.number for cpu in cpus} == os.sched_getaffinity(0)
    assert num_physical_cores(cpus) == len(cpus)


PIN = """
import os, threading, torch
from atom_lite.parallel.affinity import pin_process, usable_cpus
go = threading.Event()
thread = threading.Thread(target=go.wait)
thread.start()
cpu = usable_cpus()[-1]
pin_process([cpu])
tasks = [int(task) for task in os.listdir("/proc/self/task")]

assert {thread.native_id, os.getpid()} <= set(tasks)
assert all(os.sched_getaffinity(task) == {cpu.number} for task in tasks)
go.set()
assert torch.get_num_threads() == 1
pin_process([cpu], num_threads=2)
assert torch.get_num_threads() == 2
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_pinning_moves_threads_that_exist_and_sizes_the_team() -> None:
    subprocess.run([sys.executable, "-c", PIN], check=True, timeout=60)
