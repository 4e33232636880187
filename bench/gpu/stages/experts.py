"""Steps of a mixture of experts: six layers of Qwen3-30B-A3B's width (128 experts, 8 a token), with the rule's tiles beside smaller ones."""
import judges
from command import Command
from stages.speed import UPDATE


def commands(setting):
    k = 1024 if setting.on_gpu else 16
    rows = [("32k", 32, 3, 1, ()), ("8k", 8, 4, 1, ()), ("128k", 128, 2, 1, ()), ("32k-tiles-4k", 32, 3, 1, ("--tile_tokens", str(4 * k)))]
    return [Command(f"step-{name}", setting.bench_step("experts6", tokens * k, steps, warmup, *setting.bf16, UPDATE, *words), 180,
                    40 if setting.on_gpu else 4, model="experts6", judge=judges.step_rate, lacks=setting.lacks)
            for name, tokens, steps, warmup, words in rows]
