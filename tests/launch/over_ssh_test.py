"""`trireme launch --hostfile` over real ssh: the hosts are network namespaces of this machine, each with its own name and its
own sshd. All lives in namespaces that end with this process. Where they are not permitted, or sshd is missing, it says so
and exits with 77, which ctest shows as skipped.
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
from pathlib import Path

TRIREME = os.environ.get("TRIREME_BINARY", str(Path(__file__).resolve().parents[2] / "build/cpu/bin/trireme"))
SSHD = "/usr/sbin/sshd"
HOSTS = ["host1", "host2", "host3"]
LIMIT_SECONDS = 120
FOLDER = "TRIREME_TEST_FOLDER"  # a variable, set inside the namespaces


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def why_not():
    """Why this cannot run here; nothing where it can."""
    if os.geteuid() != 0:
        return "it needs root, for network namespaces"
    for tool in (SSHD, "ssh", "ssh-keygen", "ip", "unshare", "hostname"):
        if not shutil.which(tool):
            return f"{tool} is missing (openssh-server, openssh-client, iproute2)"
    tried = subprocess.run(["unshare", "--net", "--mount", "--uts", "ip", "link", "add", "tried", "type", "bridge"],
                           capture_output=True, text=True)
    return "" if tried.returncode == 0 else "this machine permits no network namespaces: " + tried.stderr.strip()


def eventually(condition):
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class OverSsh(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(os.environ[FOLDER])
        cls.make_network()
        for name in ("host_key", "user_key", "other_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", cls.folder / name)
        cls.start_servers()
        run(TRIREME, "init", "--preset", "tiny", "--out", cls.folder / "tiny", "--seed", "1")
        (cls.folder / "text.txt").write_text("\n\n".join(f"Line {i} follows line {i - 1}." * 8 for i in range(200)))
        run(TRIREME, "tokenize", "--tokenizer", cls.folder / "tiny", "--input", cls.folder / "text.txt", "--output", cls.folder / "set")

    @classmethod
    def make_network(cls):
        """Hosts on one bridge, 10.77.0.1 and on; this process is 10.77.0.254."""
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        for folder in ("/run/netns", "/run/sshd"):
            os.makedirs(folder)
        names = ["127.0.0.1 localhost", *(f"10.77.0.{i} {host}" for i, host in enumerate(HOSTS, 1))]
        (cls.folder / "hosts").write_text("\n".join(names) + "\n")
        run("mount", "--bind", cls.folder / "hosts", "/etc/hosts")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "address", "add", "10.77.0.254/24", "dev", "bridge")
        run("ip", "link", "set", "bridge", "up")
        for i, host in enumerate(HOSTS, 1):
            run("ip", "netns", "add", host)
            run("ip", "link", "add", f"to{i}", "type", "veth", "peer", "name", "net0", "netns", host)
            run("ip", "link", "set", f"to{i}", "master", "bridge", "up")
            run("ip", "-n", host, "address", "add", f"10.77.0.{i}/24", "dev", "net0")
            for device in ("net0", "lo"):
                run("ip", "-n", host, "link", "set", device, "up")

    @classmethod
    def start_servers(cls):
        (cls.folder / "sshd").write_text(
            f"HostKey {cls.folder}/host_key\nAuthorizedKeysFile {cls.folder}/user_key.pub\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin yes\nPasswordAuthentication no\nPidFile none\nLogLevel ERROR\n")
        key = (cls.folder / "host_key.pub").read_text()
        (cls.folder / "known").write_text("".join(f"{host} {key}" for host in [*HOSTS, *(f"10.77.0.{i}" for i in (1, 2, 3))]))
        (cls.folder / "ssh").write_text(
            f"Host stranger\n  UserKnownHostsFile /dev/null\nHost nokey\n  IdentityFile {cls.folder}/other_key\nHost nossh\n  Port 1\n"
            "Host stranger nokey nossh\n  HostName 10.77.0.2\n"
            f"Host *\n  UserKnownHostsFile {cls.folder}/known\n  StrictHostKeyChecking yes\n  IdentitiesOnly yes\n"
            f"Host !nokey *\n  IdentityFile {cls.folder}/user_key\n")
        for host in HOSTS[:2]:
            cls.start_server(host)

    @classmethod
    def start_server(cls, host):
        server = subprocess.Popen(["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", f"hostname {host}; exec {SSHD} -D -e -f {cls.folder}/sshd"])
        cls.addClassCleanup(server.wait)
        cls.addClassCleanup(server.kill)
        assert eventually(lambda: subprocess.run(["ssh", "-F", cls.folder / "ssh", host, "true"], capture_output=True).returncode == 0)
        return server

    def hosts(self, *lines):
        file = self.folder / f"hostfile-{self.id()}"
        file.write_text("\n".join(lines) + "\n")
        return ["--hostfile", str(file), "--launcher_args", f"-F {self.folder}/ssh"]

    def launch(self, flags, name, steps, *more):
        return self.start([TRIREME, "launch", *flags, "--", *self.train(name, steps), *more])

    def train(self, name, steps):
        return ["train", "--model_name_or_path", self.folder / "tiny", "--train_file", self.folder / "set",
                "--output_dir", self.folder / name, "--max_seq_length", "32", "--per_device_train_batch_size", "1", "--max_steps", str(steps), "--save_total_limit", "1",
                "--logging_steps", "1", "--save_steps", "10", "--ddp_timeout", "30", "--threads", "1", "--peak_tflops", "1"]

    def start(self, words, environment={}):
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, env=os.environ | environment)

    def finish(self, launcher, code):
        output, _ = launcher.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual(launcher.returncode, code, output)
        return output

    def losses(self, name):
        return [record["loss"] for record in map(json.loads, (self.folder / name / "metrics.jsonl").read_text().splitlines())]

    def result(self, name):
        weights = [file.read_bytes() for file in sorted((self.folder / name).glob("checkpoints/step-3/rank-*.safetensors"))]
        self.assertEqual(len(weights), 2)
        return self.losses(name), weights

    def here(self):
        """The result of two ranks of this machine, as others shall have it."""
        if not (self.folder / "here").exists():
            self.finish(self.launch(["--nproc_per_node", "2"], "here", 3, "--ulysses", "2"), 0)
        return self.result("here")

    def steps(self, name):
        file = self.folder / name / "metrics.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def processes_of_hosts(self):
        """Of the hosts, but for the servers' own."""
        networks = {os.stat(f"/run/netns/{host}").st_ino for host in HOSTS}
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{process}/ns/net").st_ino in networks and "sshd" not in Path(f"/proc/{process}/comm").read_text():
                    found.append(Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # it has just ended
                pass
        return found

    def test_two_hosts_train_as_two_ranks_of_one_machine_do(self):
        flags = [*self.hosts("host1 slots=4", "host2 slots=4"), "--include", "host2:1@host1:0"]
        over_ssh = self.launch(flags, "over-ssh", 3, "--ulysses", "2")
        output = self.finish(over_ssh, 0)
        self.assertIn("[rank 0] ", output)
        self.assertIn("do not all lie on one machine", output)  # two ranks of one Ulysses group
        self.assertEqual(self.result("over-ssh"), self.here())
        self.assertEqual(self.processes_of_hosts(), [])

    def test_tasks_of_slurm_on_two_hosts_train_as_two_ranks_of_one_machine_do(self):
        job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0",
               "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "host[1-2]", "MASTER_PORT": "29400"}
        tasks = [self.start(["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$0" "$@"', TRIREME, *self.train("slurm", 3), "--ulysses", "2"],
                            job | {"SLURM_PROCID": str(task), "SLURM_NODEID": str(task)}) for task, host in enumerate(HOSTS[:2])]
        for task in tasks:
            self.finish(task, 0)
        self.assertEqual(self.result("slurm"), self.here())

    def test_hosts_that_cannot_take_part_are_named_with_what_to_do(self):
        flags = self.hosts("host1 slots=1", *(f"{name} slots=1" for name in ("nowhere.invalid", "stranger", "nokey", "nossh")))
        output = self.finish(self.launch(flags, "none", 1), 78)
        for text in ("no host is named nowhere.invalid", "the key of stranger's ssh server is unknown", "nokey refused this user's ssh keys",
                     "no ssh server answers on nossh"):
            self.assertIn(text, output)
        self.assertNotIn("host1", output)
        self.assertTrue(eventually(lambda: self.processes_of_hosts() == []), self.processes_of_hosts())

    def test_a_host_without_the_program_or_the_folder_is_named(self):
        private = self.folder / "private"  # a mount of this process alone: the servers have their own
        private.mkdir()
        run("mount", "-t", "tmpfs", "tmpfs", private)
        (private / "folder").mkdir()
        flags = ["launch", *self.hosts("host1 slots=1"), "--", "info"]
        refused = subprocess.run([TRIREME, *flags], capture_output=True, text=True, cwd=private / "folder")
        self.assertEqual(refused.returncode, 78, refused.stderr)
        self.assertIn(f"host1 has no folder {private}/folder: launch from", refused.stderr)
        shutil.copy(TRIREME, private)
        refused = subprocess.run([private / "trireme", *flags], capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(refused.returncode, 78, refused.stderr)
        self.assertIn(f"host1 cannot run {private}/trireme: install Trireme there", refused.stderr)

    def test_no_process_is_left_when_the_launcher_is_killed_and_the_run_is_saved(self):
        launcher = self.launch(self.hosts("host1 slots=1", "host2 slots=1"), "killed", 1000000)
        self.assertTrue(eventually(lambda: self.steps("killed") >= 2))
        self.assertGreater(len(self.processes_of_hosts()), 3)
        launcher.send_signal(signal.SIGKILL)
        launcher.communicate()
        self.assertTrue(eventually(lambda: self.processes_of_hosts() == []), self.processes_of_hosts())
        self.assertEqual(os.listdir(self.folder / "killed/checkpoints"), [f"step-{self.steps('killed')}"])

    def test_without_a_host_that_is_gone_a_run_goes_on_at_the_same_global_batch(self):
        lost = self.start_server("host3")  # by a server of its own, which the others' tests do not need
        flags = ["--elastic", "--max_restarts", "1", *self.hosts("host1 slots=1", "host3 slots=1")]
        launcher = self.launch(flags, "elastic", 150)
        self.assertTrue(eventually(lambda: self.steps("elastic") >= 12))
        for process in subprocess.run(["ip", "netns", "pids", "host3"], capture_output=True, text=True).stdout.split():
            os.kill(int(process), signal.SIGKILL)
        lost.wait()
        output = self.finish(launcher, 0)
        self.assertIn("--elastic leaves out host3: no ssh server answers on host3", output)
        self.assertIn("--gradient_accumulation_steps 1 -> 2 keeps the 2 samples of a step", output)
        self.assertIn("resumed at step ", output)
        self.finish(self.launch(["--nproc_per_node", "2"], "all-hosts", 150), 0)
        went_on, whole = self.losses("elastic"), self.losses("all-hosts")
        self.assertEqual(len(went_on), len(whole))
        for one, other in zip(went_on, whole):
            self.assertAlmostEqual(one, other, delta=1e-4 * other)


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print("SKIPPED: launchers over ssh are not tested:", reason)
        sys.exit(77)
    if not os.environ.get(FOLDER):  # not inside yet
        with tempfile.TemporaryDirectory(prefix="trireme-ssh-") as folder:
            words = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv]
            sys.exit(subprocess.run(words, env=os.environ | {FOLDER: folder}).returncode)
    unittest.main()
