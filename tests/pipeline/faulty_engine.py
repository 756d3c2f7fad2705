"""An engine process with a planted fault in one of its stages, see `faults`."""

from __future__ import annotations

import logging
import os

from atom_lite.engine import followers
from atom_lite.engine.process import main
from tests.pipeline.faults import plant_fault

if __name__ == "__main__":
    plant_fault()
    followers.STAGE_MODULE = "tests.pipeline.faulty_stage"
    exit_code = main()
    logging.shutdown()
    os._exit(exit_code)
