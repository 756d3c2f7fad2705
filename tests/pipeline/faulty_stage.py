"""A follower stage with a planted fault: `python -m tests.pipeline.faulty_stage`, see `faults`."""

from __future__ import annotations

from atom_lite.engine.stage_process import main
from tests.pipeline.faults import plant_fault

if __name__ == "__main__":
    plant_fault()
    main()
