# Read by each program of the package's bin/ (sh; $root is the package's folder). Finds the libtorch that the package
# was built for and sets, for the program and all that it starts:
#
#   LD_LIBRARY_PATH     the package's libraries, libtorch's, those of NVIDIA's wheels beside it; then what the user had
#   TRIREME_LIBTORCH    the folder whose lib/ and include/ are libtorch's
#   TRIREME_BINARY, TRIREME_SOURCE_DIR    the program itself and the repository's files, for tests and scripts
#
# Looked at, in this order: TRIREME_LIBTORCH, and nothing else where it is set; libtorch/ in the package and beside it; the
# Python environments (VIRTUAL_ENV, python3, python). Python says where torch lies and does not import it.
#
# libtorch is given by LD_LIBRARY_PATH and not by a path in the binaries, as it lies elsewhere on each machine. Its
# libraries carry an RPATH to NVIDIA's wheels beside them, which the loader reads first. Its lib/ also holds the one OpenMP
# runtime, libgomp.so.1, that libtorch and the program share.

. "$root/libexec/built_for.sh" # libtorch_version=2.11, libtorch_cuda=13 or empty, package_name

if [ -n "$libtorch_cuda" ]; then libtorch_kind="libtorch $libtorch_version for CUDA $libtorch_cuda"
else libtorch_kind="libtorch $libtorch_version"; fi
looked_for=
note() {
  looked_for="$looked_for
  $*"
}

refuse() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 78
}

# fits WHERE FOLDER: whether FOLDER/torch or FOLDER is a libtorch that we can use; sets torch.
fits() {
  for torch in "$2/torch" "$2"; do
    [ -f "$torch/lib/libtorch_cpu.so" ] && break
    torch=
  done
  if [ -z "$torch" ]; then
    note "$1: no libtorch in $2 (no torch/lib/libtorch_cpu.so, no lib/libtorch_cpu.so)"
    return 1
  fi
  torch=$(CDPATH= cd -- "$torch" && pwd)
  # The wheel says its version in version.py, the archive without Python in build-version.
  version=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$torch/version.py" 2>/dev/null || cat "$torch/build-version" 2>/dev/null)
  case ${version%%+*} in
    "$libtorch_version".*[!0-9.]*)
      note "$1: $torch is version $version, from before the release"
      return 1
      ;;
    "$libtorch_version".*) ;;
    *)
      note "$1: $torch is version ${version:-unknown (neither in version.py nor in build-version)}"
      return 1
      ;;
  esac
  if [ -n "$libtorch_cuda" ]; then
    cuda=$(sed -n "s/^cuda.* = '\(.*\)'/\1/p" "$torch/version.py" 2>/dev/null)
    case $version in *+cu*) cuda=${cuda:-${version#*+cu}} ;; esac
    case $cuda in
      "$libtorch_cuda"*) ;;
      *)
        note "$1: $torch is version $version, built ${cuda:+for CUDA }${cuda:-without CUDA}"
        return 1
        ;;
    esac
    if [ ! -f "$torch/lib/libtorch_cuda.so" ]; then
      note "$1: $torch is version $version and has no lib/libtorch_cuda.so"
      return 1
    fi
  fi
  for runtime in "$torch"/lib/libgomp-*.so* "$torch"/lib/libiomp5.so; do
    if [ -e "$runtime" ]; then
      note "$1: $torch is version $version with an OpenMP runtime of its own name (${runtime##*/}); the wheel's is libgomp.so.1"
      return 1
    fi
  done
  case $root$torch in
    *[:\;]*)
      note "$1: the dynamic loader takes no folder with ':' or ';' in its name; libtorch is $torch, the package $root"
      return 1
      ;;
  esac
  library_path=$root/lib:$torch/lib
  for folder in "${torch%/*}"/nvidia/*/lib; do
    if [ -d "$folder" ]; then library_path=$library_path:$folder; fi
  done
  library_path=$library_path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  # The loader's own account, as for ldd, is quick; that of Ubuntu 22.04 crashes where a library is missing, and a start then says which.
  { LD_LIBRARY_PATH=$library_path LD_TRACE_LOADED_OBJECTS=1 "$root/libexec/trireme" || echo "not found"; } 2>/dev/null |
    grep 'not found' >/dev/null || return 0
  problem=$(LD_LIBRARY_PATH=$library_path "$root/libexec/trireme" --version 2>&1 >/dev/null) && return 0
  note "$1: $torch is version $version, and the program does not start with it: ${problem#*: }"
  return 1
}

# in_python WHERE COMMAND: the same for the torch of a Python environment.
in_python() {
  python=$(command -v "$2") || {
    note "$1: there is none"
    return 1
  }
  # Without the working folder, in which a folder torch may lie.
  found=$("$python" -c '
import sys
from importlib.machinery import PathFinder
spec = PathFinder.find_spec("torch", [folder for folder in sys.path if folder])
print(spec.submodule_search_locations[0] if spec and spec.has_location else "")' 2>/dev/null)
  if [ -z "$found" ]; then
    note "$1 ($python): has no torch"
    return 1
  fi
  fits "$1 ($python)" "$found"
}

find_libtorch() {
  if [ -n "${TRIREME_LIBTORCH:-}" ]; then
    fits TRIREME_LIBTORCH "$TRIREME_LIBTORCH"
    return
  fi
  note "TRIREME_LIBTORCH: is not set"
  fits "in the package" "$root/libtorch" && return
  fits "beside the package" "${root%/*}/libtorch" && return
  if [ -n "${VIRTUAL_ENV:-}" ]; then in_python VIRTUAL_ENV "$VIRTUAL_ENV/bin/python" && return; fi
  in_python python3 python3 && return
  in_python python python
}

find_libtorch || refuse "found no $libtorch_kind, which $package_name needs. Looked at:$looked_for
Install it in a Python environment and have that on the path (python3 -m venv DIR && DIR/bin/pip install torch==$libtorch_version.0 &&
. DIR/bin/activate), or set TRIREME_LIBTORCH to the folder that holds torch/lib or lib."

export LD_LIBRARY_PATH="$library_path"
export TRIREME_LIBTORCH="$torch" TRIREME_BINARY="$root/libexec/trireme" TRIREME_SOURCE_DIR="$root/share/trireme"
