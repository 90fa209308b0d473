"""A model without the blocks that it can do without: chosen, saved with a card, its accuracy paired."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import depth_lib as dl
from depth_lib.sweep.cli import main


@pytest.mark.slow
def test_the_command_writes_a_folder_that_transformers_loads_and_a_card_that_says_what_went(tmp_path, capsys):
    folder = tmp_path / "shorter"
    words = ["prune", "toy-8l", "--at-most", "0.5", "--save", str(folder), "--source", "embedded", "--choices", "4"]
    assert main([*words, "--n-examples", "2"]) == 0
    said = capsys.readouterr().out
    llm, prompts = dl.load_model("toy-8l"), dl.load_prompts("gsm8k", 2, source="embedded")
    found = dl.removable(dl.block_removal(llm, prompts, sizes="all"), 0.5)
    assert f"\n{found}\n" in said and "Accuracy on 4 questions: " in said and "(chance: 25%)" in said
    ids = llm.tokenizer(prompts[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        truth = dl.remove_blocks(llm, found.s, found.n)._module(ids, use_cache=False).logits
        assert torch.equal(AutoModelForCausalLM.from_pretrained(folder)(ids, use_cache=False).logits, truth)
    card = (folder / "README.md").read_text()
    assert "2 prompts of gsm8k (source: embedded)" in said and "2 prompts of gsm8k (source: embedded)" in card
    assert str(found) in card and f"toy-8l without {str(found).split(' (')[0].lower()}\n" in card
    nothing = r"No block can be removed for -1 nats per token: the cheapest removal costs 0\.\d+ .*at-most"
    with pytest.raises(SystemExit, match=nothing):
        main([*words[:2], "--at-most", "-1", "--source", "embedded", "--choices", "0", "--n-examples", "2"])


def test_two_folders_are_compared_on_the_command_line(tmp_path, capsys):
    from tests.synthetic import write_run

    for model in ("base", "tuned"):
        write_run(tmp_path, "gsm8k", model, 8, ("logit_lens",))
    folders = [str(tmp_path / "gsm8k" / model) for model in ("base", "tuned")]
    assert main(["compare", *folders, "--to", str(tmp_path / "both")]) == 0
    said = capsys.readouterr().out
    assert "gsm8k" in said and "kl" in said and "difference" in said
    assert (tmp_path / "both/gsm8k_lens_kl.png").exists()
    with pytest.raises(SystemExit, match="no such folder: "):
        main(["compare", folders[0], "nowhere"])


def test_a_file_of_prompts_feeds_no_choices_and_long_prompts_of_ours_are_left_out(tmp_path, capsys):
    (tmp_path / "q.txt").write_text("5 + 7 = 12\n3 + 4 = 7\n")
    words = ["prune", "toy-4l", "--at-most", "9", "--choices", "3"]
    assert main([*words, "--source", str(tmp_path / "q.txt"), "--n-examples", "2"]) == 0
    said = capsys.readouterr().out
    assert "Accuracy on 3 questions: " in said and "Measured on 2 prompts of q.txt\n" in said
    assert said.count("The accuracy before is not significantly above chance") == 1
    llm = dl.load_model("toy-4l")
    llm.config.max_position_embeddings = 700
    folder = tmp_path / "short"
    dl.save_model(llm, folder)
    with pytest.warns(UserWarning, match="of 3 prompts are longer than the model's 700 positions and are left out"):
        assert main([*words[:1], str(folder), *words[2:], "--n-examples", "3"]) == 0
