"""The table of docs/plan.md, "How long on how many GPUs", holds what `trireme plan` says: in the gate its first row, and with
TRIREME_ALL_ROWS=1 all of them, which takes a minute. With TRIREME_WRITE_PAGES=1 they are written anew.
"""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRIREME = os.environ.get("TRIREME_BINARY", str(ROOT / "build/cpu/bin/trireme"))
PAGE = ROOT / "docs/plan.md"
ROW = re.compile(r"^\| (`([\w.-]+)`[^|]*)((?: \| [\d,]+, [\d,]+){4}) \|$", re.MULTILINE)


def plan(model, gpus, *flags):
    command = [TRIREME, "plan", "--model", model, "--gpu", "h100-80gb", "--gpus", str(gpus), *flags, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)["best"]


def figures(model, gpus):
    """The longest sample in thousands of tokens, and tokens/s of each GPU at 128K."""
    longest = plan(model, gpus, "--objective", "length")["tokens"]
    rate = plan(model, gpus, "--max_seq_length", "128k")["time"]["tokens_per_second_each_device"]
    return f"{longest // 1000:,}, {rate:,.0f}"


def row(match):
    return f"| {match[1]} | {' | '.join(figures(match[2], gpus) for gpus in (1, 2, 4, 8))} |"


class PlanTable(unittest.TestCase):
    def test_holds_what_the_planner_says(self):
        text = PAGE.read_text()
        rows = list(ROW.finditer(text))
        self.assertEqual(len(rows), 7)
        if os.environ.get("TRIREME_WRITE_PAGES"):
            PAGE.write_text(ROW.sub(row, text))
            return
        for known in rows if os.environ.get("TRIREME_ALL_ROWS") else rows[:1]:
            self.assertEqual(known[0], row(known), "write them anew: TRIREME_WRITE_PAGES=1 python3 tests/docs/plan_table_test.py")


if __name__ == "__main__":
    unittest.main()
