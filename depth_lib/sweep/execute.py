"""The process of one run: executes its notebook. torchrun starts several, one per rank.

    python -m depth_lib.sweep.execute NOTEBOOK OUTPUT PARAMETERS

PARAMETERS is JSON. Of several ranks, rank 0 writes the executed notebook. If the notebook fails, the last line printed
is the reason. The process ends when the sweep that started it has ended, so that it does not keep its GPU.
"""

import json
import logging
import os
import signal
import sys
import threading
import time

from tenacity import retry, retry_if_exception_message, stop_after_attempt

try:
    import papermill
    import psutil
    from jupyter_client.manager import AsyncKernelManager
except ImportError:
    raise ImportError("runs are notebooks executed by papermill; pip install 'depth-lib[sweep]'") from None

from ..progress import LOG
from .status import FAILED, KILLED, SWEEP_VARIABLE


class _KernelManager(AsyncKernelManager):
    """Remembers how its kernel ended; papermill's error does not say."""

    how = None

    async def _async_is_alive(self) -> bool:
        alive = await super()._async_is_alive()
        if not alive and self.provisioner and (status := await self.provisioner.poll()):
            ended = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            _KernelManager.how = KILLED if status == -9 else ended
        return alive

    is_alive = _async_is_alive


def main() -> int:
    notebook, output, parameters = sys.argv[1:]
    rank = os.environ.get("RANK", "0")
    who = f"rank {rank}: " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    # A kernelspec in the user's home must not win over the one of this environment.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    os.environ.pop("JUPYTER_PATH", None)
    threading.Thread(target=_end_with_the_sweep, args=(os.getppid(),), daemon=True).start()
    if rank == "0":
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    else:
        os.environ.pop(LOG, None)
    try:
        _execute(notebook, output if rank == "0" else None, json.loads(parameters))
        return 0
    except papermill.PapermillExecutionError as error:
        why = f"{error.ename}: {error.evalue}"
    except Exception as error:  # a kernel that died, a disk that is full
        how = _KernelManager.how if isinstance(error, RuntimeError) else None  # nbclient's, of a kernel
        why = f"{type(error).__name__}: {how or error}"
    print(f"{FAILED}{who}{why.strip().splitlines()[0]}", file=sys.stderr, flush=True)
    return 1


# Ranks that start at once may choose the same ports, and then a kernel does not start.
_NO_KERNEL = retry_if_exception_message(match=".*before replying to kernel_info")


@retry(retry=_NO_KERNEL, stop=stop_after_attempt(4), reraise=True)
def _execute(notebook: str, output: str | None, parameters: dict) -> None:
    """Execute the notebook, again if the kernel does not start."""
    options = {"kernel_name": "python3", "progress_bar": False, "log_output": True, "start_timeout": 300}
    if output:  # papermill takes what stands in braces for parameters
        output = output.replace("{", "{{").replace("}", "}}")
    papermill.execute_notebook(notebook, output, parameters, kernel_manager_class=_KernelManager, **options)


def _end_with_the_sweep(parent: int) -> None:
    """End this process when its parent or the sweep has ended; its kernel notices and ends too.

    The parent is the sweep, or torchrun, which outlives the sweep.
    """
    sweep = int(os.environ.get(SWEEP_VARIABLE, parent))
    while os.getppid() == parent and psutil.pid_exists(sweep):
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
