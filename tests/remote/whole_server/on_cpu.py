"""NDIF's own model actor and controller on a machine without a GPU; every request runs as an ordinary key's does."""

from functools import partial

import ray
import torch
from ndif.services.ray.deployments.controller.controller import _ControllerActor
from ndif.services.ray.sandbox import host
from ndif.services.ray.sandbox.model import SandboxModelDeployment
from nnsight.modeling.huggingface import HuggingFaceModel
from nnsight.modeling.mixins.remotable import Remotable

host.RUNNER_ENV += ("HF_HUB_OFFLINE",)
host.spawn = partial(host.spawn, timeout=240)  # on a machine that is busy
torch.cuda.synchronize = torch.cuda.empty_cache = lambda: None


def without_trust(name):
    """ndif 0.1.2 passes trust_remote_code to what takes none in nnsight 0.8.1."""
    plain = getattr(Remotable, name).__func__
    return classmethod(lambda cls, *args, trust_remote_code, **named: plain(cls, *args, **named))


for name in ("describe_checkpoint", "max_tp_size"):
    setattr(Remotable, name, without_trust(name))


class Changed:
    """Ray pickles these classes by value: what is changed above has to be changed where they run."""

    def __init__(self, *args, **named):
        import on_cpu  # noqa: F401

        super().__init__(*args, **named)


@ray.remote(num_cpus=0, max_restarts=-1)
class Actor(Changed, SandboxModelDeployment):
    def load_from_disk(self):
        model = HuggingFaceModel.from_model_key(self.model_key, dispatch=True, dtype=self.dtype_name)
        model._module.requires_grad_(False)
        return model

    def execute(self, request):
        request.trusted = False
        return super().execute(request)


@ray.remote(num_cpus=1, num_gpus=0, max_restarts=-1, resources={"head": 1})
class Controller(Changed, _ControllerActor):
    pass
