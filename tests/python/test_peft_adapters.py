"""trireme.parallelize of models with PEFT's adapters: what is right beside prompts, and adapters that need the whole sample, which are refused."""

import pytest
import torch
import trireme
from test_parallelize import compare, make_batch, make_model
from test_whole_batches import alone, no_cache, whole


def test_adapters_that_need_the_whole_sample_are_refused_when_the_block_begins(ranks):
    ranks.run(run_refused, 2)


def run_refused(group):
    import peft

    lora = dict(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
    prompt = dict(cpt_token_ids=[3, 4, 5, 6], cpt_mask=[1, 1, 1, 1], cpt_tokens_type_mask=[1, 2, 3, 4])
    cases = {
        "activated LoRA": peft.LoraConfig(**lora, alora_invocation_tokens=[5, 9]),
        "POLY": peft.PolyConfig(**lora, n_tasks=2),
        "CPT": peft.CPTConfig(task_type="CAUSAL_LM", **prompt, opt_weighted_loss_type="decay", opt_loss_decay_factor=0.95),
    }
    for name, config in cases.items():
        torch.manual_seed(1)
        model = peft.get_peft_model(make_model("llama"), config)
        with pytest.raises(trireme.ConfigError, match=f"got the adapter 'default' of PEFT's {name}.*refused"):
            with trireme.parallelize(model, group, whole_batches=True):
                pass


def test_prompt_tuning_needs_whole_batches(ranks):
    ranks.run(run_prompt_tuning, 2)


def prompts_of(kind):
    import peft

    torch.manual_seed(1)
    if kind == "prompt tuning":
        return peft.get_peft_model(make_model("llama"), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5))
    return peft.get_peft_model(make_model("llama"), peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=5, encoder_hidden_size=16))


def run_prompt_tuning(group):
    model, batch = prompts_of("prompt tuning"), make_batch("right padding", "llama")
    with pytest.raises(trireme.ConfigError, match="prompt tuning.*whole batches"):
        with trireme.parallelize(model, group):
            pass
    with pytest.raises(trireme.ConfigError, match="prompt tuning.*verify the model before get_peft_model"):
        trireme.verify(model, batch, group)
    compare(alone(model, batch), whole(model, batch, group))


def test_prompts_may_be_switched_off_within_the_block(ranks):
    ranks.run(run_switched_off, 2)


def run_switched_off(group):
    """As DPOTrainer does for its reference."""
    batch = make_batch("right padding", "llama")
    truth = make_model("llama")(**batch).loss.item()
    for kind in ("prompt tuning", "p-tuning"):
        model = prompts_of(kind)
        forward = model.base_model.forward
        with trireme.parallelize(model, group, whole_batches=True), torch.no_grad():
            tuned = model(**batch, **no_cache(model)).loss.item()
            with model.disable_adapter():
                plain = model(**batch).loss.item()
            assert model(**batch, **no_cache(model)).loss.item() == tuned != plain
        assert plain == pytest.approx(truth, rel=5e-6)
        assert model.base_model.forward == forward
