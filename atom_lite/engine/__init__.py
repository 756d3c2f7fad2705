"""The engine: head loop, forward thread, and the two ways to run them (process, in-process)."""
