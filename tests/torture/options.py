"""Options that change no number: how ranks share the work, and what is kept, offloaded or tiled; half of the runs go on with others.

A random small model trains for four steps on one rank with attention by the reference, then as random options say. Losses,
norms, rates and tokens of all steps are the same, but for the rounding of fp32.
"""

import json
import shutil

from training_run import exit_of, start_marked

STEPS, SAVE_EVERY = 4, 2
END_SECONDS = 120
LOSS_TOLERANCE, NORM_TOLERANCE = 3e-5, 1e-3
HEADS = [(4, 2, 16), (4, 4, 16), (6, 3, 8), (6, 2, 16), (5, 1, 16), (8, 2, 8), (4, 1, 32), (7, 7, 8)]  # q, kv, width


def ended(arena, *words):
    """The exit code of the program, and its output's end."""
    log = arena.folder / "options.log"
    with open(log, "wb") as output:
        process = start_marked([arena.binary, *words], arena.mark, output, {"TMPDIR": str(arena.temporary)})
    code = exit_of(process, END_SECONDS)
    if code is None:
        arena.end_all()
    return code, log.read_text(errors="replace")[-600:]


def draw_model(arena, random, folder):
    preset = random.choice(["tiny", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3", "tiny-mixtral", "tiny-qwen3-moe",
                            "tiny-ministral3", "tiny-gemma2", "tiny-gemma4", "tiny-gemma4-e2b"])
    heads, kv_heads, width = random.choice(HEADS)
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "num_hidden_layers": random.choice([1, 2, 3]),
             "hidden_size": heads * width, "intermediate_size": random.choice([40, 100, 177])}
    if preset == "tiny-gemma3":
        sizes |= {"head_dim": width, "query_pre_attn_scalar": random.choice([width, 24]),
                  "sliding_window_pattern": random.choice([2, 3])}
    if preset == "tiny-gemma2":
        sizes |= {"head_dim": width, "query_pre_attn_scalar": random.choice([width, 24]),
                  "attn_logit_softcapping": random.choice([1.0, 50.0, "null"])}
    if preset == "tiny-gemma4":
        types = [random.choice(["sliding_attention", "full_attention"]) for _ in range(sizes["num_hidden_layers"])]
        sizes |= {"head_dim": width, "global_head_dim": random.choice([width, 2 * width, 6]), "attention_k_eq_v": random.choice(["true", "false"]),
                  "layer_types": json.dumps(types)}
        if sizes["attention_k_eq_v"] == "true":
            sizes["num_global_key_value_heads"] = 1
    if preset == "tiny-gemma4-e2b":
        layers = random.choice([3, 4, 5])
        sharing = random.choice([1, layers - 2])
        types = ["sliding_attention", "full_attention"] + random.choices(["sliding_attention", "full_attention"], k=layers - 3) + ["full_attention"]
        sizes |= {"num_hidden_layers": layers, "head_dim": width, "global_head_dim": random.choice([width, 2 * width]),
                  "layer_types": json.dumps(types), "num_kv_shared_layers": sharing, "hidden_size_per_layer_input": random.choice([3, 16]),
                  "use_double_wide_mlp": random.choice(["true", "false"])}
    if preset == "tiny-mixtral":
        sizes |= {"num_local_experts": random.choice([2, 3, 7]), "num_experts_per_tok": random.choice([1, 2]), "head_dim": width}
    if preset == "tiny-qwen3-moe":
        sizes |= {"num_experts": random.choice([3, 8]), "num_experts_per_tok": random.choice([1, 3]),
                  "moe_intermediate_size": random.choice([8, 40]), "norm_topk_prob": random.choice(["true", "false"])}
        del sizes["intermediate_size"]
    if preset in ("tiny-qwen3", "tiny-qwen3-moe"):
        sizes |= {"hidden_size": 64, "head_dim": width}
    if preset in ("tiny-mistral", "tiny-gemma2", "tiny-gemma3", "tiny-gemma4", "tiny-gemma4-e2b"):
        sizes["sliding_window"] = random.choice([7, 32, 50, 256])
    code, said = ended(arena, "init", "--preset", preset, "--out", folder, "--seed", random.randrange(99), "--set",
                       *[f"{name}={value}" for name, value in sizes.items()])
    assert code == 0, said
    return heads


def write_documents(random, file):
    with open(file, "w") as out:
        for _ in range(400):
            words = random.choice([1, 3, 10, 30, 60, 120])
            text, prompt = (" ".join(f"w{random.randrange(1000)}" for _ in range(count)) for count in (words, random.choice([0, 0, 5, 40])))
            out.write(json.dumps({"prompt": prompt, "completion": text} if prompt else {"text": text}) + "\n")


