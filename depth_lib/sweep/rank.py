"""One rank of a run whose layers several processes share: torchrun starts N of these, each of which runs the notebook.

Rank 0 keeps the executed notebook and its log; of the others only why they failed is said, on one line.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import papermill

FAILED_RANK = "rank {}: "  # begins the line that says why a rank failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook")
    parser.add_argument("output")
    parser.add_argument("parameters", type=json.loads)
    words, rank = parser.parse_args(), int(os.environ["RANK"])
    threading.Thread(target=_end_with_torchrun, args=(os.getppid(),), daemon=True).start()
    if rank == 0:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    with tempfile.TemporaryDirectory() as elsewhere:
        output = words.output if rank == 0 else str(Path(elsewhere) / "rank.ipynb")
        how = {"kernel_name": "python3", "progress_bar": False, "log_output": rank == 0, "start_timeout": 300}
        try:
            _execute(words.notebook, output, words.parameters, how)
        except papermill.PapermillExecutionError as error:
            why = f"{error.ename}: {error.evalue}".strip().splitlines()[0]
        except Exception as error:  # a kernel that died, a disk that is full
            why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        else:
            return 0
    print(FAILED_RANK.format(rank) + why, file=sys.stderr, flush=True)
    return 1


def _execute(notebook: str, output: str, parameters: dict, how: dict) -> None:
    """Execute the notebook. Ranks start their kernels at once and may choose the same ports: then once more."""
    for attempt in range(4):
        try:
            papermill.execute_notebook(notebook, output, parameters, **how)
            return
        except RuntimeError as error:
            if "before replying to kernel_info" not in str(error) or attempt == 3:
                raise


def _end_with_torchrun(launcher: int) -> None:
    """Ranks that outlived a killed launcher would hold their GPUs; a kernel ends with the process that started it."""
    while os.getppid() == launcher:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
