"""The values over all prompts, from those of each prompt."""


def token_means(sums: dict) -> dict:
    """Token-pooled means Σ sums / Σ tokens beside the per-prompt sums they come from."""
    n_tokens = sums["n_tokens"].sum()
    means = {key.removesuffix("_sums"): value.sum(0) / n_tokens for key, value in sums.items() if key.endswith("_sums")}
    return {**means, **sums}


def over_prompts(effects: dict) -> dict:
    """Maxima and means over the prompts that have a value, beside the values of each."""
    result = {key: value.amax(0) if key.startswith("max_") else value.nanmean(0) for key, value in effects.items()}
    floors = {key: value for key, value in effects.items() if key.endswith("_rounding_floor")}
    by_prompt = {f"{key}_by_prompt": value for key, value in effects.items() if key not in floors}
    return result | by_prompt | floors
