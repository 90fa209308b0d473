"""The sample rows that ship: enough of each dataset, whose they are, and which stand for which."""

from depth_lib.data.prompts import load_prompts
from depth_lib.embedded import prompts_path


def test_the_sample_for_language_models_is_gsm8ks_own_first_twelve_rows_and_leaves_the_toys_theirs():
    real, ours = (load_prompts("gsm8k", 12, source=source) for source in ("sample", "embedded"))
    questions = [prompt.split("\n")[1] for prompt in real]
    assert questions[0].startswith("Problem: Janet’s ducks lay 16 eggs per day.") and real[0].endswith("answer is 18")
    assert questions[11].startswith("Problem: Toula went to the bakery") and real[11].endswith("answer is 694")
    assert not set(real) & set(ours)
    licence = prompts_path("gsm8k", published=True).with_name("gsm8k_LICENSE.txt").read_text()
    assert licence.startswith("MIT License") and "OpenAI" in licence
