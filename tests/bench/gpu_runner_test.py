"""The runner of ./dev gpu on made-up stages: what it runs, ends, keeps, and goes on from. Standard library alone.

A call is a process of its own (this file with --call), so that it can be killed.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

GPU = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench/gpu")
sys.dont_write_bytecode = True
sys.path.insert(0, GPU)
import judges  # noqa: E402
import runner  # noqa: E402
import summary  # noqa: E402
from command import Command, Verdict  # noqa: E402
from layout import Layout  # noqa: E402
from models import ModelMaker  # noqa: E402
from results import Results  # noqa: E402

HEADER = {"date": "today", "began": "now", "plan": "made up", "device": "cpu", "commit": "none", "binary": "none"}
# Programs that stand in for trireme: the folder of a model is the last word of `init ... --out FOLDER`.
# The first of them waits until a command that runs beside it has written the file `go`.
MAKES_MODELS = """#!/bin/sh
for folder; do :; done
until [ -e "$(dirname "$0")/go" ]; do sleep 0.05; done
mkdir -p "$folder"
"""
MAKES_NONE = "#!/bin/sh\necho the disk is full >&2\nexit 65\n"


def unreadable(outcome, _):
    return Verdict("", {"value": json.loads(outcome.stdout)["not there"]})


JUDGES = {"plain": judges.plain, "rows": judges.json_rows, "unreadable": unreadable}


def call(folder, stages, seconds):
    """One call of the runner; stages: [[name, seconds, [{name, shell, limit, usual, ...}]]]."""
    runner.GRACE_SECONDS = 0
    layouts = {stage: [Command(c["name"], ["sh", "-c", c["shell"]], c.get("limit", 30), c.get("usual", 0), model=c.get("model", ""),
                               lacks=c.get("lacks", ""), judge=JUDGES[c.get("judge", "plain")]) for c in commands]
               for stage, _, commands in stages}
    runner.commands_of = lambda stage, setting: layouts[stage]
    clock = runner.Clock()
    clock.give(seconds + 1)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: clock.stop())
    results = Results(os.path.join(folder, "results"), HEADER, os.path.join(folder, "pack.tar.gz"), folder)
    program = os.path.join(folder, "program")
    maker = ModelMaker(Layout(program, program, folder, "", folder, os.path.join(folder, "scratch")), "cpu", results)
    planned = runner.run([(stage, limit) for stage, limit, _ in stages], None, results, maker, clock)
    results.write_summary(summary.page(planned, results))
    print(summary.overall(planned, results))


def running(marker):
    """Processes whose command line holds the marker, but for runners."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline") as file:
                words = file.read()
                if marker in words and "--call" not in words:
                    found.append(int(process))
        except OSError:
            pass
    return found


