"""Fine-tuning on prompts and their completions, and on chats: the engine's loss and its step of all samples are those of Transformers with labels of
-100 on the prompts, a document at a time, for every packing that keeps documents whole, on one rank and on two that share each sample.
"""

import json
import math
import random
import shutil

import pytest
import torch
import trireme
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from program import END_OF_TEXT, make_tiny, run

LENGTH = 96
RATE = 0.5


def make_documents():
    """Pairs of bytes: prompts longer and shorter than their completions, none at all, completions of one token and of none."""
    chance = random.Random(5)
    lengths = [(10, 3), (60, 30), (1, 40), (0, 25), (80, 1), (33, 0), (5, 5), (47, 11), (2, 90), (70, 20), (18, 60)]
    return [["".join(chance.choice("abcdef ghi?\n") for _ in range(count)) for count in pair] for pair in lengths]


@pytest.fixture(scope="module")
def tuning(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompts")
    make_tiny(folder / "model")
    documents = make_documents()
    lines = [json.dumps({"prompt": prompt, "completion": completion}) for prompt, completion in documents]
    lines.insert(4, json.dumps({"text": "Every token of this line is predicted."}))
    documents.insert(4, ["", "Every token of this line is predicted."])
    (folder / "qa.jsonl").write_text("\n".join(lines))
    run(folder, "tokenize", "--tokenizer", "model", "--input", "qa.jsonl", "--output", "qa")
    return folder, documents


def reference_loss(model, documents):
    """The mean over all completions' tokens and ends of text."""
    total, count = 0, 0
    for prompt, completion in documents:
        ids = torch.tensor([[*prompt.encode(), *completion.encode(), END_OF_TEXT]])
        labels = ids.clone()
        labels[0, : len(prompt)] = -100
        targets = int((labels[0, 1:] != -100).sum())
        total = total + model(ids, labels=labels).loss * targets
        count += targets
    return total / count, count


@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_the_loss_is_that_of_transformers_with_the_prompts_labels_ignored(tuning, packing):
    folder, documents = tuning
    with torch.no_grad():
        loss, targets = reference_loss(AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32), documents)
    for data in ("qa", "qa.jsonl"):
        got = json.loads(run(folder, "eval", "loss", "--model_name_or_path", "model", "--eval_file", data, "--packing", packing,
                             "--max_seq_length", LENGTH, "--json"))  # fmt: skip
        assert got["target_tokens"] == targets
        assert got["loss"] == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize(("packing", "ranks"), [("none", 1), ("none", 2), ("best_fit", 1), ("best_fit", 2)])
def test_a_step_of_all_samples_is_that_of_transformers(tuning, tmp_path, packing, ranks):
    folder, documents = tuning
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    before = {name: value.clone() for name, value in model.named_parameters()}
    loss, targets = reference_loss(model, documents)
    loss.backward()
    evaluated = run(folder, "eval", "loss", "--model_name_or_path", "model", "--eval_file", "qa", "--packing", packing,
                    "--max_seq_length", LENGTH, "--json")  # fmt: skip
    samples = json.loads(evaluated)["samples"]
    lengths = [len(prompt) + len(completion) + 1 for prompt, completion in documents]
    assert samples == len(documents) if packing == "none" else math.ceil(sum(lengths) / LENGTH) <= samples < len(documents)
    launch = ["launch", "--nproc_per_node", ranks, "--"] if ranks > 1 else []
    said = run(folder, *launch, "train", "--model_name_or_path", "model", "--train_file", "qa", "--output_dir", tmp_path / "run",
               "--packing", packing, "--max_seq_length", LENGTH, "--gradient_accumulation_steps", samples, "--max_steps", 1,
               "--per_device_train_batch_size", 1, "--optim", "sgd", "--learning_rate", RATE, "--lr_scheduler_type", "constant", "--weight_decay", 0, "--max_grad_norm", 0,
               "--sp", ranks, "--device", "cpu", "--threads", 1, "--peak_tflops", 1, "--report_to", "none")  # fmt: skip
    prompt_tokens = sum(len(prompt) for prompt, _ in documents)
    assert f"prompts: {prompt_tokens} of {sum(lengths)} tokens are read and not predicted\n" in said
    step = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    assert step["target_tokens"] == targets and step["loss"] == pytest.approx(loss.item(), rel=1e-6)
    run(folder, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "trained", "--dtype", "float32")
    trained = load_file(tmp_path / "trained/model.safetensors")
    for name, parameter in model.named_parameters():
        if name not in trained:
            continue  # a head that is the embedding
        gradient = (before[name] - trained[name]) / RATE
        assert (gradient - parameter.grad).abs().max() <= 2e-4 * parameter.grad.abs().max(), name


