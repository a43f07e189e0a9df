"""torch's own sanitizer (TORCH_CUDA_SANITIZER) in pose: right programs are silent, wrong ones are named."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.daily

RIGHT = {
    "a stream waits for another": """
        stream = torch.cuda.Stream()
        a = torch.ones(1 << 16, device="cuda") * 2
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            b = a + 1
        torch.cuda.current_stream().wait_stream(stream)
        assert b.add_(1).sum().item() == 4 << 16
    """,
    "the host waits": """
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        for wait in (torch.cuda.synchronize, first.synchronize, lambda: first.record_event().synchronize()):
            with torch.cuda.stream(first):
                a = torch.rand(64, device="cuda")
            wait()
            with torch.cuda.stream(second):
                a.mul_(2)
    """,
    "reading an element waits": """
        with torch.cuda.stream(torch.cuda.Stream()):
            a = torch.rand(64, device="cuda")
            a.sum().item()
        a.mul_(2)
    """,
    "memory is used again": """
        stream = torch.cuda.Stream()
        for _ in range(20):
            a = torch.rand(1 << 16, device="cuda")
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                b = a * 2
            a.record_stream(stream)
            del a, b
            torch.cuda.synchronize()
    """,
    "several cards": """
        first, second = torch.cuda.Stream(0), torch.cuda.Stream(1)
        first.wait_stream(torch.cuda.current_stream(0))
        with torch.cuda.stream(second), torch.cuda.stream(first):
            a = torch.rand(64, device="cuda:0")
            b = a.to("cuda:1")
            first.synchronize(), second.synchronize()
            b.add_(1)
    """,
    "training": """
        from torch import nn
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        stream = torch.cuda.Stream()
        for _ in range(5):
            with torch.cuda.stream(stream):
                batch = torch.randn(8, 16).pin_memory().to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(stream)
            batch.record_stream(torch.cuda.current_stream())
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(batch).float().square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        assert loss.item() > 0
    """,
}
WRONG = {
    "a write beside a write": """
        a = torch.rand(4, 2, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.mul(a, 5, out=a)
    """,
    "an event that was recorded too early": """
        stream = torch.cuda.Stream()
        event = torch.cuda.current_stream().record_event()
        a = torch.rand(4, 2, device="cuda")
        stream.wait_event(event)
        with torch.cuda.stream(stream):
            a.sum()
    """,
    "a read that nobody waits for": """
        stream = torch.cuda.Stream()
        a = torch.rand(4, 2, device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            a.sum()
        a.zero_()
    """,
}


def run(code, environment, **variables):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


def indented(code, columns):
    lines = [line.strip() and line[8:] for line in code.splitlines()]
    return "\n".join(" " * columns + line for line in lines).strip()


def test_right_programs_are_silent(posed_environment):
    functions = [
        f"def right_{i}():\n    {indented(code, 4)}\nright_{i}()\n" for i, code in enumerate(RIGHT.values())
    ]
    ended = run("import torch\n" + "".join(functions), posed_environment, TORCH_CUDA_SANITIZER="1")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_program_is_named(what, posed_environment):
    code = (
        f"import torch\nimport torch.cuda._sanitizer as csan\ntry:\n    {indented(WRONG[what], 4)}\n"
        "except csan.CUDASanitizerErrors as error:\n"
        "    print('named', len(error.errors), error.errors[0].allocation_stack_trace is not None)\n"
    )
    ended = run(code, posed_environment, TORCH_CUDA_SANITIZER="1")
    assert (ended.returncode, ended.stdout) == (0, "named 1 True\n"), ended.stderr
    assert "CSAN detected a possible data race on tensor with data pointer" in ended.stderr


def test_a_wrong_program_ends(posed_environment):
    code = f"import torch\n{indented(WRONG['a write beside a write'], 0)}\nprint('went on')\n"
    ended = run(code, posed_environment, TORCH_CUDA_SANITIZER="1")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "CUDASanitizerErrors: detected 1 errors" in ended.stderr


def test_importing_torch_without_the_pose():
    """torch's sanitizer is of no use without CUDA, but the import does not end by it."""
    ended = run(
        "import torch; print(torch.vdev.device_count() > 0)", {"VDEV_POSE": ""}, TORCH_CUDA_SANITIZER="1"
    )
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
