"""The page of a run: each stage and command with its state, the figures beside earlier ones, the failures with what to do.

Made from the results alone, anew after each command, so that it is right whenever the run ends.
"""
from earlier_figures import earlier_figure

STATES = ("passed", "failed", "over limit", "cut off", "not reached", "lacks")
KEPT_FROM_TABLES = ("losses", "gradient_norms", "step_seconds_each", "engine", "peer_losses", "memory_report")


def number(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]


def stage_state(states):
    """One word for a stage: the worst of its commands, but what it lacks only where nothing else is to be said."""
    for state in ("failed", "over limit", "cut off", "not reached"):
        if state in states:
            return state
    return "passed" if "passed" in states else "lacks" if states else "not reached"


def overall(planned, results):
    """The worst of the stages. A stage that lacks all that it needs counts, a single command that does not run here does not."""
    stages = [stage_state([results.state(f"{stage}/{name}") for name in names]) for stage, _, names in planned]
    models = {record["state"] for key, record in results.commands.items() if key.startswith("models/")}
    stages += models & {"failed", "lacks"}  # of others the commands that wait for them tell
    worst = stage_state(stages)
    return "lacks" if worst == "passed" and "lacks" in stages else worst


def figures_text(record):
    figures = {name: value for name, value in record.get("figures", {}).items() if name not in KEPT_FROM_TABLES}
    return ", ".join(f"{name} {number(value)}" for name, value in figures.items())


def facts(results):
    values = {row["name"]: row.get("value") for row in results.commands.get("facts/machine", {}).get("rows", [])}
    lines = []
    for name in ("gpu", "machine", "memory_gib", "control_groups", "disk_scratch"):
        if name in values:
            value = values[name]
            text = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
            lines.append(f"- {name}: {text}")
    return lines


def stage_table(planned, results):
    rows = []
    for stage, limit, names in planned:
        records = [results.commands.get(f"{stage}/{name}", {}) for name in names]
        states = [results.state(f"{stage}/{name}") for name in names]
        counts = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
        rows.append([stage, stage_state(states), counts, f"{sum(r.get('seconds', 0) for r in records):.0f}", f"{limit:.0f}"])
    return table(["stage", "state", "commands", "seconds", "limit"], rows)


def command_row(key, results):
    record = results.commands.get(key, {})
    told = "; ".join(text for text in (record.get("reason", ""), figures_text(record)) if text)
    return [key, results.state(key), f"{record['seconds']:.1f}" if "seconds" in record else "", told]


def command_table(planned, results):
    """A stage all of whose commands lack the same is one row."""
    rows = [command_row(key, results) for key in results.commands if key.startswith("models/")]
    for stage, _, names in planned:
        told = {(results.state(f"{stage}/{name}"), results.commands.get(f"{stage}/{name}", {}).get("reason", "")) for name in names}
        if len(names) > 1 and len(told) == 1 and ("lacks", reason := min(told)[1]) in told:
            rows.append([f"{stage}, all {len(names)}", "lacks", "", reason])
        else:
            rows += [command_row(f"{stage}/{name}", results) for name in names]
    return table(["command", "state", "seconds", "figures"], rows)


def beside_earlier(planned, results):
    rows = []
    for stage, _, names in planned:
        for name in names:
            key = f"{stage}/{name}"
            figures = results.commands.get(key, {}).get("figures", {})
            for figure, value in figures.items():
                earlier = None if "model" in figures else earlier_figure(key, figure)  # the earlier ones are of the whole model
                if earlier is not None:
                    rows.append([key, figure, number(value), number(earlier), f"{value / earlier:.2f}"])
    return table(["command", "figure", "measured", "earlier", "measured / earlier"], rows) if rows else []


