"""python -m depth_lib.sweep: the same as the command depth-lib."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
