"""What a command's output means: judges for Command, each (Outcome, figures of all commands so far) -> Verdict.

A judge also sees the output of a command that was ended early, so that the measurements until then are kept.
"""
import json
import re

from command import Verdict, exit_problem

NO_GPU = "no GPU"


def plain(outcome, _):
    return Verdict(exit_problem(outcome))


def json_rows(outcome, _):
    """Each line of JSON is a measurement of its own; {"error": ...} in one is a failure, {"lacks": ...} is not."""
    rows = outcome.json_lines()
    errors = [f"{row.get('name', '?')}: {row['error']}" for row in rows if "error" in row]
    problem = exit_problem(outcome)
    if errors:
        problem = f"{len(errors)} of {len(rows)} measurements failed, the first: {errors[0]}"
    elif not rows and not problem:
        problem = "no measurement was printed"
    lacks = [row["lacks"] for row in rows if "lacks" in row]
    return Verdict(problem, {"measurements": len(rows)}, rows, lacks[0] if rows and len(lacks) == len(rows) and not problem else "")


def step_rate(outcome, _):
    """`trireme bench step --json`."""
    problem, rows = exit_problem(outcome), outcome.json_lines()
    if problem or not rows:
        return Verdict(problem or "it printed no line of JSON")
    line = rows[-1]
    figures = {"step_seconds": line["median_step_s"], "tokens_per_second": line["tokens_per_s"],
               "model_tflops": line["model_gflops"] / 1e3,
               "matmul_tflops_beside": line["matmul_gflops_precision"] / 1e3, "peak_memory_mib": max(line["peak_rss_mib"]),
               "losses": line["losses"], "gradient_norms": line["gradient_norms"], "step_seconds_each": line["step_s"],
               "engine": line["engine"]}
    if "mfu" in line:  # of a GPU whose published rate is known (trireme/plan/published_peak_rate.cpp)
        figures["mfu_percent"] = line["mfu"] * 100
    if "formula" in outcome.stderr:
        figures["memory_report"] = outcome.stderr
    wrong = [loss for loss in line["losses"] if loss is None or not 0 < loss < 100]
    return Verdict(f"losses {line['losses']} are no losses" if wrong else "", figures)


def losses_like(other, first_tolerance, tolerance, norms_tolerance=None):
    """step_rate, and losses that equal those of another command ("stage/name"), relative to each.

    The first loss has no update before it, so its tolerance is tighter."""
    def judge(outcome, all_figures):
        verdict = step_rate(outcome, all_figures)
        expected = all_figures.get(other, {})
        if verdict.problem:
            return verdict
        if "losses" not in expected:
            return Verdict(f"{other} left no losses to compare with", verdict.figures)

        def differences(name):
            return [abs(a - b) / abs(b) for a, b in zip(verdict.figures[name], expected[name])]

        losses = differences("losses")
        figures = {**verdict.figures, "first_loss_differs": losses[0], "losses_differ_at_most": max(losses)}
        problem = ""
        if losses[0] > first_tolerance or max(losses) > tolerance:
            problem = (f"losses {verdict.figures['losses']} differ from {expected['losses']} of {other}: the first by {losses[0]:.1e} "
                       f"(at most {first_tolerance:.0e}), the worst by {max(losses):.1e} (at most {tolerance:.0e})")
        if norms_tolerance is not None:
            norms = differences("gradient_norms")
            figures["norms_differ_at_most"] = max(norms)
            if max(norms) > norms_tolerance and not problem:
                problem = f"gradient norms differ from those of {other} by {max(norms):.1e}, expected at most {norms_tolerance:.0e}"
        return Verdict(problem, figures)
    return judge


