"""One file per `--dynamic-chunking-policy`, all behind `chunking.planner.ChunkPlanner`."""
