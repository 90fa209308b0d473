"""Figures of what skipping a layer, its attention or its MLP does, and of direct effects: each mode, and both together.

The comparison of the modes is the papers' main argument, so every row is there for both.
"""

from . import panels
from .kind import Kind

MAP = {"ylabel": "Layer skipped", "xlabel": "Effect @ layer", "colorbar": "Relative change", "size": (1.9, 1.9)}
_BARS = {"ylabel": "Output change norm", "xlabel": "Layer skipped"}
_AT = {"labels": ("at future tokens", "at all tokens")}
_MODES = {  # which tokens are skipped, and where the effect is measured
    "future": ("for the tokens so far", "at the tokens that follow"),
    "all": ("for all tokens but the first", "at any token"),
}

_OWN = ", with the change of the layer itself on the diagonal"


def _calls(part: str) -> dict[str, str]:
    """What makes a result of each mode, and one of both."""
    of_part = f', part="{part}"' if part in ("attention", "mlp") else ""
    function = "local_effects" if part == "local" else "layer_effects"
    calls = {
        mode: f"dl.{function}(llm, prompts{how}{of_part})" for mode, how in (("future", ""), ("all", ', mode="all"'))
    }
    return calls | {"both": " | ".join(calls.values())}


def _maps(part: str, title: str, whose: str, cause: str, own: str = _OWN, **look: str) -> dict[str, Kind]:
    """Effects on later layers: at future tokens, at all tokens, and these maps side by side."""
    probe, key, calls = f"{part}_effects", "local" if part == "local" else "layer", _calls(part)
    largest = "Largest relative change of a later layer's contribution (column)"
    future, everywhere = (
        Kind(
            probe,
            f"{title}, at {mode} tokens",
            f"{largest} {where}, when {cause} {skipped}{own * (mode == 'all')}.",
            (f"max_{mode}_{key}",),
            panels.layer_map,
            short=f"{mode} tokens",
            made_by=calls[mode],
            **MAP | look,
        )
        for mode, (skipped, where) in _MODES.items()
    )
    both = Kind(
        probe,
        title,
        f"{largest} when {cause}. Left: for the tokens so far, measured at those that follow; right: for all tokens "
        f"but the first, measured at all{own}. Rows that are dark on the left and bright on the right are {whose} the "
        "current token only.",
        together=(future, everywhere),
        shows=(probe, f"{probe}_all"),
        made_by=calls["both"],
        **MAP | look | {"size": (1.4, 1.3)},
    )
    return {probe: future, f"{probe}_all": everywhere, f"{probe}_modes": both}


def _outputs(part: str, whose: str, cause: str) -> dict[str, Kind]:
    """Effects on the output: its largest change in each mode and in both, and the mean damage in both."""
    probe, calls, prefix = f"{part}_effects", _calls(part), "" if part == "layer" else f"{part}_"
    title, largest = f"Effect of skipping {whose} on the output", "Largest change, in norm, of the output distribution"
    single = {
        mode: Kind(
            probe,
            f"{title}, at {mode} tokens",
            f"{largest} {where}, when {cause} {skipped}.",
            (f"max_{mode}_out",),
            panels.bars,
            made_by=calls[mode],
            **_BARS,
        )
        for mode, (skipped, where) in _MODES.items()
    }
    name, both = f"{prefix}output_change", {"options": _AT, "made_by": calls["both"]}
    return {
        name: single["future"],
        f"{name}_all": single["all"],
        f"{name}_modes": Kind(
            probe,
            title,
            f"{largest} when {cause}: at the tokens that follow the skipped ones (filled), and at all tokens (line). "
            f"Where only the line is high, {whose} serves the current token only.",
            ("max_future_out", "max_all_out"),
            panels.filled_and_line,
            shows=(name, f"{name}_all"),
            **_BARS | both,
        ),
        f"{prefix}skip_damage": Kind(
            probe,
            f"Damage of skipping {whose}",
            f"KL divergence in nats of the output from that with {whose} skipped, mean over the tokens that follow "
            "the skipped ones (filled) and over all (line).",
            ("future_kl", "all_kl"),
            panels.filled_and_line,
            "KL(y || skipped), nats",
            "Layer skipped",
            **both,
        ),
    }


def _of_part(part: str) -> dict[str, Kind]:
    whose, serves = f"a layer's {part}", f"layers whose {part} serves"
    title = f"Effect of skipping {whose} on later layers"
    maps = _maps(part.lower(), title, serves, f"the {part} of a layer (row) adds nothing")
    return maps | _outputs(part.lower(), whose, f"the {part} of a layer adds nothing")


LAYER_SKIPS = _maps(
    "layer", "Effect of skipping a layer on later layers", "layers that serve", "a layer (row) is skipped"
) | _outputs("layer", "a layer", "a layer is skipped")
PART_SKIPS = _of_part("attention") | _of_part("MLP")
DIRECT_EFFECTS = _maps(
    "local",
    "Direct effect of a layer on later ones",
    "layers that later ones read for",
    "what a layer (row) added is taken out of the later one's input alone",
    own="",
    ylabel="Contribution taken out",
)