def answered(folder, *words, ranks=1):
    launch = ["launch", "--nproc_per_node", ranks, "--"] if ranks > 1 else []
    said = run(folder, *launch, "eval", "answers", "--model_name_or_path", "model", "--threads", 1, "--json", *words)
    return json.loads("\n".join(line.removeprefix("[rank 0] ") for line in said.splitlines()))


@pytest.fixture(scope="module")
def greedy(tuning):
    """A set of answers, two of three as greedy generation writes them, and what `eval answers` is to find."""
    folder, _ = tuning
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    chance = random.Random(3)
    documents, expected = [], {"documents": 0, "exact": 0, "target_tokens": 0, "right": 0}
    for number in range(12):
        prompt, count = [chance.randrange(256) for _ in range(chance.choice([3, 20, 50]))], chance.choice([1, 2, 9])
        answer = model.generate(torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None)
        answer = answer[0, len(prompt) :].tolist()
        if number % 3 == 2:  # not what it writes, in one token
            wrong = chance.randrange(count)
            answer[wrong] = (answer[wrong] + 1) % 256
        with torch.no_grad():
            likely = model(torch.tensor([prompt + answer])).logits.argmax(-1)[0, len(prompt) - 1 : -1].tolist()
        documents.append((prompt + answer, [0] * len(prompt) + [1] * count))
        expected["documents"] += 1
        expected["exact"] += number % 3 != 2
        expected["target_tokens"] += count
        expected["right"] += sum(a == b for a, b in zip(answer, likely, strict=True))
    trireme.write_set(folder / "greedy", documents, model.config.vocab_size)
    return expected


@pytest.mark.parametrize("words", [(), ("--packing", "none")])
@pytest.mark.parametrize("sharing", [(), (1,), (2,)])
def test_an_answer_is_exact_if_greedy_generation_writes_it(tuning, greedy, words, sharing):
    folder, _ = tuning
    shared = ("--sp", *sharing) if sharing else ()
    got = answered(folder, "--eval_file", "greedy", "--max_seq_length", 64, *words, *shared, ranks=2 if sharing else 1)
    assert {name: got[name] for name in ("documents", "exact", "target_tokens")} == {name: greedy[name] for name in ("documents", "exact", "target_tokens")}
    assert got["token_accuracy"] == pytest.approx(greedy["right"] / greedy["target_tokens"])
    assert sum(row["documents"] for row in got["by_length"]) == 12


def test_answers_that_would_lose_their_prompts_are_refused(tuning):
    folder, _ = tuning

    def refused(code, *words):
        return run(folder, "eval", "answers", "--model_name_or_path", "model", *words, code=code)

    assert "the longest document has 93 tokens" in refused(78, "--eval_file", "qa", "--max_seq_length", 92)
    assert "--packing documents cuts documents" in refused(78, "--eval_file", "qa", "--packing", "documents")
    (folder / "plain.txt").write_text("Nothing is asked here.")
    assert "has no prompts" in refused(65, "--eval_file", "plain.txt")


