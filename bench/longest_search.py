"""What is tried for the longest sequence, and in which order: doubling until it fails, then halves of what is left."""
from dataclasses import dataclass

from measuring import BINARY, ROOT
from systems import Measurement

STEPS, WARMUP = 2, 1  # two training steps; the second one is timed
LEAST_TOKENS = 256


@dataclass(frozen=True)
class Setting:
    name: str
    title: str
    system: str  # of systems.SYSTEMS
    flags: tuple = ()  # ours: beside the model, the length and the dtype; {dir} is a folder on disk

    @property
    def ours(self):
        return self.system == "trireme1"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("everything", "Trireme, everything on", "trireme1", (
            "--zero", "3", "--recompute", "keep_attention", "--offload_params", "disk",
            "--offload_optimizer", "disk", "--offload_activations", "disk", "--offload_dir", "{dir}",
            "--update_in_backward")),
        Setting("checkpointing", "Trireme, layer inputs kept in memory", "trireme1", ("--recompute", "full")),
        Setting("hf", "Hugging Face Transformers, gradient checkpointing", "hf"),
    )
}


def command_of(setting, dtype, length, model, folder, cores):
    """One process with all cores."""
    if not setting.ours:
        return Measurement(setting.system, dtype, length, True, "own").command(ROOT, model, STEPS, WARMUP, cores)
    return [BINARY, "bench", "step", "--model", model, "--seq", str(length), "--steps", str(STEPS), "--warmup", str(WARMUP),
            "--device", "cpu", "--threads", str(cores), "--json", *(["--bf16"] if dtype == "bf16" else []),
            *(flag.format(dir=folder) for flag in setting.flags)]


@dataclass(frozen=True)
class Trial:
    length: int
    outcome: str  # fits | memory | time | error
    seconds: float  # of the whole run


def longest_fit(trials):
    return max((t for t in trials if t.outcome == "fits"), key=lambda t: t.length, default=None)


def shortest_failure(trials):
    """Above all that fits."""
    fit = longest_fit(trials)
    return min((t for t in trials if t.outcome != "fits" and (fit is None or t.length > fit.length)),
               key=lambda t: t.length, default=None)


def predicted_seconds(fit, length):
    """An upper bound from the longest run so far: as if attention, S squared, were all."""
    return fit.seconds * (length / fit.length) ** 2


def next_length(trials, start, resolution, limit_seconds):
    """The length to try next, or None and why the search is over: "memory" (known to the resolution), "time" (what is
    longer would run over the limit), "error" (a run ended otherwise), "nothing" (not even the shortest fits)."""
    fit, failure = longest_fit(trials), shortest_failure(trials)
    if failure is not None and failure.outcome == "error":
        return None, "error"
    if fit is None:
        length = start if failure is None else failure.length // 2
        return (length, None) if length >= LEAST_TOKENS else (None, "nothing")
    step = 64
    while step * 2 <= fit.length * resolution:
        step *= 2
    if failure is None:
        length = 2 * fit.length
    elif failure.length - fit.length <= max(step, fit.length * resolution):
        return None, failure.outcome
    else:
        length = (fit.length + failure.length) // 2 // step * step
    if predicted_seconds(fit, length) > limit_seconds:
        length = int(fit.length * (0.9 * limit_seconds / fit.seconds) ** 0.5) // step * step
        if length - fit.length <= fit.length * resolution:
            return None, "time"
    return length, None
