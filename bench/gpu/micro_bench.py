"""micro_bench.py GROUP [--device cpu]: what torch's own kernels reach, a JSON line a measurement as it comes.

FLOPs are causal ones: attention forward 2 S^2 h D, backward 2.5 times that. On a CPU the sizes are tiny, and a measurement
that has no meaning there says so. An exception is a line of its own and ends nothing.
"""
import argparse
import json
import time

import torch

ops = torch.ops.aten
D = 128


class NoMeaning(Exception):
    """Of a measurement on this device."""


class Bench:
    def __init__(self, device):
        self.device, self.on_gpu = device, device == "cuda"

    def seconds(self, body, repeats=5):
        """Of one call, after one that warms up: the faster of two rounds; of calls that last seconds, one round."""
        body()
        return min(self._round(body, repeats) for _ in range(2 if repeats > 1 else 1))

    def _round(self, body, repeats):
        if not self.on_gpu:
            begin = time.perf_counter()
            for _ in range(repeats):
                body()
            return (time.perf_counter() - begin) / repeats
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            body()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / repeats / 1e3

    def measure(self, name, body):
        """Prints the figures that body() returns; an out-of-memory of one size leaves the next its memory."""
        try:
            line = {"name": name, **body()}
        except NoMeaning as why:
            line = {"name": name, "lacks": str(why)}
        except Exception as error:  # noqa: BLE001
            line = {"name": name, "error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        print(json.dumps(line), flush=True)
        if self.on_gpu:
            torch.cuda.empty_cache()

    def need_gpu(self, what):
        if not self.on_gpu:
            raise NoMeaning(f"{what} is a GPU's")

    def random(self, *shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device=self.device, dtype=dtype)


def heads_first(x):
    return x.transpose(1, 2)


class Heads:
    """q, k, v [1, S, heads, D] as views of one packed tensor, as our layers have them."""

    def __init__(self, bench, tokens, heads, kv_heads, dtype=torch.bfloat16):
        packed = bench.random(1, tokens, heads + 2 * kv_heads, D, dtype=dtype)
        self.q, self.k, self.v = packed[:, :, :heads], packed[:, :, heads:heads + kv_heads], packed[:, :, heads + kv_heads:]
        self.tokens, self.scale, self.flops = tokens, D ** -0.5, 2 * tokens * tokens * heads * D
        self.repeats = 3 if tokens < 1 << 18 else 1

    def rates(self, bench, forward, backward):
        return {"forward_tflops": self.flops / bench.seconds(forward, self.repeats) / 1e12,
                "backward_tflops": 2.5 * self.flops / bench.seconds(backward, self.repeats) / 1e12}

    def cudnn_forward(self):
        q, k, v = heads_first(self.q), heads_first(self.k), heads_first(self.v)
        return ops._cudnn_attention_forward(q, k, v, None, None, None, self.tokens, self.tokens, True, 0.0, True, False, scale=self.scale)

    def cudnn_backward(self, forward, grad, stats):
        q, k, v = heads_first(self.q), heads_first(self.k), heads_first(self.v)
        zero = torch.zeros((), dtype=torch.long, device=self.q.device)
        return ops._cudnn_attention_backward(grad, q, k, v, forward[0], stats, zero, zero, None, None, None, self.tokens, self.tokens, 0.0, True,
                                             scale=self.scale)

    def flash_forward(self):
        return ops._flash_attention_forward(self.q, self.k, self.v, None, None, self.tokens, self.tokens, 0.0, True, False, scale=self.scale,
                                            window_size_left=-1, window_size_right=0)

    def flash_backward(self, forward, grad):
        seed, unused = torch.zeros(2, dtype=torch.uint64, device=self.q.device), torch.empty(0, device=self.q.device)
        return ops._flash_attention_backward(grad, self.q, self.k, self.v, forward[0], forward[1], None, None, self.tokens, self.tokens, 0.0, True,
                                             seed, unused, scale=self.scale, window_size_left=-1, window_size_right=0)


def cudnn(bench, heads):
    bench.need_gpu("cuDNN's attention")
    began = time.perf_counter()
    forward = heads.cudnn_forward()
    torch.cuda.synchronize()
    first_call_seconds = time.perf_counter() - began  # libtorch builds a graph for every new size
    grad = torch.randn_like(forward[0])
    return {"log_sum_exp": list(forward[1].shape), "first_call_seconds": first_call_seconds,
            **heads.rates(bench, heads.cudnn_forward, lambda: heads.cudnn_backward(forward, grad, forward[1]))}


def cudnn_with_three_dimensions(bench):
    """Whether the backward takes a log-sum-exp without its last dimension of one; expected: it refuses."""
    bench.need_gpu("cuDNN's attention")
    heads = Heads(bench, 2048, 32, 8)  # a size of its own: libtorch keeps the graph that it failed to build, and a second call dies of it
    forward = heads.cudnn_forward()
    try:
        heads.cudnn_backward(forward, torch.randn_like(forward[0]), forward[1].squeeze(3))
        torch.cuda.synchronize()
    except RuntimeError as error:
        return {"taken": False, "message": str(error).splitlines()[0]}
    return {"taken": True}


def flash(bench, heads):
    if not bench.on_gpu:
        q, k, v = (heads_first(x).contiguous() for x in (heads.q, heads.k, heads.v))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))  # the CPU's kernel groups no heads
        forward = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=heads.scale)
        grad = torch.randn_like(forward[0])
        return heads.rates(bench, lambda: ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=heads.scale),
                           lambda: ops._scaled_dot_product_flash_attention_for_cpu_backward(
                               grad, q, k, v, forward[0], forward[1], 0.0, True, scale=heads.scale))
    forward = heads.flash_forward()
    grad = torch.randn_like(forward[0])
    figures = heads.rates(bench, heads.flash_forward, lambda: heads.flash_backward(forward, grad))
    differs = (forward[0] - heads_first(heads.cudnn_forward()[0])).abs().max().item()
    return {**figures, "differs_from_cudnn_at_most": differs}


