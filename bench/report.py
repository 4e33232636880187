"""Turns the rows of a benchmark (a header and one row a run) into a Markdown page."""
import statistics

from systems import COMPARED, SYSTEMS

RECOMPUTE_TITLES = {False: "each at its fastest setting", True: "equal recompute: every layer is computed again in backward"}

COLUMNS = {"tokens": "---:", "system": "---", "tokens/s (least - most)": "---:", "share of matmul rate": "---:",
           "CPU s a step": "---:", "peak memory, MiB": "---:", "allocator": "---", "Trireme is": "---:",
           "memory of Trireme": "---:", "cores used by others": "---:"}


def median(values):
    return statistics.median(values) if values else None


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def kind_of(row):
    return row["system"], row["dtype"], row["length"], row["recompute"]


def best_allocator(rows, system, dtype, length, recompute):
    """The allocator with the highest median speed, or None where nothing has finished."""
    speeds = {}
    for row in rows:
        if kind_of(row) == (system, dtype, length, recompute) and not row["failed"]:
            speeds.setdefault(row["allocator"], []).append(row["tokens_per_s"])
    return max(speeds, key=lambda name: median(speeds[name])) if speeds else None


def matmul_rate(rows, shape, dtype):
    """GFLOP/s: the best that our runs of this shape saw, for other programs can only make it less."""
    return max((max(r["matmul_gflops_fp32"], r["matmul_gflops_precision"]) for r in rows
                if r["dtype"] == dtype and SYSTEMS[r["system"]].shape == shape and "matmul_gflops_fp32" in r), default=None)


class Cell:
    """All runs of one system at one dtype, length and recompute setting, with the allocator that serves it best."""

    def __init__(self, rows, system, dtype, length, recompute):
        mine = [r for r in rows if kind_of(r) == (system, dtype, length, recompute)]
        self.allocator = best_allocator(rows, system, dtype, length, recompute)
        self.runs = [r for r in mine if not r["failed"] and r["allocator"] == self.allocator]
        self.failures = [r["failed"] for r in mine if r["failed"]]
        speeds = [r["tokens_per_s"] for r in self.runs]
        self.speed, self.least, self.most = median(speeds), min(speeds, default=None), max(speeds, default=None)
        self.gflops = median([r["model_gflops"] for r in self.runs if "model_gflops" in r])
        self.memory_mib = median([sum(r["peak_rss_mib"]) for r in self.runs])
        self.cpu_seconds = median([r["cpu_s_per_step"] for r in self.runs])
        self.others = max((r["load"]["other_cores"] + r["load"]["steal_cores"] for r in self.runs), default=None)
        self.losses = self.runs[0]["losses"] if self.runs else []


def row_of(values, columns):
    return "| " + " | ".join(str(v) for v in values + [""] * (len(columns) - len(values))) + " |"


def compared(rows):
    """The pairs that ran. A peer that stands in two is shown beside ours alone, where only one of ours ran."""
    ran = {row["system"] for row in rows}
    with_ours = [pair for pair in COMPARED if pair[1] in ran]
    return with_ours + [pair for pair in COMPARED if pair[1] not in ran and pair[2] in ran - {p[2] for p in with_ours}][:1]


