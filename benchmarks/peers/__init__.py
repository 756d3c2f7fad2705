"""Servers that benchmarks start, measure and stop: ours and those it is compared with."""
