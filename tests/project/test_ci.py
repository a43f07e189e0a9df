"""The action, the workflow and the recipes of docs/ci.md are YAML, and name what exists."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from toml_files import read_toml

from vccl import _torch_version

# libcst, of the extra `convert`, needs it as well.
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")
}
RECIPES = dict(
    re.findall(r"^## (.+?)\n.*?^```\w+\n(.*?)^```$", (ROOT / "docs" / "ci.md").read_text(), re.M | re.S)
)
BUILDERS = ["Makefile", "action.yml", "docs/ci.md"]


def steps_of_workflow() -> list[dict]:
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    return [step for job in jobs for step in job["steps"]]


def test_the_workflow_runs_what_has_to_pass():
    commands = [step["run"] for step in steps_of_workflow() if "run" in step]
    assert "./.ci/run" in commands
    # Not what a variable stands in front of: that is no path of this tree.
    for path in re.findall(r"(?<![\w$/.-])[\w./]+/[\w.]+", " ".join(commands)):
        assert (ROOT / path).exists(), path
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_workflow_uses_a_python_that_the_package_allows():
    least = read_toml((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert least == ">=3.10"
    for step in steps_of_workflow():
        version = step.get("with", {}).get("python-version", "${{")
        if not version.startswith("${{"):  # which stands for one of the list that a test below looks at
            assert tuple(map(int, version.split("."))) >= (3, 10)


def test_the_nightly_workflow_tries_every_python_that_is_promised():
    project = read_toml((ROOT / "pyproject.toml").read_text())["project"]
    name = "Programming Language :: Python :: "
    promised = [each.removeprefix(name) for each in project["classifiers"] if re.match(rf"{name}3\.", each)]
    jobs = WORKFLOWS["nightly"]["jobs"]
    assert jobs["pythons"]["strategy"]["matrix"]["python"] == promised
    targets = re.findall(r"make ([\w-]+)", " ".join(step.get("run", "") for step in steps_of_workflow()))
    assert "test-cuda-build" in targets
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_the_nightly_workflow_tries_every_torch_that_is_promised():
    jobs = WORKFLOWS["nightly"]["jobs"]
    assert tuple(jobs["versions"]["strategy"]["matrix"]["torch"]) == _torch_version.RELEASES
    wheels = " ".join(step.get("run", "") for step in jobs["wheels"]["steps"])
    builds = " ".join(f"{version}+cpu" for version in _torch_version.RELEASES)
    assert f"python .ci/try_wheel.py {builds}" in wheels
    assert jobs["wheels"]["strategy"] == {
        "fail-fast": False,
        "matrix": {"python": jobs["pythons"]["strategy"]["matrix"]["python"]},
    }


def test_every_step_of_the_action_is_complete():
    assert ACTION["runs"]["using"] == "composite"
    made = {step["id"] for step in ACTION["runs"]["steps"] if "id" in step}
    for step in ACTION["runs"]["steps"]:
        assert ("uses" in step) != ("run" in step and "shell" in step), step
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"steps\.(\w+)\.", text)) <= made
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(ACTION["inputs"])


def test_the_action_finds_the_version_of_torch(tmp_path):
    """Runs its first step over a tree that has one file of this one."""
    (tmp_path / "vccl").mkdir()
    version = (ROOT / "vccl" / "_torch_version.py").read_text()
    (tmp_path / "vccl" / "_torch_version.py").write_text(version)
    (step,) = (step for step in ACTION["runs"]["steps"] if step.get("id") == "source")

    def outputs() -> dict[str, str]:
        output = tmp_path.parent / f"{tmp_path.name}.output"
        output.write_text("")
        subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step["run"]],
            cwd=tmp_path,
            env=os.environ | {"GITHUB_OUTPUT": str(output)},
            check=True,
        )
        return dict(line.split("=") for line in output.read_text().splitlines())

    first = outputs()
    assert first["torch"] == _torch_version.TESTED
    assert first["python"] == sysconfig.get_config_var("SOABI")
    assert outputs() == first
    (tmp_path / "vccl" / "_torch_version.py").write_text(f"{version}\n")
    assert outputs()["hash"] != first["hash"]


@pytest.mark.parametrize("title", ["GitHub Actions", "GitLab CI"])
def test_recipes_are_yaml(title):
    recipe = yaml.safe_load(RECIPES[title])
    assert any("vrun" in str(job) for job in recipe.values())


@pytest.mark.parametrize("path", BUILDERS)
def test_all_install_the_same_tools_to_build_with(path):
    requires = read_toml((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    least = re.search(r"cmake_minimum_required\(VERSION (.+)\)", (ROOT / "CMakeLists.txt").read_text()).group(
        1
    )
    tools = " ".join(f'"{tool}"' for tool in [*requires, f"cmake>={least}"])
    installs = re.findall(r"pip install .*scikit-build-core.*", (ROOT / path).read_text())
    assert installs
    assert all(f"{tools} ninja" in line for line in installs)
