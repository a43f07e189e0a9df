"""The templates in examples/launch run in the environment of Slurm, and of the operator of Kubernetes."""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml
from launchers import ROOT, TRAINED, attempts, environment_of, trained, wait_for_port, write_script

from vccl.testing.ports import reserved_port

HERE = Path(__file__).resolve().parent
TEMPLATES = ROOT / "examples" / "launch"
PROGRAMS = Path(sys.executable).parent
SLURM = ["slurm.sbatch", "slurm_ranks.sbatch"]


def directives(template: str) -> dict[str, str]:
    """Returns what the lines #SBATCH of a template ask for."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(.+)$", (TEMPLATES / template).read_text(), re.MULTILINE))


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is kept free for the test."""
    with reserved_port() as port:
        yield port


@pytest.fixture
def job_with_port() -> Iterator[int]:
    """The number of a job whose port, as the templates compute it, is kept free for the test."""
    for job in range(1000, 20000):
        with socket.socket() as holder:
            try:
                holder.bind(("", 10000 + job))
            except OSError:
                continue
            # From now on a store may bind it, too, but not the fixture of another run.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            yield job
            return
    raise AssertionError("no port is free")


def check_slurm(output: str, template: str) -> None:
    assert trained(output) == [(rank, 4) for rank in range(4)], output
    assert {text for *_, text in TRAINED.findall(output)} == {"['2', '1', '--epochs', '3']"}
    assert attempts(output) == (1 if template == "slurm.sbatch" else 0)


@pytest.mark.daily
@pytest.mark.parametrize("template", SLURM)
def test_slurm_templates_with_the_environment_of_slurm(run, tmp_path, template, job_with_port):
    script = write_script(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("scontrol", "srun"):
        program = programs / name
        program.write_text(f"#!{sys.executable}\n" + (HERE / "slurm_emulation.py").read_text())
        program.chmod(0o755)
    asked = directives(template)
    environment = {
        **environment_of(0),
        "PATH": f"{programs}:{PROGRAMS}:/usr/bin:/bin",
        "SLURM_JOB_ID": str(job_with_port),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": asked["nodes"],
        "SLURM_NTASKS_PER_NODE": asked["ntasks-per-node"],
        "SLURM_CPUS_PER_TASK": asked["cpus-per-task"],
        "OMP_NUM_THREADS": "1" if template == "slurm.sbatch" else None,
    }
    if template == "slurm.sbatch":
        environment["DIES"] = "1"  # the agents start all ranks anew
    check_slurm(run(["bash", TEMPLATES / template, script, "--epochs", "3"], env=environment), template)


@pytest.mark.parametrize("template", SLURM)
def test_slurm_templates_with_slurm(run, tmp_path, template):
    """Where there is a Slurm with two idle nodes, which may be this machine."""
    if shutil.which("sinfo") is None:
        pytest.skip("there is no Slurm")
    info = subprocess.run(
        ["sinfo", "--noheader", "--format=%D", "--states=idle"], capture_output=True, text=True
    )
    if info.returncode != 0 or sum(map(int, info.stdout.split())) < 2:
        pytest.skip(f"there are no two idle nodes of Slurm: {info.stdout}{info.stderr}")
    output = tmp_path / "output"
    job = ["sbatch", "--wait", f"--output={output}", f"--chdir={tmp_path}", TEMPLATES / template]
    variables = {"DIES": "1", "OMP_NUM_THREADS": "1"} if template == "slurm.sbatch" else {}
    run(
        [*job, write_script(tmp_path), "--epochs", "3"],
        env={"PATH": f"{PROGRAMS}:/usr/bin:/bin", **variables},
    )
    check_slurm(output.read_text(), template)


def test_a_rank_that_fails_ends_the_job_of_slurm():
    """Without the option, srun waits for the tasks that are left."""
    for template in SLURM:
        assert "srun --kill-on-bad-exit=1 " in (TEMPLATES / template).read_text()


@pytest.fixture
def job() -> dict:
    return yaml.safe_load((TEMPLATES / "pytorchjob.yaml").read_text())


SCHEMA = json.loads((HERE / "pytorchjob_schema.json").read_text())


def test_the_manifest_fits_its_schema(job):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(job, SCHEMA)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "nprocPerNode"], 2),
        (["spec", "replicaSpecs"], {}),
        (["spec", "elasticPolicy", "maxRestarts"], "3"),
        (["spec", "pytorchReplicaSpecs", "worker"], {}),
        (
            ["spec", "pytorchReplicaSpecs", "Worker", "template", "spec", "containers", 0, "args"],
            ["--epochs", 3],
        ),
        (["apiVersion"], "kubeflow.org/v2"),
    ],
)
def test_a_manifest_that_is_wrong_does_not_fit(job, path, value):
    place = job
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job, SCHEMA)


def environment_of_operator(job: dict) -> dict[str, str]:
    """Returns what the training operator (v1.9.0) sets in each pod of a job with an elasticPolicy."""
    spec = job["spec"]
    policy = spec["elasticPolicy"]
    assert spec["pytorchReplicaSpecs"].keys() == {"Worker"}  # with a Master there would be more
    (container,) = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    (port,) = (port["containerPort"] for port in container["ports"] if port["name"] == "pytorchjob-port")
    assert container["name"] == "pytorch"
    return {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": spec["nprocPerNode"],
        "PET_RDZV_ENDPOINT": f"{job['metadata']['name']}-worker-0:{port}",
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
    }


@pytest.mark.daily
def test_the_pods_of_the_manifest_train(start, job, port, tmp_path):
    """Runs the containers' command in the operator's environment. A rank is killed, and all begin anew."""
    write_script(tmp_path)
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    program, *arguments = [*container["command"], *container["args"]]
    pods = []
    for pod in range(job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]):
        environment = {**environment_of(pod), **environment_of_operator(job), "DIES": "3"}
        assert environment["PET_RDZV_ENDPOINT"] == "train-worker-0:23456"
        environment["PET_RDZV_ENDPOINT"] = f"127.0.0.1:{port}"
        pods.append(start([PROGRAMS / program, *arguments], env=environment))
        if pod == 0:
            wait_for_port(port, None, pods[0])
    outputs = [pod.output(600) for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], outputs
    assert trained("".join(outputs)) == [(rank, 4) for rank in range(4)]
    assert "'--epochs', '3'" in outputs[0]