def table(rows, dtype, recompute, lengths, names):
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "|".join(COLUMNS.values()) + "|"]
    matmul, shown = matmul_rate(rows, SYSTEMS[names[0]].shape, dtype), False
    for length in lengths:
        cells = {name: Cell(rows, name, dtype, length, recompute) for name in names}
        ours = next((cells[n] for n in names if SYSTEMS[n].ours), None)
        for name in names:
            cell, note = cells[name], ""
            if not cell.runs and not cell.failures:
                continue
            shown = True
            if not cell.runs and not recompute:  # the fastest setting that fits
                fallback = Cell(rows, name, dtype, length, True)
                note = f" ({cell.failures[0]})"
                if fallback.runs:
                    cell, note = fallback, note + ", with recompute"
            if not cell.runs:
                lines.append(row_of([length, SYSTEMS[name].title, cell.failures[0]], COLUMNS))
                continue
            # The same work: a peer that did not count it has ours.
            gflops = cell.gflops or (ours.gflops * cell.speed / ours.speed if ours and ours.gflops else None)
            share = f"{100 * gflops / matmul:.0f}%" if matmul and gflops else "-"
            peer = not SYSTEMS[name].ours
            ratio = f"{ours.speed / cell.speed:.2f}x" if peer and ours and ours.speed else ""
            memory = f"{ours.memory_mib / cell.memory_mib:.2f}x" if peer and ours and ours.memory_mib else ""
            speed = f"{number(cell.speed)} ({number(cell.least)} - {number(cell.most)})"
            lines.append(row_of([length, SYSTEMS[name].title + note, speed, share, number(cell.cpu_seconds, 1),
                                 number(cell.memory_mib), cell.allocator, ratio, memory, number(cell.others, 2)], COLUMNS))
    return lines if shown else []


def loss_lines(rows, lengths, dtypes):
    """How far the peers' losses lie from ours, step by step on the same weights and tokens."""
    lines = []
    for dtype in dtypes:
        for length in lengths:
            cells = {name: Cell(rows, name, dtype, length, False) for name in SYSTEMS}
            reference = next((cells[n] for n in ("trireme1", "trireme2", "hf2") if cells[n].losses), None)
            if reference is None:
                continue
            for name, cell in cells.items():
                pairs = list(zip(reference.losses, cell.losses))
                if cell is reference or not pairs:
                    continue
                worst = max(abs(a - b) / abs(a) for a, b in pairs)
                lines.append(f"- {dtype}, {length} tokens, {SYSTEMS[name].title}: {len(pairs)} steps, largest difference "
                             f"{worst:.1e} of the loss")
    return lines


def machine_lines(header):
    machine = header["machine"]
    return [f"- {machine['processor']}, {machine['cores']} cores ({', '.join(machine['features'])}), "
            f"{machine['memory_gib']} GiB, Linux {machine['kernel']}"]


def model_lines(header):
    return [f"- model: `trireme init --preset {header.get('preset', 'small')}`, {header['parameters']} parameters, the same weights and tokens for "
            "all; AdamW" + (f", of a LoRA adapter of rank {header['lora_r']} in all projections" if header.get("lora_r") else "")]


def page(header, rows):
    dtypes = [d for d in ("fp32", "bf16") if any(r["dtype"] == d for r in rows)]
    lengths = sorted({r["length"] for r in rows})
    rates = {}
    for row in rows:
        if "matmul_gflops_fp32" in row:
            rates.setdefault("fp32", []).append(row["matmul_gflops_fp32"])
            if row["dtype"] == "bf16" and row["matmul_gflops_precision"] != row["matmul_gflops_fp32"]:
                rates.setdefault("bf16", []).append(row["matmul_gflops_precision"])
    lines = [f"# Training speed and memory, {header['date']}{', quick' if header['quick'] else ''}", "",
             f"`{header['command']}` at {header['commit']}. What the columns mean: [README](../README.md).", "",
             *machine_lines(header),
             "- measured matmul rate of all cores: " +
             (", ".join(f"{name} {max(values):.0f} GFLOP/s" for name, values in rates.items()) or "-"),
             *model_lines(header)]
    for recompute in (False, True):
        for dtype in dtypes:
            for title, *pair in compared(rows):
                body = table(rows, dtype, recompute, lengths, pair)
                if body:
                    lines += ["", f"## {dtype}, {title}, {RECOMPUTE_TITLES[recompute]}", "", *body]
    agreement = loss_lines(rows, lengths, dtypes)
    if agreement:
        lines += ["", "## Do they compute the same?", "", *agreement]
    return "\n".join(lines) + "\n"
