"""Ask the C library to keep what tensors free, instead of giving it back to the system.

A step's activations are a few MB each, made and freed layer by layer. By default glibc maps such
sizes afresh and unmaps them, so every layer pays a page fault per 4 KB: a prefill of 2048 tokens of
SmolLM2-135M takes a tenth longer. Runs once in each process that runs layers on a CPU, after the
weights are loaded, so that what loading frees does go back.
"""

from __future__ import annotations

import ctypes
import sys

# Of malloc.h. The first is at most half of a thread's heap, 32 MB.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_MMAP_BYTES, _TRIM_BYTES = 32 << 20, 512 << 20


def keep_freed_memory() -> bool:
    """Keep up to 512 MB of freed memory; tell whether this C library can."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl has none
        return False
    kept = mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    return bool(kept)
