"""Runs frameworks unmodified on two cards that pose as CUDA, and compares them with gloo on the CPU.

``make frameworks`` calls it; the arguments name frameworks, and none means all. Each framework is installed
in a virtual environment of its own (build/frameworks), in pinned versions, over the project's packages. The
models are tiny and made here, so nothing is downloaded but the frameworks.
"""

import dataclasses
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / "build" / "frameworks"
# Seconds for one run. A framework that hangs is ended with everything that it started.
PATIENCE = 300


@dataclasses.dataclass(frozen=True)
class Case:
    """One run in pose, and the same run on the CPU. Without the latter only the exit status counts."""

    name: str
    command: tuple[str, ...]
    on_cpu: tuple[str, ...] = ()
    tolerance: float = 1e-4


@dataclasses.dataclass(frozen=True)
class Framework:
    requirements: tuple[str, ...]
    cases: tuple[Case, ...]


TORCHRUN = ("torchrun", "--standalone", "--nproc_per_node=2")


def _torchrun(
    name: str, script: str, posed: tuple[str, ...], on_cpu: tuple[str, ...], tolerance: float = 1e-4
) -> Case:
    path = str(HERE / script)
    return Case(name, (*TORCHRUN, path, *posed), (*TORCHRUN, path, *on_cpu), tolerance)


def _python(
    name: str, script: str, posed: tuple[str, ...], on_cpu: tuple[str, ...], tolerance: float = 1e-4
) -> Case:
    path = str(HERE / script)
    return Case(name, ("python", path, *posed), ("python", path, *on_cpu), tolerance)


def _bundled(script: str) -> Case:
    module = f"accelerate.test_utils.scripts.{script}"
    return Case(script, ("accelerate", "launch", "--multi_gpu", "--num_processes=2", "-m", module))


FRAMEWORKS = {
    "accelerate": Framework(
        ("accelerate==1.15.0",), tuple(_bundled(name) for name in ("test_script", "test_sync", "test_ops"))
    ),
    "transformers": Framework(
        ("accelerate==1.15.0", "transformers==5.23.0"),
        (
            _torchrun("ddp", "trainer.py", (), ("cpu",)),
            _torchrun("bf16", "trainer.py", ("bf16",), ("cpu", "bf16"), tolerance=1e-3),
            _torchrun("fsdp", "trainer.py", ("fsdp",), ("cpu",)),
        ),
    ),
    "lightning": Framework(
        ("lightning==2.6.6",),
        (
            _python("ddp", "lightning_fit.py", ("gpu", "ddp", "32-true"), ("cpu", "ddp", "32-true")),
            _python(
                "bf16", "lightning_fit.py", ("gpu", "ddp", "bf16-mixed"), ("cpu", "ddp", "bf16-mixed"), 1e-2
            ),
            _python("fsdp", "lightning_fit.py", ("gpu", "fsdp", "32-true"), ("cpu", "ddp", "32-true")),
        ),
    ),
    "deepspeed": Framework(
        ("deepspeed==0.19.8",),
        tuple(
            _torchrun(f"zero{stage}", "deepspeed_zero.py", (str(stage),), (str(stage),))
            for stage in (1, 2, 3)
        ),
    ),
}


def environment_of(name: str, requirements: tuple[str, ...]) -> Path:
    """Returns the folder of programs of the framework's environment, which is made at first."""
    folder = ENVIRONMENTS / name
    done = folder / "installed"
    if not done.exists() or done.read_text() != "\n".join(requirements):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        python = str(folder / "bin" / "python")
        packages = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        # torch and vccl come from the project's environment.
        Path(packages, "project.pth").write_text(
            f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        )
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
        done.write_text("\n".join(requirements))
    return folder / "bin"


def run(programs: Path, command: tuple[str, ...], variables: dict[str, str]) -> str:
    """Returns what the command printed. Raises RuntimeError with its end if it fails or takes too long."""
    environment = {
        **os.environ,
        "PATH": f"{programs}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    if command[0] == "torchrun":  # the project's own would run the project's Python
        command = ("python", "-m", "torch.distributed.run", *command[1:])
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | str = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            status = f"took more than {PATIENCE} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        output.seek(0)
        text = output.read()
    if status != 0:
        raise RuntimeError(f"{' '.join(command)}: {status}\n{text[-3000:]}")
    return text


def result(text: str) -> dict[str, object]:
    """Returns what the run has printed for comparison."""
    lines = [line for line in text.splitlines() if "RESULT {" in line]
    return json.loads(lines[-1].partition("RESULT ")[2])


def check(programs: Path, case: Case) -> str:
    """Runs a case. Returns what was found; raises RuntimeError if it is not what was expected."""
    cuda = {"VDEV_POSE": "cuda", "VDEV_DEVICE_COUNT": "2"}
    text = run(programs, case.command, cuda)
    if not case.on_cpu:
        return "passed"
    plain = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "DS_ACCELERATOR": "cpu"}
    found, expected = result(text), result(run(programs, case.on_cpu, plain))
    losses = list(zip(found["losses"], expected["losses"], strict=True))  # type: ignore[call-overload]
    difference = max(abs(one - other) for one, other in losses)
    if found["device"] != "cuda" or expected["device"] != "cpu" or difference > case.tolerance:
        raise RuntimeError(f"in pose {found}, on the CPU {expected}")
    return f"same losses as gloo's on the CPU, within {difference:.1e}"


def main(names: list[str]) -> int:
    """Runs the frameworks with these names, or all, and returns 1 if one has failed."""
    failed = 0
    for name in names or FRAMEWORKS:
        framework = FRAMEWORKS[name]
        programs = environment_of(name, framework.requirements)
        for case in framework.cases:
            try:
                outcome = check(programs, case)
            except RuntimeError as error:
                failed += 1
                outcome = f"FAILED: {error}"
            print(f"{name} {' '.join(framework.requirements)}: {case.name}: {outcome}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
