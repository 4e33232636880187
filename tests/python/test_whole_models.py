"""Models that read images too: the engine trains the language model inside as AdamW does in Transformers' whole model, and what is exported, by itself
or inside again, has the run's loss there.
"""

import functools
import json
import pathlib
import shutil
import sys

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from program import make_tiny, run
from test_lora import LENGTH, TEXTS, loss_of, losses_of, losses_of_steps, train

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "parity"))
import make_fixtures

RATE = 1e-3


GEMMA4_EXPERTS = "gemma4_whole, with experts"
GEMMA4_E2B = "gemma4_whole, with keys of earlier layers"
MODELS = ["gemma3_whole", "gemma4_whole", GEMMA4_EXPERTS, GEMMA4_E2B, "mistral3_ministral3", "qwen3_vl", "qwen3_5_whole", "qwen3_5_moe_whole"]


@pytest.fixture(scope="module", params=MODELS)
def whole(request, tmp_path_factory):
    """A folder as one has it after a download: `model`, texts as tokens."""
    folder = tmp_path_factory.mktemp(request.param)
    config = json.loads(json.dumps(make_fixtures.CASES[request.param.partition(",")[0]][0]))
    config["text_config"] |= {"vocab_size": 320, "eos_token_id": 256, "bos_token_id": None, "pad_token_id": None}
    if request.param == GEMMA4_EXPERTS:
        config["text_config"] |= {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 8}
    if request.param == GEMMA4_E2B:
        kinds = ["sliding_attention", "full_attention"]
        config["text_config"] |= {"num_hidden_layers": 4, "layer_types": kinds * 2, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
                                  "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 320, "attention_k_eq_v": False,
                                  "num_global_key_value_heads": None}
    if request.param.startswith("gemma4"):  # which has no forward without
        config["text_config"]["pad_token_id"] = 0
    make_tiny(folder / "model")  # for its tokenizer
    for file in ("config.json", "model.safetensors"):
        (folder / "model" / file).unlink()
    (folder / "config.json").write_text(json.dumps(config))
    loaded = AutoConfig.from_pretrained(folder / "config.json")
    net = AutoModelForImageTextToText.from_config(loaded, dtype=torch.float32)
    make_fixtures.draw_weights(net, 5)
    with torch.no_grad():  # near to what training begins with
        for parameter in net.parameters():
            parameter.mul_(0.3 if parameter.dim() > 1 else 1)
    net.save_pretrained(folder / "model", save_original_format=request.param not in make_fixtures.JOINED_EXPERTS)
    if request.param == GEMMA4_E2B:  # as published: projections that no one reads
        file = folder / "model/model.safetensors"
        tensors = load_file(file)
        prefix = next(name for name in tensors if name.endswith("layers.1.self_attn.k_proj.weight")).partition("layers.")[0]
        for layer, name in ((2, "k_proj"), (3, "v_proj"), (3, "k_norm")):
            tensors[f"{prefix}layers.{layer}.self_attn.{name}.weight"] = torch.full((8,), 7.0)
        save_file(tensors, file, metadata={"format": "pt"})
    for file in ("preprocessor_config.json", "README.md", "LICENSE"):
        (folder / "model" / file).write_text("{}")
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    run(folder, "tokenize", "--tokenizer", "model", "--input", "texts.jsonl", "--output", "texts")
    return folder


def load(folder):
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def names_in(folder):
    return set(load_file(folder / "model.safetensors"))


def evaluated(folder, *words):
    said = run(folder, "eval", "loss", *words, "--eval_file", "texts", "--packing", "none", "--max_seq_length", LENGTH, "--json")
    return json.loads(said)["loss"]


@pytest.fixture(scope="module")
def trained(whole):
    """trained(words of train): the folder of such a run, which is made once, and its loss."""

    @functools.cache
    def of_words(*words):
        folder = whole / "-".join(["run", *words])
        train(whole, folder, *words)
        return folder, evaluated(whole, "--checkpoint", folder)

    return of_words


def language_parameters(model):
    return [parameter for name, parameter in model.named_parameters() if "language_model" in name or "lm_head" in name]


