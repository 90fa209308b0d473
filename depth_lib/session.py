"""The only place that opens an nnsight session: a probe runs here, or as one job on NDIF."""

import nnsight
from tqdm.auto import tqdm


def run(probe, llm, *args, remote=False):
    """probe(llm, *args) in one session; returns its dict of tensors on the CPU.

    remote: False (this machine), True (NDIF), "local" (serialised and run here: a rehearsal of NDIF) or a host's URL.
    """
    with llm.session(remote=remote):
        result = nnsight.save(probe(llm, *args))
    return result


def run_in_parts(probe, llm, arch, items, *args, remote=False, label=""):
    """probe(llm, arch, part, *args) for parts of items, as a list of results in order.

    On this machine a part is one item, so that a progress bar can move; a remote run sends all items as one job.
    """
    parts = [[item] for item in items] if not remote else [items]
    bar = tqdm(parts, desc=label, unit="prompt", disable=None if len(parts) > 1 else True, leave=False)
    return [run(probe, llm, arch, part, *args, remote=remote) for part in bar]
