"""Models of a few shapes, and runs of trireme train that measure what lies around the steps."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from measuring import BINARY

SHAPES = {
    "1b": dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
               vocab_size=32000),
    "small": dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
                  vocab_size=32000),
    "tiny": {},
}


def run(*words):
    done = subprocess.run([BINARY, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout[-2000:]}")


def train_words(folder, out, ranks, steps, length, *flags):
    """Of a run of `steps` steps, of `ranks` ranks that share each sample."""
    return ["launch", "--nproc_per_node", ranks, "--", "train", "--model_name_or_path", folder / "model", "--train_file",
            folder / "tokens.txt", "--output_dir", out, "--max_steps", steps, "--max_seq_length", length, "--ulysses", ranks,
            "--per_device_train_batch_size", 1, "--threads", max(1, len(os.sched_getaffinity(0)) // ranks), "--report_to",
            "none", "--packing", "concat", "--peak_tflops", 1, *flags]


def records_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def first_record(words, out):
    """Of a run that is then killed: it would save a checkpoint, which takes long and is not what is measured."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([BINARY, *map(str, words)], stdout=log, stderr=subprocess.STDOUT)
        while not (out / "metrics.jsonl").exists() or not records_of(out):
            if process.poll() is not None:
                log.seek(0)
                sys.exit(f"bench: {' '.join(map(str, words))} ended with {process.returncode}:\n{log.read()[-2000:]}")
            time.sleep(0.2)
        process.kill()  # its ranks end with it
        process.wait()
    return records_of(out)[0]


def write_tokens(folder):
    (folder / "tokens.txt").write_text("".join(chr(97 + i * i % 26) for i in range(200_000)))


def make_shape(folder, shape, *flags):
    """The model of a shape, in `folder`/model."""
    shutil.rmtree(folder / "model", ignore_errors=True)
    run("init", "--preset", "tiny", "--out", folder / "model", *flags,
        *(word for key, value in SHAPES[shape].items() for word in ("--set", f"{key}={value}")))
