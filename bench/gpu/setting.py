"""What a stage is told when it lays out its commands."""
from dataclasses import dataclass

from layout import Layout


@dataclass(frozen=True)
class Setting:
    layout: Layout
    device: str  # cuda | cpu: the same commands at tiny sizes
    lacks: str  # why nothing can run on the device; "" where it can
    model_folder: object  # name of a model (models.py) -> its folder
    results: str  # the results folder

    @property
    def on_gpu(self):
        return self.device == "cuda"

    @property
    def bf16(self):
        """On a GPU alone: the tiny models of the CPU are compared with fp32's losses."""
        return ("--bf16",) if self.on_gpu else ()

    def bench_step(self, model, tokens, steps, warmup, *words, device=""):
        """Optimizer steps of a model of models.py, on the device of the run where no other is given."""
        one_thread = () if self.on_gpu else ("--threads", "1")  # tiny models wait for each other's threads more than they compute
        return [self.layout.program, "bench", "step", "--model", self.model_folder(model), "--seq", str(tokens), "--steps", str(steps),
                "--warmup", str(warmup), "--json", "--device", device or self.device, *one_thread, *words]
