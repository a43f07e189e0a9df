"""Runs frameworks on two cards, most of them unmodified in pose, and compares them with gloo on the CPU.

``make frameworks`` calls it; the arguments name frameworks, and none means all. cases.py lists what is run.
Each framework is installed in a virtual environment of its own (build/frameworks), in pinned versions, over
the project's packages. The models are tiny and made here, so nothing is downloaded but the frameworks.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from pathlib import Path

from cases import FRAMEWORKS, Case

ENVIRONMENTS = Path(__file__).parents[2] / "build" / "frameworks"
# Seconds for one run. A framework that hangs is ended with everything that it started.
PATIENCE = 300


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


def sources_of(name: str, addresses: tuple[str, ...]) -> Path:
    """Returns the folder of the framework's single source files, which are downloaded at first."""
    folder = ENVIRONMENTS / "sources" / name
    folder.mkdir(parents=True, exist_ok=True)
    for address in addresses:
        file = folder / address.rpartition("/")[2]
        if not file.exists():
            try:
                with urllib.request.urlopen(address, timeout=60) as answer:
                    file.write_bytes(answer.read())
            except OSError as error:
                raise RuntimeError(
                    f"{address} cannot be downloaded: {error}. Put it into {folder}."
                ) from error
    return folder


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


def check(programs: Path, sources: Path, case: Case) -> str:
    """Runs a case. Returns what was found; raises RuntimeError if it is not what was expected."""
    command, on_cpu = (
        tuple(part.replace("{sources}", str(sources)) for part in parts)
        for parts in (case.command, case.on_cpu)
    )
    cards = {"VDEV_DEVICE_COUNT": "2"}
    if case.device == "cuda":
        cards["VDEV_POSE"] = "cuda"
    text = run(programs, command, cards)
    if not on_cpu:
        return "passed"
    plain = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "DS_ACCELERATOR": "cpu"}
    found, expected = result(text), result(run(programs, on_cpu, plain))
    losses = list(zip(found["losses"], expected["losses"], strict=True))  # type: ignore[call-overload]
    difference = max(abs(one - other) for one, other in losses)
    if found["device"] != case.device or expected["device"] != "cpu" or difference > case.tolerance:
        raise RuntimeError(f"on cards {found}, on the CPU {expected}")
    return f"same losses as gloo's on the CPU, within {difference:.1e}"


def main(names: list[str]) -> int:
    """Runs the frameworks with these names, or all, and returns 1 if one has failed."""
    failed = 0
    for name in names or FRAMEWORKS:
        framework = FRAMEWORKS[name]
        programs = environment_of(name, framework.requirements)
        for case in framework.cases:
            try:
                outcome = check(programs, sources_of(name, framework.sources), case)
            except RuntimeError as error:
                failed += 1
                outcome = f"FAILED: {error}"
            print(f"{name} {' '.join(framework.requirements)}: {case.name}: {outcome}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