def shared_by_ranks(random, heads, samples):
    """(ranks, words) of a run that takes so many samples a step."""
    found = []
    for ranks in (1, 2, 3, 4):
        for ulysses in range(1, min(ranks, heads) + 1):
            for ring in range(1, ranks // ulysses + 1):
                groups = ranks // (ulysses * ring)
                if ranks == ulysses * ring * groups and samples % groups == 0:
                    found.append((ranks, ulysses, ring, samples // groups))
    ranks, ulysses, ring, of_group = random.choice(found)
    micro = random.choice([n for n in range(1, of_group + 1) if of_group % n == 0])
    words = ["--ulysses", ulysses, "--ring", ring, "--per_device_train_batch_size", micro,
             "--gradient_accumulation_steps", of_group // micro]
    if ring > 1:
        words += ["--ring_method", random.choice(["ring", "gather"])]
    return ranks, words, of_group // micro


def draw_options(random, heads, samples, optimizer, clipped, folder):
    """(ranks, words) that the program does not refuse."""
    ranks, words, accumulation = shared_by_ranks(random, heads, samples)
    places = ["none", "none", "cpu", "disk"]
    zero, recompute = random.choice([0, 1, 2, 3]), random.choice(["auto", "none", "keep_attention", "full"])
    words += ["--zero", zero, "--recompute", recompute]
    if zero == 3:
        words += ["--offload_params", random.choice(places)]
    if optimizer != "sgd":  # which has nothing that could be offloaded
        words += ["--offload_optimizer", random.choice(places)]
    if recompute in ("keep_attention", "none"):
        words += ["--keep_fraction", random.choice([0, 0.3, 0.5, 1])]
    kept = random.choice(["more", "less"])
    if recompute == "keep_attention" and kept == "more":
        words += ["--keep_qkv_fraction", random.choice([0.3, 1]), "--keep_mlp_fraction", random.choice([0, 0.5])]
    elif recompute in ("full", "keep_attention"):
        words += ["--checkpoint_every", random.choice([1, 2, 3]), "--offload_activations", random.choice(places)]
    if not clipped and accumulation == 1 and random.random() < 0.5:
        words += ["--update_in_backward"]
    if "disk" in words:
        words += ["--offload_dir", folder / "disk"]
    for option in ("--tile_tokens", "--logits_tile_tokens"):
        words += [option, random.choice([0, 1, 7, 33, 100])]
    words += random.choice([[], ["--save_in_background"]])
    return ranks, words + random.choice([[], ["--save_minutes", random.choice(["1e-9", "0.002"])]])  # after each step; after some


def records(folder):
    """(step, whether an evaluation) -> loss, norm, and what is the same to the bit."""
    found = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        exact = [record.get(name) for name in ("target_tokens", "tokens_seen", "learning_rate")]
        loss = record.get("loss", record.get("eval_loss"))
        found[record["step"], "eval_loss" in record] = (loss, record.get("grad_norm", 0), exact)
    return found


def differs(expected, found):
    for key, (loss, norm, exact) in expected.items():
        other = found.get(key)
        if (other is None or other[2] != exact or abs(other[0] - loss) > LOSS_TOLERANCE * abs(loss)
                or abs(other[1] - norm) > NORM_TOLERANCE * abs(norm)):
            return f"step {key[0]}: {other}, on one rank {expected[key]}"
    return None


def attack(arena, random, verdict):
    folder = arena.folder / "options"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "disk").mkdir(parents=True)
    heads = draw_model(arena, random, folder / "model")
    write_documents(random, folder / "documents.jsonl")
    samples, optimizer, norm = random.choice([2, 4, 6, 12]), random.choice(["adamw_torch", "sgd"]), random.choice([0, 0.1, 1])
    train = ["train", "--model_name_or_path", folder / "model", "--train_file", folder / "documents.jsonl",
             "--max_seq_length", random.choice([16, 61, 97, 128, 200, 256]),
             *random.choice([["--packing", "documents"], ["--packing", "concat"], ["--packing", "none", "--long_documents", random.choice(["cut", "truncate"])],
                             ["--packing", "best_fit"]]), "--validation_split_percentage", random.choice([0, 5]),
             "--optim", optimizer, "--max_grad_norm", norm, "--learning_rate", "3e-3", "--seed", random.randrange(9),
             "--max_steps", STEPS, "--save_steps", SAVE_EVERY, "--report_to", "none", "--peak_tflops", "1",
             "--threads", "1", "--device", "cpu"]
    if random.random() < 0.4:
        train += ["--lora_r", random.choice([1, 3, 16]), "--lora_target_modules",
                  random.choice(["all-linear", "q_proj,v_proj", "k_proj,o_proj"]), *random.choice([[], ["--use_rslora"]]),
                  *random.choice([[], ["--lora_modules_to_save", random.choice(["model.norm", "input_layernorm,model.norm"])]])]
    code, said = ended(arena, *train, "--output_dir", folder / "plain", "--per_device_train_batch_size", samples,
                       "--recompute", "none", "--attention", "reference")
    assert code == 0, said
    tried = []
    for more in ([], ["--resume_from_checkpoint", "true"])[:random.choice([1, 2])]:
        if more:
            shutil.rmtree(folder / "run" / "checkpoints" / f"step-{STEPS}")
        ranks, words = draw_options(random, heads, samples, optimizer, norm > 0, folder)
        tried.append(" ".join(str(word) for word in [f"{ranks} ranks", *words]))
        code, said = ended(arena, "launch", "--nproc_per_node", ranks, "--", *train, "--output_dir", folder / "run", *words, *more)
        what = ", then ".join(tried)
        if code != 0:  # a refusal is wrong too: the options above are such as stand together
            verdict.wrong.append(f"exit {code}: {what}: {said}")
            return what
    if difference := differs(records(folder / "plain"), records(folder / "run")):
        verdict.wrong.append(f"{difference}: {' '.join(str(word) for word in train)}: {what}")
    return what
