"""A real Slurm on this machine, as root from the distribution's packages (slurm-wlm, munge); all it writes is in one
folder, and all it starts ends with it."""

import contextlib
import os
import shutil
import socket
import subprocess
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "squeue", "scontrol")
available = os.name == "posix" and os.geteuid() == 0 and all(map(shutil.which, PROGRAMS))

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
KillWait=10
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm(folder):
    """A running single-node Slurm with 4 CPUs and 2 pretended GPUs; the environment in which srun finds it."""
    folder.chmod(0o711)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, ports=_free_ports(2)))
    gpus = "".join(f"NodeName={host} Name=gpu File=/dev/{device}\n" for device in ("null", "zero"))
    (folder / "gres.conf").write_text(gpus)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    munged = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"]
    munged += [f"--{kind}-file={folder}/munged.{kind}" for kind in ("pid", "log", "seed")]
    daemons = []
    try:
        for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            with open(folder / f"{command[0]}.out", "wb") as said:
                daemons.append(subprocess.Popen(command, env=environment, stdout=said, stderr=said))
            time.sleep(0.5)
        answer = subprocess.run(
            ["srun", "--immediate=60", "hostname"], env=environment, capture_output=True, text=True, timeout=90
        )
        assert answer.stdout.strip(), f"{answer.stderr}\nsee the logs in {folder}"
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
