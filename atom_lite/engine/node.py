"""The launcher of a node other than the head's: `--node-rank` 1 and up.

It starts this node's stages, waits for them and serves nothing. They find the head by themselves
and end with it; what happens on other nodes reaches them over their connections, since no pipe
leads from one host to another. No torch here.

    every stage ended with 0      0   the head has closed
    one could not be set up       2   flags or files, or others than the head's
    one failed by itself          1
    else                          3   the head is gone, or never came
"""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING

from atom_lite.engine.followers import Followers, local_shares
from atom_lite.parallel.topology import name_stages

if TYPE_CHECKING:
    from collections.abc import Collection

    from atom_lite.config import Config
    from atom_lite.parallel.placement import Placement

HEAD_GONE = 3
_POLL_SECONDS = 0.05
# Once a stage has ended, the run is over and the head ends the others, or their heartbeats do.
_OTHERS_END_SECONDS = 20.0

logger = logging.getLogger(__name__)


def run_node(config: Config, placement: Placement) -> int:
    """Run this node's stages to their end, or until SIGTERM or Ctrl-C.

    Returns:
        The exit code, see the module docstring; 0 after a signal.
    """
    stopped = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stopped.set())
    rendezvous = placement.rendezvous
    logger.info(
        "Node rank %d of %d: waiting for the head at %s:%d to run %s, at most %g s",
        config.parallel.node_rank,
        placement.num_nodes,
        rendezvous.address,
        rendezvous.port,
        name_stages(placement.started_ranks),
        rendezvous.startup_seconds,
    )
    followers = Followers(config, placement, local_shares(placement), has_own_flags=True)
    while not stopped.wait(_POLL_SECONDS):
        if any(code is not None for code in followers.exit_codes().values()):
            followers.end(wait_seconds=_OTHERS_END_SECONDS)
            return _exit_code(followers)
    followers.stop()
    return 0


def _exit_code(followers: Followers) -> int:
    codes = followers.exit_codes()
    logger.info(
        "The stages ended: %s",
        ", ".join(f"stage {rank} with exit code {code}" for rank, code in codes.items()),
    )
    return worst_code([code for code in codes.values() if code is not None])


def worst_code(codes: Collection[int]) -> int:
    """What the node's exit code says of its stages'; killed ones have negative codes."""
    if 2 in codes:
        return 2
    if any(code not in (0, HEAD_GONE) for code in codes):
        return 1
    return max(codes)
