"""Execute a notebook in this process: what each run of a sweep starts, once or, by torchrun, as several ranks.

    python -m depth_lib.sweep.execute NOTEBOOK OUTPUT PARAMETERS

PARAMETERS is JSON. Of several ranks, which share the model, rank 0 keeps the executed notebook. If the notebook fails,
the last line printed says why.
"""

import json
import logging
import os
import sys
import threading
import time

try:
    import papermill
except ImportError:
    raise ImportError("runs are notebooks, executed by papermill; pip install 'depth-lib[sweep]'") from None

from .status import FAILED


def main() -> int:
    notebook, output, parameters = sys.argv[1:]
    rank = os.environ.get("RANK", "0")
    who = f"rank {rank}: " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    # A kernelspec in the user's home must not win over the one of this environment.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    os.environ.pop("JUPYTER_PATH", None)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    if rank == "0":
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        _execute(notebook, output if rank == "0" else None, json.loads(parameters))
        return 0
    except papermill.PapermillExecutionError as error:
        why = f"{error.ename}: {error.evalue}"
    except Exception as error:  # a kernel that died, a disk that is full
        why = f"{type(error).__name__}: {error}"
    print(f"{FAILED}{who}{why.strip().splitlines()[0]}", file=sys.stderr, flush=True)
    return 1


def _execute(notebook: str, output: str | None, parameters: dict) -> None:
    """Execute the notebook. Ranks start their kernels at once and may choose the same ports: then once more."""
    options = {"kernel_name": "python3", "progress_bar": False, "log_output": True, "start_timeout": 300}
    for attempts_left in (3, 2, 1, 0):
        try:
            papermill.execute_notebook(notebook, output, parameters, **options)
            return
        except RuntimeError as error:
            if "before replying to kernel_info" not in str(error) or not attempts_left:
                raise


def _end_with_parent(parent: int) -> None:
    """End this process when its parent is gone: outliving a killed sweep or torchrun, it would hold its GPU.

    The kernel ends with the process that started it.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