@pytest.fixture(scope="module")
def by_transformers(whole):
    """The model after its steps, their rate and losses."""
    model = load(whole / "model")
    trained = language_parameters(model)
    # At the rate of the others Transformers in fp32 is 1.2e-5 from itself in fp64 after six steps.
    rate = RATE / 10 if getattr(model.config.text_config, "num_kv_shared_layers", 0) else RATE
    groups = [{"params": [parameter for parameter in trained if (parameter.dim() > 1) == decays], "weight_decay": decay}
              for decays, decay in ((True, 0.1), (False, 0.0))]  # as the Trainer has it
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-8)
    return model, rate, losses_of_steps(model, optimizer)


@pytest.mark.parametrize(("ranks", "zero"), [(1, 0), (2, 3)])
def test_steps_are_those_of_the_whole_model_and_go_back_into_it(whole, by_transformers, tmp_path, ranks, zero):
    model, rate, losses = by_transformers
    said = train(whole, tmp_path / "run", "--zero", zero, ranks=ranks, rate=rate)
    assert f"the language model of a {model.config.model_type}" in said
    assert losses_of(tmp_path / "run") == pytest.approx(losses, rel=1e-5)

    after = evaluated(whole, "--checkpoint", tmp_path / "run")
    run(whole, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "text")
    by_itself = AutoModelForCausalLM.from_pretrained(tmp_path / "text", dtype=torch.float32)
    said = run(whole, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "whole", "--into", "model")
    assert model.config.model_type in said
    inside = load(tmp_path / "whole")
    with torch.no_grad():
        assert loss_of(by_itself).item() == pytest.approx(after, rel=1e-5)
        assert loss_of(inside).item() == pytest.approx(after, rel=1e-5)
        assert loss_of(model).item() == pytest.approx(after, rel=1e-4)
    of_images = {name: tensor for name, tensor in load(whole / "model").state_dict().items() if "vis" in name or "projector" in name}
    assert len(of_images) > 5
    assert names_in(tmp_path / "whole") == names_in(whole / "model")
    for name, tensor in of_images.items():
        assert torch.equal(inside.state_dict()[name], tensor), name
    for along in ("preprocessor_config.json", "tokenizer.json", "README.md", "LICENSE"):
        assert (tmp_path / "whole" / along).exists(), along


def test_stretched_positions_go_into_the_whole_model(whole, trained, tmp_path):
    kind = json.loads((whole / "model/config.json").read_text())["model_type"]
    checkpoint, after = trained("--rope_scaling", "proportional:8" if kind == "gemma4" else "linear:8")
    run(whole, "export", "--checkpoint", checkpoint, "--out", tmp_path / "whole", "--into", "model")
    with torch.no_grad():
        assert loss_of(load(tmp_path / "whole")).item() == pytest.approx(after, rel=1e-5)
    assert evaluated(whole, "--model_name_or_path", tmp_path / "whole") == pytest.approx(after, rel=1e-6)


def in_the_older_form(text):
    """A text_config as transformers 4 wrote it."""
    rope = text.pop("rope_parameters")
    if "full_attention" in rope:
        return text | {"rope_theta": rope["full_attention"]["rope_theta"], "rope_local_base_freq": rope["sliding_attention"]["rope_theta"]}
    return text | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}


@pytest.mark.parametrize("scaling", [pytest.param([], marks=pytest.mark.slow), ["--rope_scaling", "linear:8"]])
@pytest.mark.parametrize("begins_from_older", [False, True])
def test_positions_go_into_a_copy_whose_config_has_another_form(whole, trained, tmp_path, scaling, begins_from_older):
    config = json.loads((whole / "model/config.json").read_text())
    if config["model_type"] == "gemma4":
        pytest.skip("there is one form of it")
    shutil.copytree(whole / "model", tmp_path / "older")
    (tmp_path / "older/config.json").write_text(json.dumps(config | {"text_config": in_the_older_form(config["text_config"])}))
    if begins_from_older:
        checkpoint, into = tmp_path / "run", whole / "model"
        train(whole, checkpoint, *scaling, model=tmp_path / "older")
        after = evaluated(whole, "--checkpoint", checkpoint)
    else:
        (checkpoint, after), into = trained(*scaling), tmp_path / "older"
    run(whole, "export", "--checkpoint", checkpoint, "--out", tmp_path / "whole", "--into", into)
    with torch.no_grad():
        assert loss_of(load(tmp_path / "whole")).item() == pytest.approx(after, rel=1e-5)
    assert evaluated(whole, "--model_name_or_path", tmp_path / "whole") == pytest.approx(after, rel=1e-6)


