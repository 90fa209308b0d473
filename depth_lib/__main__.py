"""python -m depth_lib is the command depth-lib."""

import sys

from .sweep.cli import main

if __name__ == "__main__":
    sys.exit(main())
