"""A capture that fails, in a process of its own: python -m tests.gpu.failed_capture

Whatever torch left behind of it would spoil every test after it.
"""

from __future__ import annotations

import torch

from engine.runner.cuda_capture import CudaCapture


def main() -> None:
    device = torch.device("cuda:0")
    numbers = torch.zeros(4, device=device)
    stream = torch.cuda.current_stream(device)

    def run() -> None:
        numbers.add_(1)
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()  # which a captured stream cannot

    try:
        CudaCapture(device)(run)
    except RuntimeError as error:
        print(f"{error.__context__ or error}")
    else:
        raise SystemExit("the capture did not fail")
    assert torch.cuda.current_stream(device) == stream
    torch.cuda.empty_cache()
    torch.randn(4, device=device)
    torch.zeros(2**20, pin_memory=True).to(device, non_blocking=True)

    def add() -> None:
        numbers.add_(1)

    graph = CudaCapture(device)(add)
    before = float(numbers[0])
    graph.replay()
    assert float(numbers[0]) == before + 1
    del graph
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
