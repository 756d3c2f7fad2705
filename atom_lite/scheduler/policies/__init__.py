"""Batching policies, one file each: the order of work in a step and who is admitted."""
