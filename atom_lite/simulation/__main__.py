"""`python -m atom_lite.simulation`: compare chunk-size policies without a model."""

import sys

from atom_lite.simulation.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
