"""The page of a search for the longest sequence, from its rows (a header, one row a trial)."""
from longest_search import SETTINGS, Trial, longest_fit, next_length, shortest_failure
from report import machine_lines, model_lines, number, row_of
from systems import ALLOCATORS

COLUMNS = {"system": "---", "longest, tokens": "---:", "what is longer": "---", "peak memory, GiB": "---:",
           "seconds a step": "---:", "tokens/s": "---:", "allocator": "---", "times the peer's length": "---:"}
DTYPES = ("fp32", "bf16")
REASONS = {"memory": "over the memory limit", "time": "over the time limit", "error": "failed"}


def trials_of(rows, setting, dtype, allocator):
    return [Trial(r["length"], r["outcome"], r["seconds"]) for r in rows
            if (r["setting"], r["dtype"], r["allocator"]) == (setting, dtype, allocator)]


class Best:
    """The allocator with which one system gets farthest, and that run."""

    def __init__(self, rows, setting, dtype):
        self.setting, self.allocator, self.row, self.trials = SETTINGS[setting], None, None, []
        mine = [r for r in rows if (r["setting"], r["dtype"]) == (setting, dtype)]
        for allocator in dict.fromkeys(r["allocator"] for r in mine):
            trials = trials_of(rows, setting, dtype, allocator)
            fit = longest_fit(trials)
            if self.allocator is None or (fit is not None and fit.length > self.length):
                self.allocator, self.trials = allocator, trials
                self.row = next((r for r in mine if fit is not None and r["outcome"] == "fits" and
                                 (r["allocator"], r["length"]) == (allocator, fit.length)), None)

    @property
    def length(self):
        return self.row["length"] if self.row else 0

    def beyond(self, header):
        failure = shortest_failure(self.trials)
        if failure is not None:
            return f"{number(failure.length)}: {REASONS[failure.outcome]}"
        _, why = next_length(self.trials, 0, header["resolution"], header["trial_minutes"] * 60)
        return "would run over the time limit" if why == "time" else "not tried yet"


def table(header, rows, dtype):
    bests = [Best(rows, name, dtype) for name in SETTINGS if any((r["setting"], r["dtype"]) == (name, dtype) for r in rows)]
    peer = max((b.length for b in bests if not b.setting.ours), default=0)
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "|".join(COLUMNS.values()) + "|"]
    for best in bests:
        row = best.row
        if row is None:
            lines.append(row_of([best.setting.title, "none", best.beyond(header)], COLUMNS))
            continue
        ratio = f"{best.length / peer:.1f}" if best.setting.ours and peer else ""
        lines.append(row_of([best.setting.title, number(best.length), best.beyond(header), number(row["peak_bytes"] / 2**30, 2),
                             number(row["step_s"][-1], 1), number(row["tokens_per_s"]), best.allocator, ratio], COLUMNS))
    return lines


def loss_lines(rows, dtype):
    """How far losses lie apart where two systems took the same steps on the same tokens."""
    lines = []
    fits = [r for r in rows if r["dtype"] == dtype and r["outcome"] == "fits"]
    for length in sorted({r["length"] for r in fits}):
        at = {r["setting"]: r for r in fits if r["length"] == length}
        peer = next((r for name, r in at.items() if not SETTINGS[name].ours), None)
        for name, row in at.items():
            if peer is not None and row is not peer:
                worst = max(abs(a - b) / abs(b) for a, b in zip(row["losses"], peer["losses"]))
                lines.append(f"- {dtype}, {number(length)} tokens: {SETTINGS[name].title} is within {worst:.1e} of the peer's loss "
                             f"in both steps")
    return lines


def left_files_line(rows):
    killed = [r for r in rows if SETTINGS[r["setting"]].ours and r["outcome"] != "fits"]
    left = sum(r["left_files"] for r in killed)
    return [f"- {len(killed)} runs of Trireme were ended from outside or failed; files that they left on disk: {left}"] if killed else []


def commands(rows):
    """What was run for the longest of each, to be repeated by hand."""
    lines = []
    for dtype in DTYPES:
        for name in SETTINGS:
            best = Best(rows, name, dtype)
            if best.row is None:
                continue
            preload = "" if best.setting.ours or best.allocator == "glibc" else f"LD_PRELOAD={ALLOCATORS[best.allocator]} "
            lines.append("    " + preload + " ".join(best.row["command"]))
    return lines


def page(header, rows):
    lines = [f"# The longest sequence under {header['limit_gib']:g} GiB, {header['date']}", "",
             f"`{header['command']}` at {header['commit']}.", "",
             *machine_lines(header), *model_lines(header),
             "- a length counts when two training steps end within the limit; tried by doubling, then by halves down to "
             f"{header['resolution']:g} of the length",
             f"- limit, for all alike: {header['limit_gib']:g} GiB by {header['limiter']}; peaks are RssAnon + RssShmem of all processes",
             f"- a run may take {header['trial_minutes']:g} minutes; one process, all cores; seconds and tokens/s are the second step's"]
    losses = []
    for dtype in DTYPES:
        if any(r["dtype"] == dtype for r in rows):
            lines += ["", f"## {dtype}", "", *table(header, rows, dtype)]
            losses += loss_lines(rows, dtype)
    notes = losses + left_files_line(rows)
    if notes:
        lines += ["", "## Checks", "", *notes]
    made = commands(rows)
    if made:
        lines += ["", "## The longest runs, one by one", "", *made]
    return "\n".join(lines) + "\n"
