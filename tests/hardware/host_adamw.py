"""Times PyTorch's AdamW and clipping on this machine's processor, as they step what --offload keeps in host memory:
nanoseconds for an element in fp32 and in bf16, fused and by PyTorch's default on a CPU, with so many threads. The
figures of docs/costs.md ("Host memory and links") are of PyTorch 2.15 on an AMD EPYC. Needs torch alone.

    python tests/hardware/host_adamw.py [THREADS, 1 if left out]
"""

import sys
import time

import torch

REPEATS = 7


def nanoseconds(step, elements):
    """The median of some repetitions."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return sorted(times)[REPEATS // 2] / elements * 1e9


def main():
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; ns an element")
    for dtype in (torch.float32, torch.bfloat16):
        for size, count in ((1 << 20, 128), (1 << 23, 16), (1 << 26, 2)):
            parameters = [torch.nn.Parameter(torch.randn(size, dtype=dtype)) for _ in range(count)]
            for p in parameters:
                p.grad = torch.randn_like(p)
            found = {}
            for name, fused in (("fused", True), ("default", None)):
                optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=fused)
                optimizer.step()  # makes its states
                found[name] = nanoseconds(optimizer.step, size * count)
            found["clipping"] = nanoseconds(lambda of=parameters: torch.nn.utils.clip_grad_norm_(of, 1e9), size * count)
            figures = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
            print(f"{str(dtype).removeprefix('torch.')}, {count} tensors of {size >> 20} Mi: {figures}", flush=True)


if __name__ == "__main__":
    main()
