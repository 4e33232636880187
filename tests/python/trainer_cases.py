"""What test_trainers.py runs with one process and with several: cases of Trainer, SFTTrainer and DPOTrainer, 20 steps each."""

import warnings

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule

STEPS = 20
VOCABULARY = 64


def make_model(seed=3, **changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    size = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    config = LlamaConfig(**size, num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2, **changes)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    return model


CHAT = (
    "{% for message in messages %}{{ message['role'] }} {% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] }} {% endgeneration %}{% else %}{{ message['content'] }} {% endif %}{% endfor %}"
)


def make_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant"] + [f"w{n}" for n in range(VOCABULARY - 6)]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    made.chat_template = CHAT
    return made


def text(random, least, most):
    return " ".join(f"w{n}" for n in random.integers(0, VOCABULARY - 6, random.integers(least, most)))


def make_rows(kind, rows=96):
    random = np.random.default_rng(5)
    for _ in range(rows):
        if kind == "tokens":  # labels with holes; some rows have few targets, all in one shard
            tokens = random.integers(3, VOCABULARY, random.integers(9, 40)).tolist()
            labels = list(tokens)
            begin, end = sorted(random.integers(0, len(tokens), 2).tolist())
            labels[begin:end] = [-100] * (end - begin)
            yield {"input_ids": tokens, "labels": labels}
        elif kind == "text":
            yield {"text": text(random, 4, 30)}
        elif kind == "chat":
            turn = [("user", text(random, 2, 12)), ("assistant", text(random, 2, 12))] * 2
            yield {"messages": [{"role": role, "content": content} for role, content in turn]}
        elif kind == "completion":
            yield {"prompt": text(random, 4, 20), "completion": " " + text(random, 2, 9)}
        elif kind == "preference":
            yield {"prompt": text(random, 4, 20), "chosen": " " + text(random, 3, 9), "rejected": " " + text(random, 3, 9)}


def write_rows(folder):
    import datasets

    for kind in {kind for _, kind, *_ in CASES.values()}:
        datasets.Dataset.from_list(list(make_rows(kind))).save_to_disk(str(folder / kind))
    make_model().save_pretrained(folder / "model")


def pad(rows):
    """A collator of our own, to the longest row, of any length."""
    longest = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": 0, "labels": -100}
    batch = {name: torch.tensor([row[name] + [fill[name]] * (longest - len(row[name])) for row in rows]) for name in fill}
    batch["attention_mask"] = torch.tensor([[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows])
    return batch


def own_loss(outputs, labels, num_items_in_batch=None):
    """A loss of the user on logits of all tokens."""
    logits, targets = outputs.logits[:, :-1].float(), labels[:, 1:]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    return (losses * 1.5).sum() / num_items_in_batch


def token_accuracy(prediction):
    found, labels = prediction.predictions.argmax(-1)[:, :-1], prediction.label_ids[:, 1:]
    return {"accuracy": float((found == labels)[labels != -100].mean()), "tokens": float((labels != -100).sum()), "rows": float(len(labels))}


def likeliest(logits, labels):
    """Of each token by itself, in two dtypes."""
    return logits.argmax(-1), logits.argmax(-1) == labels


def shares_of_likeliest(prediction):
    (found, same), labels = prediction.predictions, prediction.label_ids
    next_found, next_labels = found[:, :-1], labels[:, 1:]
    return {"accuracy": float((next_found == next_labels)[next_labels != -100].mean()), "same": float(same[labels != -100].sum())}


BY_TOKEN = dict(compute_metrics=shares_of_likeliest, preprocess_logits_for_metrics=likeliest, logits_by_token=True)


def make_lora(**more):
    from peft import LoraConfig

    return LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM", **more)


# name: (class, rows, arguments of its configuration, arguments of the trainer)
CASES = {
    "Trainer": ("Trainer", "tokens", dict(eval_strategy="steps", eval_steps=10, per_device_eval_batch_size=5), {}),
    "Trainer, metrics": ("Trainer", "tokens", dict(eval_strategy="steps", eval_steps=10), dict(compute_metrics=token_accuracy)),
    "Trainer, metrics by token": ("Trainer", "tokens", dict(eval_strategy="steps", eval_steps=10), BY_TOKEN),
    "Trainer, label smoothing": ("Trainer", "tokens", dict(label_smoothing_factor=0.1), {}),
    "Trainer, compute_loss_func": ("Trainer", "tokens", {}, dict(compute_loss_func=own_loss)),
    "Trainer, checkpointing": ("Trainer", "tokens", dict(gradient_checkpointing=True), {}),
    "Trainer, batches of equal cost": ("Trainer", "tokens", dict(train_sampling_strategy="batch_rebalance"), {}),
    "Trainer, by length": ("Trainer", "tokens", dict(train_sampling_strategy="group_by_length"), {}),
    "SFT": ("SFTTrainer", "text", dict(eval_strategy="steps", eval_steps=10), {}),
    "SFT, metrics by token": ("SFTTrainer", "text", dict(eval_strategy="steps", eval_steps=10), BY_TOKEN),
    "SFT, bfd": ("SFTTrainer", "text", dict(packing=True, max_length=57, packing_strategy="bfd"), {}),
    "SFT, wrapped": ("SFTTrainer", "text", dict(packing=True, max_length=41, packing_strategy="wrapped"), {}),
    "SFT, assistant only": ("SFTTrainer", "chat", dict(assistant_only_loss=True), {}),
    "SFT, completion only": ("SFTTrainer", "completion", {}, {}),
    "SFT, dft": ("SFTTrainer", "completion", dict(loss_type="dft"), {}),
    "SFT, LoRA": ("SFTTrainer", "completion", {}, dict(peft_config=dict(modules_to_save=["lm_head"]))),
    "DPO": ("DPOTrainer", "preference", dict(eval_strategy="steps", eval_steps=10), dict(ref_model=True)),
    "DPO, LoRA": ("DPOTrainer", "preference", dict(loss_type=["ipo"]), dict(peft_config={})),
    "DPO, reference before": ("DPOTrainer", "preference", dict(precompute_ref_log_probs=True), dict(ref_model=True)),
}


def run(case, folder, sp_size=None, micro_batches=2, steps=STEPS, resume=None, second=False, evaluate=False, **options):
    """20 steps of a case; what it logged, its gradients of the first and last step, and its weights in the end.

    sp_size: 0 is the trainer as it is. micro_batches: of a step, over data ranks and accumulation. second: another trainer is made
    after the arguments of this one. evaluate: before it trains.
    """
    import datasets
    import transformers
    import trl
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    AcceleratorState._reset_state()
    name, kind, settings, more = CASES[case]
    library = transformers if name == "Trainer" else trl
    trainer_class = getattr(library, name)
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    more = dict(more)
    by_token = more.pop("logits_by_token", False)
    if sp_size:
        from trireme.hf import with_sequence_parallel

        trainer_class = with_sequence_parallel(trainer_class, sp_size=sp_size, logits_by_token=by_token)
    settings = dict(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=micro_batches // (world // max(sp_size or 1, 1)),
        learning_rate=0.05,
        lr_scheduler_type="linear",
        warmup_steps=2,
        optim="sgd",
        max_grad_norm=0.7,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=11,
        **settings,
    )
    settings.update(options)
    if name == "Trainer":
        more["data_collator"] = pad
        settings.setdefault("remove_unused_columns", False)
    else:
        more["processing_class"] = make_tokenizer()
        settings["bf16"] = False
        settings.setdefault("gradient_checkpointing", False)
    if "peft_config" in more:
        more["peft_config"] = make_lora(**more["peft_config"])
    if more.get("ref_model"):
        more["ref_model"] = make_model(seed=4)
    rows = datasets.load_from_disk(str(folder.parent / kind))  # on disk, so that ranks share what trl keeps beside it
    configuration = {"Trainer": "TrainingArguments", "SFTTrainer": "SFTConfig", "DPOTrainer": "DPOConfig"}[name]
    earlier = getattr(library, configuration)(**settings) if second else None
    arguments = getattr(library, configuration)(**settings)
    if arguments.fsdp:  # Accelerate has FSDP for accelerators alone; torch has it over gloo too
        arguments.distributed_state._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    # After the arguments of ZeRO-3, a model that is read is in parts from the beginning.
    model = transformers.LlamaForCausalLM.from_pretrained(folder.parent / "model", attn_implementation="eager")
    more.update(model=model, train_dataset=rows.select(range(80)), eval_dataset=rows.select(range(80, 91)))
    if second:
        trainer_class(args=earlier, **more)
    trainer = trainer_class(args=arguments, **more)
    if sp_size and torch.distributed.get_rank():
        torch.manual_seed(100 + torch.distributed.get_rank())  # what ranks draw for themselves differs
    gradients = Gradients(steps)
    trainer.add_callback(gradients.callback())
    if evaluate:
        trainer.evaluate()
        trainer.state.log_history.clear()
    trainer.train(resume_from_checkpoint=resume)
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    assert isinstance(model, FSDPModule) == bool(arguments.fsdp)
    return {"log": trainer.state.log_history, "gradients": gradients.found, "weights": weights_of(model)}


def sizes(folder):
    """Of two ranks: the sizes that a trainer takes where its arguments are another class's, or older than another Accelerator."""
    import datasets
    import transformers
    import trl
    from trireme import ConfigError
    from trireme.hf import ParallelismConfig, with_sequence_parallel

    def arguments(**settings):
        return transformers.TrainingArguments(str(folder), report_to="none", use_cpu=True, **settings)

    more = dict(train_dataset=datasets.load_from_disk(str(folder.parent / "text")), processing_class=make_tokenizer())
    sft = with_sequence_parallel(trl.SFTTrainer)(make_model(), arguments(parallelism_config=ParallelismConfig(sp_size=2, sp_ring=2)), **more)
    older = arguments()
    with_sequence_parallel(transformers.Trainer, sp_size=2)(make_model(), arguments())
    try:
        with_sequence_parallel(transformers.Trainer, sp_size=2, sp_ring=2)(make_model(), older)
        words = ""
    except ConfigError as error:
        words = str(error)
    return {"ring": sft.args.parallelism_config.sp_ring, "words": words}


def told_of_logits(folder):
    """Of two ranks: what an evaluation says of the logits that it gathers, in two evaluations of one run, and by token."""
    import datasets
    import transformers
    import trireme.whole_batches
    from trireme.hf import with_sequence_parallel

    trireme.whole_batches.LOGITS_TOLD_BYTES = 10000
    rows = datasets.load_from_disk(str(folder.parent / "tokens")).select(range(2))
    more = dict(train_dataset=rows, eval_dataset=rows, data_collator=pad, compute_metrics=lambda _: {})
    settings = dict(report_to="none", use_cpu=True, remove_unused_columns=False, max_steps=2, eval_strategy="steps", eval_steps=1, disable_tqdm=True)
    found = []
    for by_token in (False, True):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            arguments = transformers.TrainingArguments(str(folder), **settings)
            trainer_class = with_sequence_parallel(transformers.Trainer, sp_size=2, logits_by_token=by_token)
            trainer_class(make_model(), arguments, preprocess_logits_for_metrics=likeliest, **more).train()
        found.append([str(warning.message) for warning in told if "gathers logits" in str(warning.message)])
    return found


def lengths_by_token(folder):
    """Of two data ranks whose batches differ in length: what a hook's bool, uint8 and int64 are after a plain trainer, and by token."""
    import transformers
    from accelerate.state import AcceleratorState
    from trireme.hf import with_sequence_parallel

    def hook(logits, labels):
        return logits.argmax(-1) == labels, logits.argmax(-1).to(torch.uint8), logits.argmax(-1)

    rows = [{"input_ids": list(range(3, 3 + tokens)), "labels": list(range(3, 3 + tokens))} for tokens in (9, 14)]
    settings = dict(report_to="none", use_cpu=True, remove_unused_columns=False, per_device_eval_batch_size=1, disable_tqdm=True)
    found = []
    for trainer_class in (transformers.Trainer, with_sequence_parallel(transformers.Trainer, sp_size=1, logits_by_token=True)):
        AcceleratorState._reset_state()
        arguments = transformers.TrainingArguments(str(folder), **settings)
        trainer = trainer_class(make_model(), arguments, eval_dataset=rows, data_collator=pad, preprocess_logits_for_metrics=hook)
        found.append(trainer.predict(rows).predictions)
    return found


def under_fsdp_1(folder):
    """Of two ranks: in which words a trainer refuses such a model."""
    import transformers
    from trireme import ConfigError
    from trireme.hf import with_sequence_parallel

    model = torch.distributed.fsdp.FullyShardedDataParallel(make_model(), use_orig_params=True, device_id=torch.device("cpu"))
    arguments = transformers.TrainingArguments(str(folder), report_to="none", use_cpu=True)
    trainer = with_sequence_parallel(transformers.Trainer, sp_size=2)(model, arguments, train_dataset=[{"input_ids": [3, 4], "labels": [3, 4]}] * 8)
    try:
        trainer.train()
    except ConfigError as error:
        return [str(error)]
    return []


OTHERS = {"sizes": sizes, "told of logits": told_of_logits, "lengths by token": lengths_by_token, "under FSDP 1": under_fsdp_1}


def weights_of(model):
    if hasattr(model, "module"):
        model = model.module
    return {uncompiled(name): whole(parameter) for name, parameter in model.named_parameters() if parameter.requires_grad}


def uncompiled(name):
    return name.removeprefix("_orig_mod.")


def whole(tensor):
    tensor = tensor.detach()
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.float().numpy().copy()


class Gradients:
    """Of the first and the last step, before they are clipped."""

    def __init__(self, steps):
        self.steps, self.found = steps, {}

    def callback(self):
        from transformers import TrainerCallback

        outer = self

        class Keep(TrainerCallback):
            def on_pre_optimizer_step(self, arguments, state, control, model=None, **_):
                if state.global_step + 1 in (1, outer.steps):
                    for name, parameter in model.named_parameters():
                        if parameter.requires_grad and parameter.grad is not None:
                            outer.found[f"{state.global_step}.{uncompiled(name)}"] = whole(parameter.grad)

        return Keep()
