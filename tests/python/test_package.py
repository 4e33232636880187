"""The package as pip builds it: the sdist has all that the build reads, the wheel that is built from it works beside torch.

Compiling takes over two minutes of two cores, so that form is not in the gate.
"""

import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest
import trireme

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 1800
BUILD_SDIST = "import sys, scikit_build_core.build as backend; backend.build_sdist(sys.argv[1])"
# Beside transformers' own kernel of torch, in a process that has nothing of the repository on its path.
USE = """
import pathlib, torch, trireme
assert pathlib.Path(trireme.__file__).parent == pathlib.Path({site!r}, "trireme"), trireme.__file__
q, k, v = (torch.randn(2, 17, heads, 8, requires_grad=True) for heads in (4, 2, 2))
o = trireme.ulysses_attention(q, k, v)
truth = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, enable_gqa=True)
torch.testing.assert_close(o, truth.transpose(1, 2))
for ours, theirs in zip(torch.autograd.grad(o.sum(), (q, k, v)), torch.autograd.grad(truth.sum(), (q, k, v))):
    torch.testing.assert_close(ours, theirs)
print("works")
"""


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=LIMIT_SECONDS, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-c", BUILD_SDIST, folder, cwd=ROOT)
    return next(folder.glob("trireme-*.tar.gz"))


def unpack(sdist, folder):
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    return next(folder.iterdir())


def test_the_sdist_has_all_that_the_build_reads_and_nothing_else_of_weight(sdist, tmp_path):
    source = unpack(sdist, tmp_path / "unpacked")
    libtorch = run(sys.executable, "-c", "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1], end='')")
    build = tmp_path / "build"
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DSKBUILD=2", f"-DTRIREME_LIBTORCH={libtorch}")
    run("ninja", "-C", build, "-n", "trireme_operators")  # fails where a source is missing
    compiled = run("ninja", "-C", build, "-t", "inputs", "trireme_operators").split()
    ours = [pathlib.Path(name) for name in compiled if name.endswith(".cpp") and name.startswith(str(source))]
    assert len(ours) > 20
    includes = set()
    for file in {path for path in source.rglob("*") if path.suffix in (".h", ".cpp")}:
        folder = file.relative_to(source).parts[:2]
        if any(path.relative_to(source).parts[:2] == folder for path in ours):
            includes |= {line.split('"')[1] for line in file.read_text().splitlines() if line.startswith('#include "')}
    assert [name for name in sorted(includes) if not (source / name).is_file()] == []
    packed = {path.relative_to(source) for path in (source / "python/trireme").rglob("*") if path.is_file()}
    assert packed == {path.relative_to(ROOT) for path in (ROOT / "python/trireme").rglob("*") if path.suffix in (".py", ".typed")}
    assert not any((source / name).exists() for name in ("tests", "bench", "build", ".deps", "examples"))
    assert sdist.stat().st_size < 2e6


@pytest.mark.slow
def test_the_wheel_that_is_built_from_the_sdist_works_beside_torch(sdist, tmp_path):
    source = unpack(sdist, ROOT / "build/package")  # always the same, for a compiler cache
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("trireme-*-py3-none-*.whl")
    site = tmp_path / "site"
    run(*pip, "install", "--no-deps", "--no-index", "--target", site, wheel)
    installed = {path.name for path in (site / "trireme").iterdir()}
    files = {path.name for path in (source / "python/trireme").iterdir()}
    assert installed - {"__pycache__"} == files | {"libtrireme_operators.so", "torch_version.txt"}
    metadata = next(site.glob("trireme-*.dist-info/METADATA")).read_text()
    assert f"Version: {trireme.__version__}\n" in metadata and "Requires-Dist: torch==2.11.0" in metadata
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TRIREME_", "PYTHON"))}
    assert run(sys.executable, "-c", USE.format(site=str(site)), cwd=tmp_path, env={**environment, "PYTHONPATH": str(site)}) == "works\n"


def test_types_are_told():
    assert (pathlib.Path(trireme.__file__).parent / "py.typed").is_file()
    named = {name: getattr(trireme, name) for name in trireme.__all__ if name != "hf"}
    named.update({name: getattr(trireme.hf, name) for name in trireme.hf.__all__})
    for name, told in named.items():
        for function in public_methods(told) if inspect.isclass(told) else [told]:
            signature = inspect.signature(function)
            assert signature.return_annotation is not signature.empty, f"{name}: {function.__qualname__}"
            given = [parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")]
            assert all(parameter.annotation is not parameter.empty for parameter in given), f"{name}: {function.__qualname__}{signature}"


def public_methods(kind):
    return [member for name, member in inspect.getmembers(kind, inspect.isroutine) if not name.startswith("_") and name in vars(kind)]
