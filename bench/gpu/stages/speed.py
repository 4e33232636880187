"""Steps of Llama-3-8B on one GPU, whole sequences in bf16: FlashAttention-4 (on Hopper) beside cuDNN's attention, tiles of 4,096 beside the rule's 8,192."""
import judges
from command import Command

UPDATE = "--update_in_backward"  # without it the model does not fit 141 GB


def commands(setting):
    k = 1024 if setting.on_gpu else 16  # the tiny model on a CPU: 32 to 512 tokens
    cudnn = ("--attention", "cudnn") if setting.on_gpu else ()
    tiles = ("--tile_tokens", str(4 * k))
    rows = [("8k", 8, 5, 2, ()), ("32k", 32, 3, 1, ()), ("2k", 2, 6, 2, ()), ("32k-cudnn", 32, 3, 1, cudnn), ("8k-cudnn", 8, 5, 2, cudnn),
            ("32k-tiles-4k", 32, 3, 1, tiles)]
    return [Command(f"step-{name}", setting.bench_step("8b", tokens * k, steps, warmup, *setting.bf16, UPDATE, *words), 180,
                    50 if setting.on_gpu else 4, model="8b", judge=judges.step_rate, lacks=setting.lacks) for name, tokens, steps, warmup, words in rows]
