"""Which stages a plan holds, in which order, and how many seconds each has. What a stage leaves over goes to those after it."""
import sys

STAGES = ("facts", "micro", "tests", "truth", "speed", "long", "kernels", "ranks", "longest", "experts")
RESERVE_SECONDS = 20  # of a plan: start-up, the ends of commands, the last page

PLANS = {
    "10": [("facts", 20), ("micro", 90), ("tests", 150), ("speed", 250), ("truth", 70)],
    "30": [("facts", 20), ("micro", 180), ("tests", 400), ("speed", 480), ("truth", 240), ("long", 460)],
    "45": [("facts", 20), ("micro", 240), ("tests", 420), ("truth", 420), ("speed", 600), ("long", 580), ("kernels", 240), ("ranks", 160)],
}

BY_NAME_ALONE = {"longest": 1500, "experts": 240}


def plan_of(word):
    """[(stage, seconds)] and the minutes of a plan's name, or of stages named with commas between them."""
    if word in PLANS:
        return PLANS[word], float(word)
    names = word.split(",")
    unknown = [name for name in names if name not in STAGES]
    if unknown or len(set(names)) != len(names):
        sys.exit(f"gpu: the plan '{word}' is unknown; expected 10, 30, 45, or some of {','.join(STAGES)}, each once")
    limits = {**dict(PLANS["45"]), **BY_NAME_ALONE}
    stages = [(name, limits[name]) for name in names]
    return stages, (sum(seconds for _, seconds in stages) + RESERVE_SECONDS) / 60
