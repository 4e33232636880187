"""What a package may hold."""
import filecmp
import os
import sys
import tarfile
import tempfile
import unittest

from fake_package import PACKAGING

sys.path.insert(0, PACKAGING)
import make_package  # noqa: E402

NEEDS = """
Version symbols section '.gnu.version' contains 2 entries:
  000:   0 (*local*)       2 (GLIBC_2.99)
Version needs section '.gnu.version_r' contains 2 entries:
 Addr: 0x0  Offset: 0x0  Link: 6 (.dynstr)
  000000: Version: 1  File: libc.so.6  Cnt: 2
  0x0010:   Name: {}  Flags: none  Version: 3
  0x0020:   Name: GLIBC_2.4  Flags: none  Version: 2
  0x0030: Version: 1  File: libstdc++.so.6  Cnt: 1
  0x0040:   Name: GLIBCXX_3.4.30  Flags: none  Version: 4
Version definition section '.gnu.version_d' contains 1 entry:
  0x001c: Rev: 1  Flags: none  Index: 2  Cnt: 1  Name: GLIBC_2.98
"""


class SymbolVersions(unittest.TestCase):
    def too_new(self, name):
        return make_package.too_new(make_package.versions_needed(NEEDS.format(name)))

    def test_are_those_needed_and_compared_as_numbers(self):
        self.assertEqual(self.too_new("GLIBC_2.35"), [])
        self.assertEqual(self.too_new("GLIBC_2.36"), ["GLIBC_2.36"])
        self.assertEqual(self.too_new("GLIBC_2.100"), ["GLIBC_2.100"])
        self.assertEqual(self.too_new("GLIBCXX_3.4.31"), ["GLIBCXX_3.4.31"])
        self.assertEqual(self.too_new("CXXABI_1.3.14"), ["CXXABI_1.3.14"])


class Libraries(unittest.TestCase):
    def test_of_libtorch_cuda_and_the_system_stay_out(self):
        for name in ("libtorch_cpu.so", "libc10_cuda.so", "libgomp.so.1", "libnccl.so.2", "libcudart.so.13", "libcuda.so.1",
                     "libcudnn.so.9", "libnvrtc.so.13", "libcublasLt.so.13"):
            self.assertTrue(make_package.FROM_LIBTORCH.fullmatch(name), name)
        for name in ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"):
            self.assertTrue(make_package.FROM_THE_SYSTEM.fullmatch(name), name)
        for name in ("libonig.so.5", "libutf8proc.so.2", "libyaml-cpp.so.0.7", "libxxhash.so.0", "libgtest.so.1.12.1", "libcurl.so.4", "libcrypto.so.3"):
            self.assertFalse(make_package.FROM_LIBTORCH.fullmatch(name) or make_package.FROM_THE_SYSTEM.fullmatch(name), name)


class Tests(unittest.TestCase):
    @staticmethod
    def listed(name, *command, labels=("unit",)):
        properties = {"LABELS": list(labels), "TIMEOUT": 900.0, "ENVIRONMENT": ["A=1", "TRIREME_BINARY=/b/bin/trireme"]}
        return {"name": name, "command": list(command), "properties": [{"name": n, "value": v} for n, v in properties.items()]}

    def test_are_those_whose_binary_is_installed_also_behind_a_script_that_starts_it(self):
        listed = [self.listed("alone", "/b/bin/alone"), self.listed("in_shards", "/usr/bin/python3", "/s/in_shards.py", "870", "/b/bin/in_shards"),
                  self.listed("of_python", "/usr/bin/python3", "/s/of_python.py"), self.listed("slow", "/b/bin/slow", labels=("slow",)),
                  self.listed("not_installed", "/b/bin/not_installed")]
        rows = list(make_package.tests_of(listed, "/b", ["alone", "in_shards", "slow", "of_python.py"]))
        self.assertEqual(rows, [[name, "unit", "900", "A=1", name] for name in ("alone", "in_shards")])


class Archive(unittest.TestCase):
    def test_is_the_same_each_time_and_of_nobody(self):
        with tempfile.TemporaryDirectory() as folder:
            package = os.path.join(folder, "p")
            for name in ("b", "a"):
                os.makedirs(os.path.join(package, name))
                with open(os.path.join(package, name, "file"), "w") as file:
                    file.write(name)
            archives = [os.path.join(folder, name) for name in ("one.tar.gz", "two.tar.gz")]
            for archive in archives:
                make_package.pack(package, archive, 1_700_000_000)
                os.utime(os.path.join(package, "a/file"))
            self.assertTrue(filecmp.cmp(*archives, shallow=False))
            with tarfile.open(archives[0]) as tar:
                self.assertEqual([entry.name for entry in tar], ["p", "p/a", "p/a/file", "p/b", "p/b/file"])
                self.assertEqual({(entry.uid, entry.uname, entry.mtime) for entry in tar}, {(0, "", 1_700_000_000)})


if __name__ == "__main__":
    unittest.main()
