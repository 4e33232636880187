"""What ./dev gpu plans, how it reads outputs, and where it looks for the program. Standard library alone."""
import os
import subprocess
import sys
import tempfile
import unittest

GPU = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench/gpu")
sys.dont_write_bytecode = True
sys.path.insert(0, GPU)
import judges  # noqa: E402
from command import Outcome  # noqa: E402
from layout import find_layout  # noqa: E402
from models import MODELS  # noqa: E402
from plans import BY_NAME_ALONE, PLANS, RESERVE_SECONDS, STAGES, plan_of  # noqa: E402
from setting import Setting  # noqa: E402
from stages import commands_of  # noqa: E402
from summary import stage_state  # noqa: E402


def outcome(stdout="", stderr="", exit_code=0, ended=""):
    return Outcome(exit_code, ended, 1.0, stdout, stderr)


STEP = ('{"median_step_s": 2.0, "tokens_per_s": 4096, "model_gflops": 494500.0, "mfu": 0.5, "matmul_gflops_precision": 700000.0, "peak_rss_mib": [120000], '
        '"losses": [%s], "gradient_norms": [1.0, 2.0], "step_s": [2.0], "engine": "attention cudnn"}')


class Plans(unittest.TestCase):
    def test_the_seconds_of_the_stages_fit_the_minutes_of_a_plan(self):
        for name, stages in PLANS.items():
            self.assertLessEqual(sum(seconds for _, seconds in stages) + RESERVE_SECONDS, 60 * int(name), name)
        self.assertEqual([*(stage for stage, _ in PLANS["45"]), *BY_NAME_ALONE], list(STAGES))

    def test_stages_can_be_named(self):
        stages, minutes = plan_of("long,facts")
        self.assertEqual([stage for stage, _ in stages], ["long", "facts"])
        self.assertGreaterEqual(minutes * 60, sum(seconds for _, seconds in stages))
        for wrong in ("speed,sped", "20", "facts,facts"):
            with self.assertRaises(SystemExit):
                plan_of(wrong)

    def test_every_stage_has_commands_of_different_names_with_known_models_on_both_devices(self):
        for device in ("cuda", "cpu"):
            layout = find_layout(device)
            setting = Setting(layout, device, "", lambda name: f"/models/{name}", "/results")
            for stage in STAGES:
                commands = list(commands_of(stage, setting))
                names = [command.name for command in commands]
                self.assertEqual(len(set(names)), len(names), stage)
                for command in commands:
                    self.assertTrue(command.judge)
                    self.assertLess(command.usual_seconds, command.limit_seconds)
                    self.assertLess(command.limit_seconds, 590)  # a job of ten minutes holds each
                    self.assertIn(command.model, ("", *MODELS[device]))
                    self.assertTrue(all(isinstance(word, str) for word in command.argv))