def attention(bench):
    sizes = [(256, 4, 1)]
    if bench.on_gpu:  # the first two are where packed documents become calls of cuDNN (kernels/long_documents.h)
        sizes = [(4096, 32, 8), (11776, 4, 1), (8192, 32, 8), (32768, 32, 8), (131072, 32, 8), (131072, 4, 1), (524288, 4, 1), (1048576, 4, 1)]
    bench.measure("cudnn backward with a log-sum-exp of 3 dimensions", lambda: cudnn_with_three_dimensions(bench))
    for tokens, heads, kv_heads in sizes:
        size = f"{tokens} tokens, {heads}/{kv_heads} heads"
        bench.measure(f"cudnn, {size}", lambda: cudnn(bench, Heads(bench, tokens, heads, kv_heads)))
        if tokens <= 131072:
            bench.measure(f"flash, {size}", lambda: flash(bench, Heads(bench, tokens, heads, kv_heads)))


def weight_gradient(bench, tokens, rows, columns):
    """dW [rows, columns] += dy^T x, as add_(mm) and, on a GPU, as one product that adds in fp32."""
    dy, x = bench.random(tokens, rows), bench.random(tokens, columns)
    grad = torch.zeros(rows, columns, device=bench.device)
    flops = 2 * tokens * rows * columns
    figures = {"add_of_mm_tflops": flops / bench.seconds(lambda: grad.add_(dy.t() @ x)) / 1e12}
    if bench.on_gpu:
        figures["addmm_into_fp32_tflops"] = flops / bench.seconds(lambda: ops.addmm.dtype_out(grad, dy.t(), x, torch.float32, out=grad)) / 1e12
        truth = dy.t().float() @ x.float()
        once = ops.addmm.dtype_out(torch.zeros_like(grad), dy.t(), x, torch.float32, out=torch.empty_like(grad))
        figures["addmm_error_of_largest"] = ((once - truth).abs().max() / truth.abs().max()).item()
        figures["mm_error_of_largest"] = (((dy.t() @ x).float() - truth).abs().max() / truth.abs().max()).item()
    return figures


def weight_gradients(bench):
    rows, columns = (28672, 4096) if bench.on_gpu else (64, 32)
    for tokens in (2185, 2304, 4096, 8192) if bench.on_gpu else (64, 96):
        bench.measure(f"weight gradient, tile of {tokens} tokens", lambda: weight_gradient(bench, tokens, rows, columns))


def product(bench, size, values, dtype):
    make = torch.ones if values == "ones" else torch.randn
    a, b = (make(*shape, device=bench.device, dtype=dtype) for shape in ((size[0], size[1]), (size[1], size[2])))
    out = torch.empty(size[0], size[2], device=bench.device, dtype=dtype)
    repeats = 1 if not bench.on_gpu else 3 if dtype == torch.float32 else 100  # long enough for the power limit to tell
    return {"tflops": 2 * size[0] * size[1] * size[2] / bench.seconds(lambda: torch.mm(a, b, out=out), repeats) / 1e12}