def beside_kernels(results):
    """Steps as a share of the fastest bf16 product of random values that torch reached in the same run."""
    products = [row["tflops"] for row in results.commands.get("micro/matmul", {}).get("rows", [])
                if row["name"].startswith("bf16") and row["name"].endswith("random") and "tflops" in row]
    steps = [(key, record.get("figures", {}).get("model_tflops")) for key, record in results.commands.items()
             if key.startswith(("speed/", "long/"))]
    rows = [[key, number(tflops), number(max(products)), f"{100 * tflops / max(products):.0f} %"] for key, tflops in steps if tflops and products]
    return table(["command", "model TFLOP/s", "bf16 product, TFLOP/s", "share"], rows) if rows else []


def measurement_table(records, on_gpu):
    rows = []
    for record in records:
        for row in record.get("rows", []):
            if "value" in row:
                continue
            if "error" in row or "lacks" in row:
                rows.append([row["name"], "error: " + row["error"] if "error" in row else "lacks: " + row["lacks"], "", ""])
                continue
            for figure, value in row.items():
                if figure != "name":
                    earlier = earlier_figure("", figure, row["name"]) if on_gpu else None
                    rows.append([row["name"], figure, number(value), number(earlier) if earlier else ""])
    return table(["measurement", "figure", "measured", "earlier"], rows) if rows else []


def kernel_rows(records):
    rows = [[row["name"], row["calls"], f"{row['seconds'] * 1e3:.2f}", f"{row.get('share_percent', 100):.1f}"]
            for record in records for row in record.get("rows", []) if "calls" in row]
    return table(["kernel", "calls", "ms in all", "share %"], rows) if rows else []


def what_to_do(key, state):
    if state == "cut off":
        return "Call the same command again: it goes on here."
    if state == "over limit":
        return f"The output shows how far it got; `--again {key.split('/')[0]}` runs the stage anew."
    return f"Read the output; after mending, `--again {key.split('/')[0]}` runs the stage anew."


def failures(results):
    lines = []
    for key, record in results.commands.items():
        if record["state"] not in ("failed", "over limit", "cut off"):
            continue
        lines.append(f"- **{key}** {record['state']}: {record.get('reason', '')}. Output: `{record.get('stdout', '')}`, `{record.get('stderr', '')}`. "
                     f"{what_to_do(key, record['state'])}")
        lines.append(f"  Command: `{record.get('command', '')}`")
    return lines


def page(planned, results):
    """`planned` is [(stage, seconds, [names of commands])] of this call."""
    first, last = results.calls[0], results.calls[-1]

    def records(stage):
        return [record for key, record in results.commands.items() if key.startswith(stage + "/")]

    lines = [f"# ./dev gpu {last['plan']}: {last['date']}", "",
             f"Device {last['device']}, commit {last['commit']}, program {last['binary']}, {len(results.calls)} "
             f"call{'s' if len(results.calls) > 1 else ''} since {first['began']}. State: **{overall(planned, results)}**.", ""]
    builds = {call["binary"] for call in results.calls}
    if len(builds) > 1:
        lines += [f"The program was built anew between calls: {', '.join(sorted(builds))}; state.json says which call ran a command.", ""]
    lines += facts(results)
    on_gpu = last["device"] == "cuda"
    memory = [line for stage, _, names in planned for name in names
              for report in [results.commands.get(f"{stage}/{name}", {}).get("figures", {}).get("memory_report")] if report
              for line in (f"{stage}/{name}:", "", "```", report.rstrip(), "```", "")]
    sections = [("Stages", stage_table(planned, results)), ("Beside earlier figures", beside_earlier(planned, results) if on_gpu else []),
                ("Steps beside torch's own products", beside_kernels(results) if on_gpu else []),
                ("Commands", command_table(planned, results)), ("What did not pass", failures(results)),
                ("Where memory went", memory[:-1]),
                ("torch's own kernels", measurement_table(records("micro"), on_gpu)), ("Exchanges", measurement_table(records("ranks"), on_gpu)),
                ("GPU kernels of three steps", kernel_rows(records("kernels")))]
    for title, body in sections:
        if body:
            lines += ["", f"## {title}", "", *body]
    return "\n".join(lines) + "\n"
