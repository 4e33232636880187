"""in_shards.py SECONDS PROGRAM: a GoogleTest program that waits more than it computes, as four processes, each with a quarter of its tests.

What still runs after SECONDS is ended, and what it printed until then is shown.
"""
import os
import subprocess
import sys
import tempfile
import time

SHARDS = 4


def start(shard):
    output = tempfile.TemporaryFile("w+", errors="replace")
    environment = os.environ | {"GTEST_TOTAL_SHARDS": str(SHARDS), "GTEST_SHARD_INDEX": str(shard)}
    return subprocess.Popen(sys.argv[2:], env=environment, stdout=output, stderr=subprocess.STDOUT), output


end = time.monotonic() + float(sys.argv[1])
bad = []
for shard, (process, output) in enumerate([start(shard) for shard in range(SHARDS)]):
    try:
        code = process.wait(max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    output.seek(0)
    print(output.read(), end="", flush=True)
    if code:
        bad.append(f"shard {shard} of {SHARDS} ended with {code} (-9: after {sys.argv[1]} s)")
print(*bad, sep="\n")
sys.exit(bool(bad))