def peer_losses(other, first_tolerance, tolerance):
    """A peer's line of JSON, whose losses are compared with another command's."""
    def judge(outcome, all_figures):
        problem, rows = exit_problem(outcome), outcome.json_lines()
        ours = all_figures.get(other, {}).get("losses")
        if problem or not rows or not ours:
            return Verdict(problem or (f"{other} left no losses to compare with" if rows else "it printed no line of JSON"))
        theirs = rows[-1]["losses"]
        differ = [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]
        wrong = differ[0] > first_tolerance or max(differ) > tolerance
        return Verdict(f"losses {ours} of {other} differ from the peer's {theirs}" if wrong else "",
                       {"peer_losses": theirs, "first_loss_differs": differ[0], "losses_differ_at_most": max(differ),
                        "peer_step_seconds": rows[-1]["median_step_s"]})
    return judge


def verified(outcome, _):
    """`trireme verify --json`: one object over many lines; exit code 1 where a tensor differs."""
    try:
        result = json.loads(outcome.stdout)
    except ValueError:
        return Verdict(exit_problem(outcome) or "it printed no JSON")
    worst = max((t["error"], t["name"]) for t in result["tensors"])
    figures = {"worst_error": worst[0], "tensor": worst[1], "loss": result["loss"], "reference_loss": result["reference_loss"],
               "engine": result["engine"]}
    return Verdict("" if outcome.exit_code == 0 else f"{worst[1]} differs by {worst[0]:.1e} of its largest entry", figures)


def gtests(outcome, _):
    """Counts from GoogleTest's lines; a program all of whose tests were skipped has shown nothing."""
    count = {word: len(re.findall(rf"^\[ +{word} +\] .*\(\d+ ms\)$", outcome.stdout, re.M)) for word in ("OK", "FAILED", "SKIPPED")}
    begun = re.findall(r"^\[ RUN +\] (\S+)", outcome.stdout, re.M)
    figures = {"passed": count["OK"], "failed": count["FAILED"], "skipped": count["SKIPPED"]}
    failed = re.findall(r"^\[  FAILED  \] (\S+?),? .*\(\d+ ms\)$", outcome.stdout, re.M)
    if outcome.exit_code != 0:
        if len(begun) > sum(count.values()):
            return Verdict(f"it ended in {begun[-1]}: {exit_problem(outcome) if outcome.exit_code is not None else 'still running'}", figures)
        return Verdict(f"failed: {', '.join(dict.fromkeys(failed)) or exit_problem(outcome)}", figures)
    if count["SKIPPED"] and not count["OK"]:
        return Verdict("", figures, lacks=f"{NO_GPU}: all {count['SKIPPED']} tests were skipped")
    return Verdict("" if count["OK"] else "no test ran", figures)


def out_of_memory(category):
    """A planned out-of-memory: exit code 78, and a message that says which part of memory asked."""
    def judge(outcome, _):
        problem = exit_problem(outcome, 78)
        message = re.search(r"out of (\w+) memory: asked for ([^(]*) \(\d+ bytes\) more for ([^;]+);", outcome.stderr)
        if problem:
            return Verdict(problem)
        if not message:
            return Verdict("the message does not say which part of memory asked")
        figures = {"memory": message[1], "asked": message[2], "category": message[3]}
        wrong = category and message[3] not in category
        return Verdict(f"{message[3]} asked for it, expected one of {', '.join(category)}" if wrong else "", figures)
    return judge


def exchanges(outcome, _):
    """`trireme bench comm --json`: a row for each method."""
    problem, lines = exit_problem(outcome), outcome.json_lines()
    if problem or not lines:
        return Verdict(problem or "it printed no line of JSON")
    rows = [{"name": m["description"], "exchange_seconds": m["exchange_s"]["median"], "layer_seconds": m["layer_s"]["median"],
             "sent_mib": sum(m["sent_bytes"].values()) / 2**20, "formula_mib": sum(m["formula_bytes"].values()) / 2**20}
            for m in lines[-1]["methods"]]
    wrong = [row["name"] for row in rows if row["sent_mib"] != row["formula_mib"]]
    link = lines[-1].get("link", {})
    return Verdict(f"sent bytes differ from the formula: {', '.join(wrong)}" if wrong else "",
                   {"link_gb_per_second": link.get("bytes_per_s", 0) / 1e9, "link_latency_us": link.get("latency_s", 0) * 1e6}, rows)