def matmul(bench):
    sizes = [(8192, 8192, 8192), (16384, 4096, 14336), (8192, 4096, 28672)] if bench.on_gpu else [(128, 128, 128)]
    for size in sizes:
        for values in ("random", "ones"):
            bench.measure(f"bf16 product {'x'.join(map(str, size))}, {values}", lambda: product(bench, size, values, torch.bfloat16))
    bench.measure(f"fp32 product {'x'.join(map(str, sizes[0]))}, random", lambda: product(bench, sizes[0], "random", torch.float32))


def copy(bench, pinned, to_device):
    bench.need_gpu("copying to and from its memory")
    size = 1 << 30
    host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    source, target = (host, device) if to_device else (device, host)
    return {"gb_per_second": size / bench.seconds(lambda: target.copy_(source, non_blocking=True), 3) / 1e9}


def copy_both_ways(bench):
    bench.need_gpu("copying to and from its memory")
    size = 1 << 30
    streams = [torch.cuda.Stream() for _ in range(2)]
    hosts = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    devices = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]

    def both():
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(streams[0]):
            devices[0].copy_(hosts[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            hosts[1].copy_(devices[1], non_blocking=True)
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
    return {"gb_per_second_together": 2 * size / bench.seconds(both, 3) / 1e9}


def within_memory(bench):
    x = torch.empty((1 << 31) if bench.on_gpu else (1 << 20), dtype=torch.uint8, device=bench.device)
    y = torch.empty_like(x)
    return {"gb_per_second": 2 * x.numel() / bench.seconds(lambda: y.copy_(x), 3) / 1e9}


def copies(bench):
    for pinned in (True, False):
        for to_device in (True, False):
            bench.measure(f"{'pinned' if pinned else 'pageable'} host memory {'to' if to_device else 'from'} the GPU",
                          lambda: copy(bench, pinned, to_device))
    bench.measure("pinned host memory, both ways at once", lambda: copy_both_ways(bench))
    bench.measure("within the device's memory, read and written", lambda: within_memory(bench))


def launch_overhead(bench):
    """Host time of a small operator: what many launches cost where the GPU has nothing to hide them behind."""
    x, count = torch.zeros(16, device=bench.device), 2000 if bench.on_gpu else 200
    x.add_(1)
    if bench.on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        x.add_(1)
    issued = time.perf_counter() - begin
    if bench.on_gpu:
        torch.cuda.synchronize()
    return {"issue_us": issued / count * 1e6, "done_us": (time.perf_counter() - begin) / count * 1e6}


def allocation(bench):
    bench.need_gpu("cudaMalloc")

    def once():
        torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
    begin = time.perf_counter()
    for _ in range(20):
        once()
    return {"ms": (time.perf_counter() - begin) / 20 * 1e3}


def launches(bench):
    bench.measure("launch of a small operator", lambda: launch_overhead(bench))
    bench.measure("cudaMalloc and cudaFree of 256 MiB", lambda: allocation(bench))


def fp32_efficient(bench, heads):
    """libtorch's memory-efficient kernel in fp32, causal; heads are repeated, as it groups none."""
    bench.need_gpu("libtorch's memory-efficient attention")
    groups = heads.q.shape[2] // heads.k.shape[2]
    q, k, v = heads.q, heads.k.repeat_interleave(groups, 2), heads.v.repeat_interleave(groups, 2)
    CAUSAL_FROM_TOP_LEFT = 1

    def forward():
        return ops._efficient_attention_forward(q, k, v, None, None, None, None, None, 0.0, CAUSAL_FROM_TOP_LEFT, True, scale=heads.scale)

    out = forward()
    grad = torch.randn_like(out[0])

    def backward():
        return ops._efficient_attention_backward(grad, q, k, v, None, out[0], None, None, heads.tokens, heads.tokens, out[1], 0.0, out[2], out[3],
                                                 CAUSAL_FROM_TOP_LEFT, False, scale=heads.scale)
    return heads.rates(bench, forward, backward)


def fp32_attention(bench):
    for tokens in (4096, 8192, 16384, 32768) if bench.on_gpu else (256,):
        bench.measure(f"fp32 memory-efficient, {tokens} tokens, 32/8 heads",
                      lambda: fp32_efficient(bench, Heads(bench, tokens, 32, 8, torch.float32)))


GROUPS = {"attention": attention, "weight_gradients": weight_gradients, "matmul": matmul, "copies": copies, "launches": launches,
          "fp32_attention": fp32_attention}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    a = parser.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        print(json.dumps({"name": a.group, "lacks": "no GPU: torch finds none"}))
        return
    torch.manual_seed(0)
    with torch.no_grad():
        GROUPS[a.group](Bench(a.device))


if __name__ == "__main__":
    main()
