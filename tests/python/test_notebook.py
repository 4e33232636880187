"""examples/long_context.ipynb, cell after cell in a fresh interpreter: two ranks start at the loss of one, and the engine trains."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

NOTEBOOK = pathlib.Path(__file__).resolve().parents[2] / "examples/long_context.ipynb"
# What Jupyter adds to Python, as far as the notebook uses it: a cell that is a file, and lines that are commands.
RUN_CELLS = r'''
import json, re, subprocess, sys
def command(words):
    subprocess.run(words, shell=True, check=True)
names = {"command": command}
for cell in json.load(open(sys.argv[1]))["cells"]:
    text = "".join(cell["source"])
    if cell["cell_type"] != "code":
        continue
    print(f"<<{cell['id']}>>", flush=True)
    if file := re.match(r"%%writefile (\S+)\n", text):
        open(file[1], "w").write(text[file.end() :])
    else:
        exec(re.sub(r"(?m)^!(.*)$", r'command(f"""\1""")', text), names)
'''


def run_cells(folder):
    """Output by the id of its cell."""
    done = subprocess.run([sys.executable, "-c", RUN_CELLS, NOTEBOOK], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(zip(*[iter(re.split(r"<<(\w+)>>\n", done.stdout)[1:])] * 2))


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return run_cells(tmp_path_factory.mktemp("notebook"))


def test_it_is_a_notebook_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)
        assert all(line.endswith("\n") for line in cell["source"][:-1])


def test_two_ranks_start_at_the_loss_of_the_model_alone_and_learn(output):
    told = output["ranks_run"]
    assert "PASSED: 21 gradients" in told and "1001 tokens, 501 of them" in told, told
    losses = [float(loss) for loss in re.findall(r"step \d loss (\S+),", told)]
    assert len(losses) == 5 and losses[4] < losses[0] - 0.5
    assert losses[0] == pytest.approx(float(re.search(r"reference (\S+),", told)[1]), rel=5e-6)


def test_the_engine_trains(output):
    losses = [float(loss) for loss in re.findall(r"step \d loss (\S+),", output["train"])]
    assert len(losses) == 5 and losses[4] < losses[0], output["train"]