def test_needles_are_asked_at_every_length_and_depth(tuning):
    folder, _ = tuning
    (folder / "hay.txt").write_text("Grass and straw. " * 30)
    words = ["needles", "--model_name_or_path", "model", "--haystack", "hay.txt", "--lengths", "200,1k", "--depths", 3, "--samples", 2, "--json"]
    found = json.loads(run(folder, "eval", *words))
    assert [row["tokens"] for row in found] == [200, 1024]
    for row in found:
        assert [depth["depth"] for depth in row["by_depth"]] == [0, 0.5, 1]
        assert row["documents"] == 6 and row["target_tokens"] == 6 * len(" 1234567")
        assert all(depth["documents"] == 2 for depth in row["by_depth"])
    assert json.loads(run(folder, "eval", *words)) == found
    assert json.loads(run(folder, "eval", *words, "--seed", 1))[0]["loss"] != found[0]["loss"]
    assert json.loads(run(folder, "eval", *words, "--distractors", 1))[0]["loss"] != found[0]["loss"]


def test_a_run_says_where_answers_lose_their_prompts(tuning, tmp_path):
    folder, _ = tuning

    def said(*more):
        return run(folder, "train", "--model_name_or_path", "model", "--train_file", "qa", "--output_dir", tmp_path / "-".join(more), "--max_steps",
                   1, "--device", "cpu", "--threads", 1, "--peak_tflops", 1, "--report_to", "none", *more)  # fmt: skip

    assert "goes on without its prompt with --packing documents; best_fit keeps documents whole" in said("--max_seq_length", "64")
    cut = said("--max_seq_length", "64", "--packing", "best_fit")
    assert "the longest has 93: each is cut into several, and its answers lose their prompts; --long_documents skip" in cut
    left_out = said("--max_seq_length", "64", "--packing", "best_fit", "--long_documents", "skip")
    assert "the longest has 93: they are left out" in left_out and "lose" not in left_out


CHATS = [
    ["Who?", "I am.", "And then?", "Nothing more."],
    ["A long question " + "x" * 70, "Short."],
    ["Short?", "A long answer " + "y" * 60],
    ["One", "a", "two", "b", "three", "c"],
]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture(scope="module")
def chats(tuning):
    folder, _ = tuning
    tokenizer = AutoTokenizer.from_pretrained(folder / "model", eos_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    rows = [{"messages": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(chat)]} for chat in CHATS]
    return tokenizer, trireme.tokenize_chats(tokenizer, rows, folder / "chats")


@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_the_loss_of_chats_is_that_of_what_the_assistant_says(tuning, chats, packing):
    folder, _ = tuning
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    total, count = 0, 0
    for chat in CHATS:
        ids, labels = [], []
        for i, text in enumerate(chat):
            header = f"<{('user', 'assistant')[i % 2]}>".encode()
            said = [*text.encode(), END_OF_TEXT]
            ids += [*header, *said, *b"\n"]
            labels += [-100] * len(header) + (said if i % 2 else [-100] * len(said)) + [-100]
        targets = sum(label != -100 for label in labels)
        with torch.no_grad():
            total += model(torch.tensor([ids]), labels=torch.tensor([labels])).loss.item() * targets
        count += targets
    got = json.loads(run(folder, "eval", "loss", "--model_name_or_path", "model", "--eval_file", "chats", "--packing", packing,
                         "--max_seq_length", 128, "--json"))  # fmt: skip
    assert got["target_tokens"] == count == chats[1].target_tokens
    assert got["loss"] == pytest.approx(total / count, rel=1e-6)


def test_a_set_of_chats_knows_its_tokenizer(tuning, chats, tmp_path):
    folder, _ = tuning
    of_chats, of_text = (json.loads((folder / f"{name}.set.json").read_text()) for name in ("chats", "qa"))
    assert {name for name in of_text if of_chats[name] != of_text[name]} == {"tokenizer", "tokenizer_sha256", "end_of_text_appended", "documents", "tokens", "prompt_tokens"}
    shutil.copytree(folder / "model", tmp_path / "other")
    file = tmp_path / "other/tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tokenizer))
    refused = run(folder, "eval", "loss", "--model_name_or_path", tmp_path / "other", "--eval_file", "chats", "--max_seq_length", 64, code=78)
    assert "mean other tokens" in refused