TRAINED_WHOLE = {**dict.fromkeys(MODELS, "embed_tokens,norm"), GEMMA4_EXPERTS: "", GEMMA4_E2B: "input_layernorm"}


@pytest.mark.parametrize(("whole", "modules"), TRAINED_WHOLE.items(), indirect=["whole"])
def test_an_adapter_is_merged_into_the_whole_model_and_one_of_peft_is_read(whole, modules, tmp_path):
    train(whole, tmp_path / "run", "--lora_r", 3, *(["--lora_modules_to_save", modules] if modules else []))
    after = evaluated(whole, "--checkpoint", tmp_path / "run")
    run(whole, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "whole", "--merge", "--into", "model")
    with torch.no_grad():
        assert loss_of(load(tmp_path / "whole")).item() == pytest.approx(after, rel=1e-5)
    kind = json.loads((whole / "model/config.json").read_text())["model_type"]
    assert f"a {kind} that reads images" in run(whole, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "own")
    assert evaluated(whole, "--model_name_or_path", "model", "--adapter", tmp_path / "own") == after
    with torch.no_grad():
        adapted = PeftModel.from_pretrained(load(whole / "model"), tmp_path / "own")
        assert not any("vision" in name for name, _ in adapted.named_modules() if "lora" in name or "modules_to_save" in name)
        assert loss_of(adapted).item() == pytest.approx(after, rel=1e-5)

    torch.manual_seed(3)
    inside = get_peft_model(load(whole / "model"), LoraConfig(r=4, lora_alpha=6, lora_dropout=0.0, target_modules=r".*language_model.*\.(q|v)_proj"))
    with torch.no_grad():
        for name, parameter in inside.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05)
        expected = loss_of(inside).item()
    inside.save_pretrained(tmp_path / "adapter")
    assert evaluated(whole, "--model_name_or_path", "model", "--adapter", tmp_path / "adapter") == pytest.approx(expected, rel=1e-5)


def test_a_plan_says_of_what_it_is(whole):
    said = run(whole, "plan", "--model", whole / "model", "--gpu", "h100-80gb", "--gpus", 1, "--max_seq_length", 64)
    kind = json.loads((whole / "model/config.json").read_text())["model_type"]
    assert f"(the language model of a {kind})" in said


@pytest.mark.parametrize("whole", ["qwen3_5_moe_whole"], indirect=True)
def test_what_cannot_go_into_a_whole_model_is_refused(whole, trained, tmp_path):
    checkpoint, _ = trained()
    make_tiny(tmp_path / "tiny")
    export = ["export", "--checkpoint", checkpoint, "--out", tmp_path / "out"]
    assert "no language model inside" in run(whole, *export, "--into", tmp_path / "tiny", code=78)
    assert "--dtype" in run(whole, *export, "--into", "model", "--dtype", "bfloat16", code=78)
    assert "choose another folder" in run(whole, "export", "--checkpoint", checkpoint, "--out", "model", "--overwrite", "--into", "model", code=78)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("whole", ["gemma3_whole"], indirect=True)
def test_the_ends_of_chats_go_into_the_whole_model(whole, tmp_path):
    """The set says in which token its answers end, as trireme.chats writes it."""
    side = whole / "texts.set.json"
    before = side.read_text()
    side.write_text(json.dumps(json.loads(before) | {"answer_end_tokens": {"a": 97}}))
    try:
        train(whole, tmp_path / "run")
    finally:
        side.write_text(before)
    said = run(whole, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "whole", "--into", "model")
    stops = load(tmp_path / "whole").generation_config.eos_token_id
    assert stops[-1] == 97 and f"eos_token_id is now {stops}" in said
