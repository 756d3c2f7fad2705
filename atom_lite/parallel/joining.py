"""Joins the groups with an eye on everything that can go wrong meanwhile.

torch's own wait knows nothing of processes and flags, and a peer that dies while the groups connect
is noticed only after their timeout, which is meant for a run and lasts half an hour. So it runs on
a thread, which stops waiting when the caller gives up; one that is just connecting is left behind.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from atom_lite.parallel.groups import Groups, open_groups
from atom_lite.parallel.link import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import Store  # type: ignore[attr-defined]

    from atom_lite.parallel.rendezvous import Rendezvous
    from atom_lite.parallel.topology import Topology

# All are there, so connecting takes milliseconds; on a loaded machine seconds.
_CONNECT_SECONDS = 60.0
_POLL_SECONDS = 0.02


def join_groups(
    topology: Topology,
    store: Store,
    rendezvous: Rendezvous,
    *,
    data_backend: str,
    check: Callable[[], None] = lambda: None,
) -> Groups:
    """See `open_groups`.

    Args:
        topology: this rank's place.
        store: of `open_store`.
        rendezvous: the same in all ranks.
        data_backend: see `open_groups`.
        check: called every few milliseconds; what it raises ends the wait.

    Raises:
        PipelineError: a rank does not come up, or does not connect.
    """
    joined: Future[Groups] = Future()
    given_up = threading.Event()

    def join() -> None:
        try:
            joined.set_result(
                open_groups(
                    topology, store, rendezvous, data_backend=data_backend, given_up=given_up
                )
            )
        except BaseException as error:  # noqa: BLE001  raised where the result is awaited
            joined.set_exception(error)

    deadline = time.monotonic() + rendezvous.startup_seconds + _CONNECT_SECONDS
    threading.Thread(target=join, name="join", daemon=True).start()
    try:
        while not joined.done():
            check()
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"{topology.name} has not got a connection to the others: one of them is gone"
                )
            time.sleep(_POLL_SECONDS)
    finally:
        given_up.set()
    return joined.result()