class Judges(unittest.TestCase):
    def test_a_step_gives_its_rate_and_share_of_the_peak(self):
        verdict = judges.step_rate(outcome(STEP % "11.5, 11.2"), {})
        self.assertEqual((verdict.problem, verdict.figures["step_seconds"], verdict.figures["mfu_percent"]), ("", 2.0, 50.0))
        self.assertIn("no losses", judges.step_rate(outcome(STEP % "11.5, null"), {}).problem)
        self.assertIn("exit code 70: a bug", judges.step_rate(outcome("", "a bug\n", 70), {}).problem)

    def test_losses_are_held_to_those_of_another_command(self):
        judge = judges.losses_like("a/b", 1e-5, 1e-3, norms_tolerance=1e-2)
        other = {"a/b": {"losses": [11.5, 11.2], "gradient_norms": [1.0, 2.0]}}
        self.assertEqual(judge(outcome(STEP % "11.5, 11.201"), other).problem, "")
        self.assertIn("the first by", judge(outcome(STEP % "11.501, 11.2"), other).problem)
        self.assertIn("the worst by", judge(outcome(STEP % "11.5, 11.3"), other).problem)
        other["a/b"]["gradient_norms"] = [1.0, 2.1]
        self.assertIn("gradient norms", judge(outcome(STEP % "11.5, 11.2"), other).problem)
        self.assertIn("no losses to compare", judge(outcome(STEP % "11.5, 11.2"), {}).problem)

    def test_tests_that_were_all_skipped_have_shown_nothing(self):
        skipped = "[ RUN      ] A.b\n[  SKIPPED ] A.b (0 ms)\n"
        passed = "[ RUN      ] A.c\n[       OK ] A.c (5 ms)\n"
        self.assertIn("no GPU", judges.gtests(outcome(skipped), {}).lacks)
        both = judges.gtests(outcome(skipped + passed), {})
        self.assertEqual((both.lacks, both.problem, both.figures), ("", "", {"passed": 1, "failed": 0, "skipped": 1}))
        self.assertIn("no test ran", judges.gtests(outcome(""), {}).problem)

    def test_a_test_program_names_the_test_that_failed_or_that_it_died_in(self):
        failed = "[ RUN      ] A.b/0\n[  FAILED  ] A.b/0, where GetParam() = 5 (7 ms)\n[  FAILED  ] 1 test, listed below:\n"
        self.assertEqual(judges.gtests(outcome(failed, exit_code=1), {}).problem, "failed: A.b/0")
        died = judges.gtests(outcome("[ RUN      ] A.c\n", "illegal address\n", -6), {})
        self.assertEqual(died.problem, "it ended in A.c: signal 6: illegal address")

    def test_a_planned_out_of_memory_exits_78_and_names_the_part_that_asked(self):
        message = "trireme: out of device memory: asked for 4.0 GiB (4294967296 bytes) more for activations; this rank holds ...\n"
        judge = judges.out_of_memory(("activations",))
        self.assertEqual(judge(outcome("", message, 78), {}).figures["category"], "activations")
        self.assertIn("exit code 70, expected exit code 78", judge(outcome("", message, 70), {}).problem)
        self.assertIn("does not say", judge(outcome("", "out of device memory: CUDA out of memory\n", 78), {}).problem)
        self.assertIn("expected one of tiles", judges.out_of_memory(("tiles",))(outcome("", message, 78), {}).problem)
        self.assertIn("expected exit code 78", judge(outcome(STEP % "11.5"), {}).problem)

    def test_measurements_are_kept_one_by_one_and_an_error_among_them_is_a_failure(self):
        verdict = judges.json_rows(outcome('{"name": "a", "tflops": 1}\n{"name": "b", "error": "refused"}\n{"name": "c", "la'), {})
        self.assertEqual(len(verdict.rows), 2)
        self.assertIn("1 of 2 measurements failed, the first: b: refused", verdict.problem)
        none = judges.json_rows(outcome('{"name": "a", "lacks": "a GPU"}\n'), {})
        self.assertEqual((none.problem, none.lacks), ("", "a GPU"))

    def test_the_worst_state_of_its_commands_is_a_stage_s(self):
        self.assertEqual(stage_state(["passed", "lacks", "cut off", "failed"]), "failed")
        self.assertEqual(stage_state(["passed", "lacks", "not reached"]), "not reached")
        self.assertEqual((stage_state(["passed", "lacks"]), stage_state(["lacks"]), stage_state([])), ("passed", "lacks", "not reached"))


class Layouts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)

    def put(self, *names):
        for name in names:
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write("#!/bin/sh\n")
            os.chmod(path, 0o755)

    def test_a_checkout_is_known_by_its_presets(self):
        self.put("CMakePresets.json", "build/cuda/bin/trireme", "build/cuda/bin/nccl_test", "bench/gpu/layout.py")
        layout = find_layout("cuda", begin=os.path.join(self.root, "bench/gpu/layout.py"))
        self.assertEqual((layout.missing(), layout.program), ("", os.path.join(self.root, "build/cuda/bin/trireme")))
        self.assertEqual(layout.test("nccl_test", "--x"), [os.path.join(self.root, "build/cuda/bin/nccl_test"), "--x"])
        self.assertEqual(layout.tests_like("*nccl*_test"), ["nccl_test"])
        self.assertIn("./dev build cpu", find_layout("cpu", begin=os.path.join(self.root, "bench/gpu/layout.py")).missing())

    def test_the_package_is_known_by_its_program_and_gives_tests_its_library_path(self):
        self.put("bin/trireme", "libexec/trireme", "libexec/nccl_test", "libexec/environment.sh", "share/trireme/CMakePresets.txt")
        with open(os.path.join(self.root, "libexec/environment.sh"), "w") as file:
            file.write('export FOUND="$root"\n')
        with open(os.path.join(self.root, "libexec/nccl_test"), "w") as file:
            file.write('#!/bin/sh\necho "$FOUND $*"\n')
        layout = find_layout("cuda", begin=os.path.join(self.root, "share/trireme/bench/gpu/layout.py"))
        self.assertEqual((layout.missing(), layout.files), ("", os.path.join(self.root, "share/trireme")))
        self.assertTrue(layout.fixture("llama").startswith(layout.files))
        out = subprocess.run(layout.test("nccl_test", "--a b"), capture_output=True, text=True).stdout
        self.assertEqual(out, f"{self.root} --a b\n")


if __name__ == "__main__":
    unittest.main()
