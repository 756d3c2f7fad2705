"""Kernels of the data plane, importable without the server.

Each kernel comes with a plain-torch reference of the same signature in `reference`, which says what
is right and what the tests compare with. This package imports torch (and, for the GPU kernels,
triton) only: never `atom_lite`, so that a kernel can be read, run and benchmarked on its own.
"""
