"""The frameworks that run.py runs, and what it runs of each."""

import dataclasses
from pathlib import Path

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Case:
    """One run on cards, and the same run on the CPU. Without the latter only the exit status counts.

    The cards pose as CUDA if ``device`` is "cuda". In the commands, {sources} stands for the folder of the
    framework's source files.
    """

    name: str
    command: tuple[str, ...]
    on_cpu: tuple[str, ...] = ()
    tolerance: float = 1e-4
    device: str = "cuda"


@dataclasses.dataclass(frozen=True)
class Framework:
    """What is installed with pip, single source files that are downloaded, and the cases."""

    requirements: tuple[str, ...]
    cases: tuple[Case, ...]
    sources: tuple[str, ...] = ()


def compare(
    name: str,
    start: tuple[str, ...],
    posed: str = "",
    on_cpu: str = "cpu",
    tolerance: float = 1e-4,
    device: str = "cuda",
) -> Case:
    """Returns the case that starts a script with the arguments ``posed``, and with ``on_cpu`` on the CPU."""
    return Case(name, (*start, *posed.split()), (*start, *on_cpu.split()), tolerance, device)


def _torchrun(script: str, *arguments: str) -> tuple[str, ...]:
    return ("torchrun", "--standalone", "--nproc_per_node=2", str(HERE / script), *arguments)


def _python(script: str, *arguments: str) -> tuple[str, ...]:
    return ("python", str(HERE / script), *arguments)


def _bundled(script: str) -> Case:
    module = f"accelerate.test_utils.scripts.{script}"
    return Case(script, ("accelerate", "launch", "--multi_gpu", "--num_processes=2", "-m", module))


_TRAINER = _torchrun("trainer.py")
_LIGHTNING = _python("lightning_fit.py")
_TRITON = ("python", "-m", "pytest", "-p", "no:cacheprovider", str(HERE.parent / "triton_kernels"))
_ZERO = _torchrun("deepspeed_zero.py")
_MINGPT = _torchrun("mingpt.py", "{sources}")
_SURVIVE = HERE.parents[1] / "examples" / "survive_torchft.py"  # compares with its own run without faults
_EXAMPLES = "https://raw.githubusercontent.com/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8"

FRAMEWORKS = {
    "accelerate": Framework(
        ("accelerate==1.15.0",),
        (
            *(_bundled(name) for name in ("test_script", "test_sync", "test_ops")),
            compare("ddp on vdev", _torchrun("accelerate_train.py"), device="vdev"),
        ),
    ),
    "transformers": Framework(
        ("accelerate==1.15.0", "transformers==5.23.0"),
        (
            compare("ddp", _TRAINER),
            compare("bf16", _TRAINER, "bf16", "cpu bf16", tolerance=1e-3),
            compare("fsdp", _TRAINER, "fsdp"),
            compare("ddp on vdev", _TRAINER, "vdev", device="vdev"),
            compare("fsdp on vdev", _TRAINER, "vdev fsdp", device="vdev"),
            compare("test suite on vdev", _python("transformers_testing.py"), device="vdev"),
        ),
    ),
    "lightning": Framework(
        ("lightning==2.6.6",),
        (
            compare("ddp", _LIGHTNING, "gpu ddp 32-true", "cpu ddp 32-true"),
            compare("bf16", _LIGHTNING, "gpu ddp bf16-mixed", "cpu ddp bf16-mixed", tolerance=1e-2),
            compare("fsdp", _LIGHTNING, "gpu fsdp 32-true", "cpu ddp 32-true"),
            compare("ddp on vdev", _LIGHTNING, "vdev ddp 32-true", "cpu ddp 32-true", device="vdev"),
            compare("bf16 on vdev", _LIGHTNING, "vdev ddp bf16-mixed", "cpu ddp bf16-mixed", 1e-2, "vdev"),
            compare("fsdp on vdev", _LIGHTNING, "vdev fsdp_vdev 32-true", "cpu ddp 32-true", device="vdev"),
        ),
    ),
    "deepspeed": Framework(
        ("deepspeed==0.19.8",),
        (
            # On the CPU, processes with gloo and stage 3 sometimes abort at their exit. Stage 1 has the same
            # losses.
            *(compare(f"zero{stage}", _ZERO, stage, "1") for stage in "123"),
            *(compare(f"zero{n} on vdev", _ZERO, f"{n} vdev", "1", device="vdev") for n in "123"),
        ),
    ),
    "torchtitan": Framework(
        # Its models import Triton, whose kernels are for mixtures of experts alone.
        ("torchtitan==0.2.2", "triton==3.9.0"),
        (
            *(compare(name, _python("titan.py", name)) for name in ("fsdp", "tp", "pp")),
            compare("fsdp on vdev", _python("titan.py", "fsdp"), device="vdev"),
        ),
    ),
    "triton": Framework(
        # `make triton`. The version of Triton is that of docs/compile.md.
        ("triton==3.7.1", "liger-kernel==0.8.5", "fla-core==0.6.0"),
        (
            Case("tests", _TRITON, device="vdev"),
            Case("tests", _TRITON),
            *(compare("liger", _torchrun("liger_train.py"), device=device) for device in ("vdev", "cuda")),
        ),
    ),
    "megatron": Framework(
        ("megatron-core==0.16.1", "einops==0.8.1"),
        tuple(compare(name, _torchrun("megatron_train.py", name)) for name in ("data", "tensor", "pipeline")),
    ),
    "ray": Framework(
        ("ray[train]==2.60.0",),
        (
            compare("ddp", _python("ray_train.py")),
            compare("ddp on vdev", _python("ray_train.py"), "vdev", device="vdev"),
        ),
    ),
    "torchft": Framework(
        ("torchft==0.2.0",),
        (
            compare("recovery", _python("torchft_train.py")),
            compare("recovery on vdev", _python("torchft_train.py"), "vdev", device="vdev"),
            Case("a call that raises on vdev", _python("torchft_raise.py"), device="vdev"),
            Case("faults on vdev", ("python", str(_SURVIVE)), device="vdev"),
            Case("faults of links on vdev", ("python", str(_SURVIVE), "--hosts", "2"), device="vdev"),
        ),
    ),
    "mingpt": Framework(
        ("hydra-core==1.3.8", "boto3==1.44.5"),
        (compare("ddp", _MINGPT), compare("ddp on vdev", _MINGPT, device="vdev")),
        tuple(
            f"{_EXAMPLES}/distributed/minGPT-ddp/mingpt/{name}"
            for name in ("main.py", "model.py", "trainer.py", "char_dataset.py", "gpt2_train_cfg.yaml")
        ),
    ),
}