class Runner(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="trireme-gpu-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.program(MAKES_MODELS)

    def program(self, text):
        path = os.path.join(self.folder, "program")
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def start(self, stages, seconds=60):
        return subprocess.Popen([sys.executable, os.path.abspath(__file__), "--call", self.folder, json.dumps(stages), str(seconds)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def call(self, stages, seconds=60):
        """The overall state of a whole call."""
        out, err = (process := self.start(stages, seconds)).communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        return out.strip()

    def state(self, key, name="state"):
        return json.loads(self.text("results/state.json"))["commands"].get(key, {}).get(name)

    def text(self, name):
        with open(os.path.join(self.folder, name)) as file:
            return file.read()

    def counts(self, name):
        """A shell line that notes each of its runs, and how many there were."""
        path = os.path.join(self.folder, name)
        return f"echo run >> {path}", lambda: len(self.text(name).splitlines()) if os.path.exists(path) else 0

    def wait_for(self, true):
        end = time.time() + 20
        while not true():
            self.assertLess(time.time(), end, "nothing came in 20 seconds")
            time.sleep(0.02)

    def test_a_command_that_passed_is_not_run_again_and_its_measurements_are_kept(self):
        shell, runs = self.counts("first")
        stages = [["one", 20, [{"name": "first", "shell": shell + """; echo '{"name": "speed", "tflops": 7}'""", "judge": "rows"}]]]
        self.assertEqual(self.call(stages), "passed")
        self.assertEqual(self.call(stages), "passed")
        self.assertEqual(runs(), 1)
        self.assertEqual(self.state("one/first", "rows"), [{"name": "speed", "tflops": 7}])
        self.assertIn('{"measured": "one/first", "name": "speed", "tflops": 7}', self.text("results/results.jsonl"))
        self.assertTrue(os.path.exists(os.path.join(self.folder, "pack.tar.gz")))

    def test_a_failure_ends_nothing_else_and_the_page_says_where_its_output_lies(self):
        stages = [["one", 20, [{"name": "bad", "shell": "echo no such kernel >&2; exit 3"},
                               {"name": "odd", "shell": "echo {}", "judge": "unreadable"}, {"name": "good", "shell": "true"}]]]
        self.assertEqual(self.call(stages), "failed")
        self.assertEqual([self.state(f"one/{name}") for name in ("bad", "odd", "good")], ["failed", "failed", "passed"])
        self.assertIn("exit code 3: no such kernel", self.state("one/bad", "reason"))
        self.assertIn("could not be read", self.state("one/odd", "reason"))
        self.assertIn("`logs/one-bad.err`", self.text("results/summary.md"))
        self.assertEqual(self.text("results/logs/one-bad.err"), "no such kernel\n")

    def test_a_command_over_its_limit_is_ended_with_its_children_and_not_tried_again(self):
        marker = "61.7531"  # a child in a session of its own, that asks not to be ended
        shell, runs = self.counts("slow")
        slow = f"{shell}; setsid sh -c 'trap \"\" TERM; sleep {marker}; true' & echo begun; sleep {marker}; true"
        stages = [["one", 20, [{"name": "slow", "shell": slow, "limit": 2}, {"name": "next", "shell": "true"}]]]
        self.assertEqual(self.call(stages), "over limit")
        self.assertEqual((self.state("one/slow"), self.state("one/next")), ("over limit", "passed"))
        self.assertLess(self.state("one/slow", "seconds"), 30)
        self.assertEqual(running(marker), [])
        self.assertEqual(self.text("results/logs/one-slow.out"), "begun\n")
        self.assertIn("Command: `sh -c", self.text("results/summary.md"))
        self.assertNotIn(self.folder, self.text("results/summary.md"))
        self.call(stages)
        self.assertEqual(runs(), 1)

    def test_a_call_keeps_its_time_and_the_next_one_goes_on(self):
        shell, runs = self.counts("second")
        stages = [["one", 30, [{"name": "long", "shell": "[ -e %s/again ] || sleep 30" % self.folder}]],
                  ["two", 30, [{"name": "second", "shell": shell, "usual": 5}]]]
        begin = time.time()
        self.assertEqual(self.call(stages, seconds=2), "cut off")
        self.assertLess(time.time() - begin, 25)
        self.assertEqual((self.state("one/long"), self.state("two/second"), runs()), ("cut off", "not reached", 0))
        open(os.path.join(self.folder, "again"), "w").close()
        self.assertEqual(self.call(stages), "passed")
        self.assertEqual(runs(), 1)

    def test_what_a_cut_off_command_measured_outlives_a_call_without_time_for_it(self):
        def stages(usual):
            return [["one", 200, [{"name": "long", "shell": """echo '{"name": "speed", "tflops": 7}'; sleep 30""", "judge": "rows", "usual": usual}]]]

        self.assertEqual(self.call(stages(0), seconds=2), "cut off")
        self.call(stages(100), seconds=2)
        self.assertEqual((self.state("one/long"), self.state("one/long", "rows")), ("not reached", [{"name": "speed", "tflops": 7}]))

    def test_a_step_of_half_a_model_has_no_earlier_figure_beside_it(self):
        def page_of(**figures):
            return summary.beside_earlier([("speed", 30, ["step-8k"])], SimpleNamespace(commands={"speed/step-8k": {"figures": figures}}))

        self.assertTrue(page_of(step_seconds=1.0))
        self.assertFalse(page_of(step_seconds=1.0, model="8b-16-layers"))

    def test_a_stage_ends_by_its_seconds_and_leaves_over_what_it_does_not_use(self):
        stages = [["one", 2, [{"name": "slow", "shell": "sleep 30"}, {"name": "late", "shell": "true", "usual": 1.5}]],
                  ["two", 28, [{"name": "quick", "shell": "true"}]], ["three", 0.5, [{"name": "longer", "shell": "sleep 1"}]]]
        self.assertEqual(self.call(stages), "cut off")
        self.assertEqual([self.state(key) for key in ("one/slow", "one/late", "two/quick", "three/longer")],
                         ["cut off", "not reached", "passed", "passed"])

    def test_nothing_outlives_a_runner_that_is_killed_and_the_next_one_repeats_what_it_was_at(self):
        marker = "63.8642"
        stages = [["one", 30, [{"name": "first", "shell": "true"},
                               {"name": "at work", "shell": f"[ -e {self.folder}/again ] || {{ setsid sleep {marker} & sleep {marker}; }}"}]]]
        process = self.start(stages)
        self.wait_for(lambda: len(running(marker)) >= 2)
        process.kill()
        process.communicate()
        self.wait_for(lambda: not running(marker))
        self.assertEqual((self.state("one/first"), self.state("one/at work")), ("passed", "running"))
        self.call([["one", 30, stages[0][2][:1]]])
        self.assertEqual(self.state("one/at work"), "cut off")
        open(os.path.join(self.folder, "again"), "w").close()
        self.assertEqual(self.call(stages), "passed")
        self.assertEqual(self.state("one/at work", "attempts"), 2)

    def test_a_runner_that_is_asked_to_stop_leaves_a_page_that_says_so(self):
        marker = "65.9753"
        process = self.start([["one", 30, [{"name": "at work", "shell": f"sleep {marker}; true"}, {"name": "next", "shell": "true"}]]])
        self.wait_for(lambda: running(marker) and self.state("one/at work") == "running")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.communicate(timeout=20)[0].strip(), "cut off")
        self.assertEqual(running(marker), [])
        self.assertEqual((self.state("one/at work"), self.state("one/next")), ("cut off", "not reached"))
        self.assertIn("| one/at work | cut off |", self.text("results/summary.md"))

    def test_two_runners_do_not_share_a_folder(self):
        marker = "67.1864"
        stages = [["one", 30, [{"name": "at work", "shell": f"sleep {marker}; true"}]]]
        first = self.start(stages)
        self.wait_for(lambda: running(marker))
        second = self.start(stages)
        self.assertIn("another runner is at work", second.communicate(timeout=20)[1])
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=20)

    def test_what_lacks_is_no_failure_but_a_stage_without_anything_else_shows(self):
        lacking, there = {"name": "gpu", "shell": "false", "lacks": "no GPU"}, {"name": "there", "shell": "true"}
        self.assertEqual(self.call([["one", 20, [lacking, there]]]), "passed")
        self.assertEqual(self.call([["one", 20, [lacking, there]], ["two", 20, [lacking]]]), "lacks")
        self.assertIn("| two/gpu | lacks |  | no GPU |", self.text("results/summary.md"))

    def test_a_command_waits_for_its_model_which_is_made_beside_the_first_ones(self):
        uses = {"name": "uses", "shell": f"[ -d {self.folder}/scratch/cpu-8b ]", "model": "8b"}
        meanwhile = {"name": "meanwhile", "shell": f"touch {self.folder}/go"}
        self.assertEqual(self.call([["one", 20, [meanwhile, uses]]]), "passed")
        self.assertEqual((self.state("one/meanwhile"), self.state("models/8b")), ("passed", "passed"))

    def test_without_its_model_a_command_is_not_run_and_the_model_is_the_failure(self):
        self.program(MAKES_NONE)
        stages = [["one", 20, [{"name": "uses", "shell": "true", "model": "8b"}, {"name": "other", "shell": "true"}]]]
        self.assertEqual(self.call(stages), "failed")
        self.assertEqual([self.state(key) for key in ("models/8b", "one/uses", "one/other")], ["failed", "lacks", "passed"])
        self.assertIn("the disk is full", self.state("one/uses", "reason"))


def main():
    """The tests beside each other: they wait more than they compute."""
    cases = list(unittest.defaultTestLoader.loadTestsFromTestCase(Runner))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda case: case.run(unittest.TestResult()), cases))
    wrong = [(str(case), text) for result in results for case, text in (*result.failures, *result.errors)]
    for name, text in wrong:
        print(f"FAIL: {name}\n{text}")
    print(f"{sum(result.testsRun for result in results)} tests, {len(wrong)} failed")
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--call"]:
        call(sys.argv[2], json.loads(sys.argv[3]), float(sys.argv[4]))
    else:
        sys.exit(main())
