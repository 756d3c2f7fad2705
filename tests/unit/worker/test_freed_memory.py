"""Memory that tensors free is used again without page faults."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
import torch
from atom_lite.worker.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        first, second = torch.zeros(1 << 20), torch.zeros(3 << 20)
        del first, second
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
if not keep_freed_memory():
    print("unsupported")
else:
    faults()
    print(before, faults())
"""


def test_freed_memory_is_used_again_without_page_faults() -> None:
    program = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout
    if output.strip() == "unsupported":
        return
    before, after = map(int, output.split())
    assert before > 1000
    assert after < before / 20
