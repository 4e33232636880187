"""Every command in an indented block of README and docs: those of `trireme` run as they are written, at toy scale, in the
order of their page, and what the runs report is on docs/metrics.md; those of `./dev` name a subcommand and options that exist. A command of another program stands in
ELSEWHERE, or this test fails.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRIREME = os.environ.get("TRIREME_BINARY", str(ROOT / "build/cpu/bin/trireme"))
LIMIT_SECONDS = 600  # of a command that hangs
FIXTURE = ROOT / "tests/parity/fixtures/llama"  # a model, and reference.safetensors as tools/hf_reference.py writes it
HUB_MODEL = "meta-llama/Llama-3.1-8B"
HUB_WHOLE_MODEL = "google/gemma-3-12b-pt"  # which reads images too
PAGES = ["README.md", "CONTRIBUTING.md", "tests/README.md", "docs/benchmarks/README.md",
         *sorted(str(page.relative_to(ROOT)) for folder in ("docs", "docs/methods") for page in (ROOT / folder).glob("*.md"))]
ELSEWHERE = {"hf", "python", "mkdir", "tar", "if", "export", "mpirun", "(umask", ".deps/python/bin/python", "python3", "trireme-0.1.0-cuda-linux-x86_64/bin/trireme",
             "/tmp/t/trireme-*/share/trireme/bench/gpu/run"}
COMMAND = re.compile(r"^(\./dev|trireme|[./\w-]*/(trireme|run|python)|hf|mkdir|tar|if|export|mpirun|srun|torchrun|python3?|\(umask)( |$)")
TOY_RUN = "--model_name_or_path DIR --train_file /data/code --context_stages 64:2"


def commands(page):
    """The commands of a page, continued lines joined, comments left out."""
    lines = iter((ROOT / page).read_text().split("\n"))
    before = ""
    for line in lines:
        text = line.strip()
        if line.startswith("    ") and COMMAND.match(text) and not before.strip().startswith(("-", "*")):
            while text.endswith("\\"):
                text = text[:-1] + next(lines).strip()
            if not text.startswith("trireme launch: "):  # what the launcher prints
                yield text.split("  #")[0].split("   ")[0].strip()
        before = line


def toy(text):
    """The same command for two ranks, a tiny model and tens of tokens."""
    text = re.sub(r"(\d+)k:(\d+)", lambda m: f"{16 * min(4, int(m[1]))}:{min(2, int(m[2]))}", text)  # stages
    text = re.sub(r"\b\d+k\b", "64", text)
    text = text.replace("--tokens 2g", "--tokens 300000")
    text = re.sub(r"--(nproc_per_node|sp|ranks_as_threads|ulysses) [48]\b", r"--\1 2", text)
    if "--ring 2" in text:
        text = text.replace("--nproc_per_node 2", "--nproc_per_node 4")
    text = text.replace("--lengths 64,64,64", "--lengths 200,300 --depths 2")  # a needle and its question have some 150 bytes
    text = text.replace("--heads 32 --kv_heads 8 --head_dim 128", "--heads 4 --kv_heads 2 --head_dim 8")
    text = text.replace("bench hardware", "bench hardware --seconds 0.2").replace("bench step", "bench step --steps 2 --warmup 1")
    text = text.replace(" validate ", " validate --peak_tflops 1 --least_matmul_share 0 ").replace("bench matmul", "bench matmul --seconds 0.1")
    text = text.replace("--simulate_ranks 64 --predict h100-80gb", "--simulate_ranks 2 --predict two.json")  # the page's own profile, of a CPU
    return text.replace("train ...", f"train {TOY_RUN} --output_dir /runs/b{len(text)}").replace(" ... ", f" {TOY_RUN.split(' ', 2)[2]} ")


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="trireme-docs-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.run_trireme("trireme init --preset tiny --out tiny --seed 1")
        cls.put_into_hub(HUB_MODEL, cls.folder / "tiny")
        cls.run_trireme("trireme init --preset tiny-gemma3 --out whole --seed 1")
        text = json.loads((cls.folder / "whole/config.json").read_text())
        (cls.folder / "whole/config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": {}}))
        cls.put_into_hub(HUB_WHOLE_MODEL, cls.folder / "whole")
        shutil.copy(FIXTURE / "reference.safetensors", cls.folder)
        for name in ("repositories", "web"):
            shutil.copytree(ROOT / "docs/methods", cls.folder / "data" / name)
        (cls.folder / "stages.yaml").write_text("- {max_seq_length: 16, steps: 2}\n- {max_seq_length: 64, tokens: 1k, rope_scaling: yarn:4, sp: 2, zero: 3}\n")
        (cls.folder / "answers.jsonl").write_text('{"prompt": "When does it end?", "completion": "On 31 March."}\n' * 5)
        cls.run_trireme("trireme tokenize --tokenizer tiny --input answers.jsonl --output /data/chats")  # by python -m trireme.chats on the page
        (cls.folder / "run.secret").write_text("0123456789abcdef" * 4)
        (cls.folder / "run.secret").chmod(0o600)
        (cls.folder / "hosts").write_text("localhost slots=1\n127.0.0.1 slots=1\n")

    @classmethod
    def put_into_hub(cls, name, model):
        hub = cls.folder / "hub" / ("models--" + name.replace("/", "--"))
        (hub / "refs").mkdir(parents=True)
        (hub / "refs/main").write_text("1")
        shutil.copytree(model, hub / "snapshots/1")

    @classmethod
    def start(cls, text):
        for name in ("data", "runs", "models"):
            text = re.sub(rf"(?<= )/{name}/", f"{cls.folder}/{name}/", text)
        model = FIXTURE if " verify " in text else cls.folder / "tiny"
        words = [str(model) if word == "DIR" else word for word in shlex.split(text)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TRIREME_"))}
        environment |= {"HF_HUB_CACHE": str(cls.folder / "hub"), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([TRIREME, *words[1:]], cwd=cls.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    @classmethod
    def run_trireme(cls, text):
        process = cls.start(text)
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, f"{text}\nended with {process.returncode}:\n{output}"

    def run_on_two_machines(self, text):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        text = text.replace("node0", "127.0.0.1").replace("--nproc_per_node 2", "--nproc_per_node 1")
        text = re.sub(r"--master_port \d+", f"--master_port {port}", text)
        machines = [self.start(text.replace("--node_rank 0", f"--node_rank {rank}")) for rank in range(2)]
        for machine in machines:
            output, _ = machine.communicate(timeout=LIMIT_SECONDS)
            self.assertEqual(machine.returncode, 0, f"{text}\n{output}")

    def check_dev(self, text):
        words = shlex.split(text)[1:]
        usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
        known = {name for names in re.findall(r"^\./dev (\S+)", usage, re.M) for name in names.split("|")}
        self.assertIn(words[0], known, text)
        script = {"bench": "run", "gpu": "gpu/run"}.get(words[0])
        if script and len(words) > 1 and (ROOT / "bench" / words[1]).is_file():
            script = words[1]
        flags = [word for word in words if word.startswith("--")]
        if script and flags:
            options = subprocess.run(["python3", ROOT / "bench" / script, "--help"], capture_output=True, text=True, check=True).stdout
            for flag in flags:
                self.assertIn(flag, options, text)

    def test_links_lead_somewhere(self):
        pages = [ROOT / page for page in subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True).stdout.split()]
        for page in pages or [ROOT / page for page in PAGES]:
            for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
                file, _, heading = link.partition("#")
                if file.startswith("http"):
                    continue
                target = (page.parent / file) if file else page
                self.assertTrue(target.exists(), f"{page}: {link}")
                if heading and target.suffix == ".md":
                    titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
                    anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
                    self.assertIn(heading, anchors, f"{page}: {link}")

    def test_of_every_page_do_what_they_say(self):
        count = 0
        for page in PAGES:
            for text in commands(page):
                with self.subTest(page=page, command=text):
                    program = text.split()[0]
                    count += 1
                    if program == "./dev":
                        self.check_dev(text.split("&&")[0])
                    elif program != "trireme":
                        self.assertIn(program, ELSEWHERE)
                    elif "--nnodes 2" in text:
                        self.run_on_two_machines(toy(text))
                    else:
                        self.run_trireme(toy(text))
        self.assertGreater(count, 40)
        fields = (ROOT / "docs/metrics.md").read_text()
        runs = [json.loads(line) for file in (self.folder / "runs").rglob("metrics.jsonl") for line in file.read_text().splitlines()]
        self.assertGreater(len(runs), 0)
        for name in {name for record in runs for name in record}:
            self.assertIn(f"`{name}`", fields)


if __name__ == "__main__":
    unittest.main()
