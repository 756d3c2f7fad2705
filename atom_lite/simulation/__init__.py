"""The real scheduler and planners without a model: simulated stages, workloads, timelines."""
