"""Where the package's programs look for libtorch, and what they say."""
import os
import shutil
import unittest

from fake_package import FakePackage, write


class Lookup(FakePackage):
    def assert_finds(self, torch, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        library_path, found = done.stdout.splitlines()[:2]
        self.assertEqual(found, torch)
        self.assertEqual(library_path.split(":")[:2], [os.path.join(self.package, "lib"), os.path.join(torch, "lib")])

    def assert_refuses(self, done, *phrases):
        self.assertEqual((done.returncode, done.stdout), (78, ""))
        for phrase in phrases:
            self.assertIn(phrase, done.stderr)

    def test_the_variable_names_the_folder_above_torch_or_above_lib(self):
        torch = self.libtorch("site packages/torch")
        self.assert_finds(torch, self.start(TRIREME_LIBTORCH=os.path.dirname(torch)))
        self.assert_finds(torch, self.start(TRIREME_LIBTORCH=torch))
        self.assert_finds(torch, self.start(TRIREME_LIBTORCH="site packages"))
        without_python = self.libtorch("libtorch of C++", build_version=True)
        self.assert_finds(without_python, self.start(TRIREME_LIBTORCH=without_python))

    def test_a_wrong_folder_in_the_variable_is_refused_though_another_would_do(self):
        self.libtorch("my tools/libtorch")
        old = self.libtorch("old/torch", "2.10.1+cu130")
        self.assert_refuses(self.start(TRIREME_LIBTORCH=os.path.dirname(old)), "needs", f"TRIREME_LIBTORCH: {old} is version 2.10.1+cu130")
        self.assert_refuses(self.start(TRIREME_LIBTORCH="/nowhere"), "TRIREME_LIBTORCH: no libtorch in /nowhere")

    def test_it_may_lie_in_the_package_or_beside_it(self):
        beside = self.libtorch("my tools/libtorch/torch")
        self.assert_finds(beside, self.start())
        within = self.libtorch("my tools/trireme-0-cpu/libtorch", build_version=True)
        self.assert_finds(within, self.start())

    def test_the_python_on_the_path_is_asked_and_does_not_import_torch(self):
        torch = self.libtorch("site packages/torch")
        self.with_python(os.path.dirname(torch))
        self.assert_finds(torch, self.start())

    def test_python_serves_where_there_is_no_python3(self):
        torch = self.libtorch("site/torch")
        self.with_python(os.path.dirname(torch), name="python")
        self.assert_finds(torch, self.start())

    def test_a_virtual_environment_goes_before_the_path_and_its_other_version_is_passed_over(self):
        torch, others = self.libtorch("site/torch"), self.libtorch("venv/site/torch")
        self.with_python(os.path.dirname(torch))
        self.with_python(os.path.dirname(others), at="venv/bin", name="python")
        venv = os.path.join(self.folder, "venv")
        self.assert_finds(others, self.start(VIRTUAL_ENV=venv))
        self.libtorch("venv/site/torch", "2.12.0")
        self.assert_finds(torch, self.start(VIRTUAL_ENV=venv))

    def test_a_folder_torch_in_the_working_folder_is_not_taken(self):
        self.libtorch("work/torch")
        self.with_python()
        self.assert_refuses(self.start(cwd=os.path.join(self.folder, "work")), "has no torch")

    def test_where_there_is_none_everything_that_was_looked_at_is_said(self):
        self.libtorch("venv/site/torch", "2.9.0")
        self.with_python(os.path.join(self.folder, "venv/site"), at="venv/bin", name="python")
        self.with_python()
        done = self.start(VIRTUAL_ENV=os.path.join(self.folder, "venv"))
        self.assert_refuses(done, "TRIREME_LIBTORCH: is not set", f"in the package: no libtorch in {self.package}/libtorch",
                            f"beside the package: no libtorch in {os.path.dirname(self.package)}/libtorch",
                            "venv/bin/python): " + os.path.join(self.folder, "venv/site/torch") + " is version 2.9.0",
                            f"python3 ({self.tools}/python3): has no torch", "python: there is none", "pip install torch==2.11.0")

    def test_what_came_before_the_release_or_says_no_version_is_refused(self):
        self.libtorch("a/torch", "2.11.0a0+eb65b36")
        self.assert_refuses(self.start(TRIREME_LIBTORCH="a"), "from before the release")
        write(os.path.join(self.folder, "b/torch/lib/libtorch_cpu.so"))
        self.assert_refuses(self.start(TRIREME_LIBTORCH="b"), "is version unknown")
        self.libtorch("c/torch", "2.110.0")
        self.assert_refuses(self.start(TRIREME_LIBTORCH="c"), "is version 2.110.0")

    def test_a_second_openmp_runtime_is_refused(self):
        torch = self.libtorch("a/torch")
        write(os.path.join(torch, "lib/libgomp-24e2ab19.so.1"))
        self.assert_refuses(self.start(TRIREME_LIBTORCH="a"), "libgomp-24e2ab19.so.1")

    def test_the_cuda_package_takes_its_own_release_of_cuda_alone(self):
        self.built_for(cuda="13")
        self.libtorch("cpu/torch", "2.11.0+cpu", cuda=None)
        self.assert_refuses(self.start(TRIREME_LIBTORCH="cpu"), "libtorch 2.11 for CUDA 13", "version 2.11.0+cpu, built without CUDA")
        self.libtorch("12/torch", "2.11.0+cu128", cuda="12.8")
        self.assert_refuses(self.start(TRIREME_LIBTORCH="12"), "version 2.11.0+cu128, built for CUDA 12.8")
        half = self.libtorch("half/torch")
        os.remove(os.path.join(half, "lib/libtorch_cuda.so"))
        self.assert_refuses(self.start(TRIREME_LIBTORCH="half"), "has no lib/libtorch_cuda.so")
        archive = self.libtorch("archive", build_version=True)
        self.assert_finds(archive, self.start(TRIREME_LIBTORCH="archive"))

    def test_libraries_come_from_the_package_then_libtorch_then_nvidias_wheels_then_the_users_path(self):
        torch = self.libtorch("site packages/torch", nvidia=("cu13", "nccl"))
        nvidia = os.path.join(os.path.dirname(torch), "nvidia")
        done = self.start(TRIREME_LIBTORCH=torch, LD_LIBRARY_PATH="/opt/users:/opt/more")
        self.assertEqual(done.stdout.splitlines()[0].split(":"), [
            f"{self.package}/lib", f"{torch}/lib", f"{nvidia}/cu13/lib", f"{nvidia}/nccl/lib", "/opt/users", "/opt/more"])
        self.assertFalse(self.start(TRIREME_LIBTORCH=torch).stdout.splitlines()[0].endswith(":"))

    def test_a_libtorch_without_the_libraries_that_it_needs_is_no_good(self):
        half = self.libtorch("half/torch")
        with open(shutil.which("true"), "rb") as file:
            program = file.read().replace(b"libc.so.6", b"libq.so.6")
        with open(os.path.join(self.package, "libexec/trireme"), "wb") as file:
            file.write(program)
        done = self.start(TRIREME_LIBTORCH=half)
        self.assert_refuses(done, f"{half} is version 2.11.0+cu130, and the program does not start with it", "libq.so.6: cannot open")

    def test_a_folder_that_the_loader_cannot_take_is_refused(self):
        torch = self.libtorch("a:b/torch")
        self.assert_refuses(self.start(TRIREME_LIBTORCH=torch), "':' or ';'", torch)


class Start(FakePackage):
    def test_it_starts_by_any_name_in_any_shell_and_hands_arguments_and_the_exit_code_on(self):
        torch = self.libtorch("site/torch")
        self.program('printf "%s\\n" "$@"; exit 65')
        os.makedirs(os.path.join(self.folder, "on path"))
        absolute, relative = os.path.join(self.folder, "on path/trireme"), os.path.join(self.folder, "on path/linked")
        os.symlink(os.path.join(self.package, "bin/trireme"), absolute)
        os.symlink("trireme", relative)
        for shell in (None, "sh", "bash"):
            for program in ("trireme", absolute, relative):
                done = self.start("eval", "a b", "", "*", program=program, shell=shell, TRIREME_LIBTORCH=torch)
                self.assertEqual((done.returncode, done.stdout), (65, "eval\na b\n\n*\n"), done.stderr)
        done = self.start("-c", 'exec trireme "x y"', program=os.path.join(self.tools, "sh"),
                          PATH=os.path.dirname(absolute) + ":" + self.tools, TRIREME_LIBTORCH=torch)
        self.assertEqual((done.returncode, done.stdout), (65, "x y\n"), done.stderr)

    def test_what_it_starts_inherits_libtorch_and_the_fixtures(self):
        torch = self.libtorch("site/torch")
        self.program('echo "$TRIREME_LIBTORCH|$TRIREME_BINARY|$TRIREME_SOURCE_DIR"')
        self.assertEqual(self.start(TRIREME_LIBTORCH="site").stdout,
                         f"{torch}|{self.package}/libexec/trireme|{self.package}/share/trireme\n")

    def test_the_demo_writes_where_it_is_called_and_names_a_command_that_works_by_itself(self):
        self.libtorch("site/torch")
        write(os.path.join(self.package, "share/trireme/examples/demo"), '#!/bin/sh\necho "$1|$TRIREME_BINARY"\n', 0o755)
        for words, folder in (((), "demo-out"), (("of mine",), "of mine")):
            done = self.start(*words, program="trireme-demo", TRIREME_LIBTORCH="site")
            self.assertEqual(done.stdout, f"{self.folder}/{folder}|{self.package}/bin/trireme\n", done.stderr)


class Runner(FakePackage):
    def setUp(self):
        super().setUp()
        self.environment.update(TRIREME_LIBTORCH=self.libtorch("site/torch"), TMPDIR=self.folder)
        write(os.path.join(self.package, "libexec/tests.list"),
              "good_test|unit|20|A=1 B=2|good_test\nbad_test|ranks|20||bad_test\nslow_test|unit|1||slow_test\ncuda_test|gpu|20||good_test\n")
        self.program('[ "$A$B" = 12 ] && [ -n "$TRIREME_SOURCE_DIR" ]', "good_test")
        self.program("echo it broke; exit 3", "bad_test")
        self.program("sleep 20", "slow_test")

    def run_tests(self, *arguments, code):
        done = self.start(*arguments, program="trireme-test")
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_each_test_has_a_line_with_its_environment_and_the_last_one_counts_them(self):
        lines = self.run_tests("good", code=0).stdout.splitlines()
        self.assertRegex(lines[0], r"^passed  good_test  \d+ s$")
        self.assertEqual(lines[1:], ["1 passed, 0 failed"])

    def test_a_failure_shows_its_output_and_a_limit_ends_a_test(self):
        lines = self.run_tests("cpu", code=1).stdout.splitlines()
        self.assertRegex(lines[1], r"^FAILED  bad_test  \d+ s, exit 3$")
        self.assertEqual(lines[2], "    it broke")
        self.assertRegex(lines[3], r"^FAILED  slow_test  \d+ s, exit 124: ended at its limit of 1 s$")
        logs = lines[4].removeprefix("output: ")
        self.assertEqual(sorted(os.listdir(logs)), ["bad_test.log", "good_test.log", "slow_test.log"])
        self.assertEqual(lines[5:], ["1 passed, 2 failed"])

    def test_gpu_tests_ask_for_the_cuda_package_and_a_gpu(self):
        self.assertIn("built without CUDA", self.run_tests("gpu", code=78).stderr)
        self.built_for(cuda="13")
        self.program("echo 'device: cpu'")
        self.assertIn("finds no GPU", self.run_tests("gpu", code=78).stderr)
        self.program("echo 'device: cuda:0'")
        write(os.path.join(self.package, "libexec/good_test"), "#!/bin/sh\n", 0o755)
        for words in (("gpu",), ()):
            self.assertRegex(self.run_tests(*words, code=0).stdout, r"^passed  cuda_test  \d+ s\n1 passed, 0 failed\n$")
        self.assertIn("are in the cpu package", self.run_tests("cpu", code=78).stderr)

    def test_an_expression_that_nothing_matches_is_an_error(self):
        self.assertIn("no cpu test of the package matches 'gooood'", self.run_tests("gooood", code=78).stderr)


if __name__ == "__main__":
    unittest.main()
