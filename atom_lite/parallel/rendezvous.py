"""Where the ranks of one model meet: what a launcher tells every process. No torch, no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks meet, and how long they are patient.

    Args:
        address: address of the head's store, as all ranks can reach it.
        port: its port; the head may say 0 to take a free one (see `open_store`).
        startup_seconds: most that a rank waits for the others to come up.
        group_seconds: timeout of each group: the age at which any pending transfer fails.
        hosts_store: whether the head opens the store; False where torchrun's agent holds it.
        prefix: keys are put under this name, so that a restarted run finds no old ones.
        is_one_host: whether all ranks are processes of one Linux host and of one user, so that
            shared memory can connect them.
    """

    address: str = "127.0.0.1"
    port: int = 0
    startup_seconds: float = 300.0
    group_seconds: float = 1800.0
    hosts_store: bool = True
    prefix: str = "atom_lite"
    is_one_host: bool = False
