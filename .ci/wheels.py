"""Builds the wheel of a release, into dist/.

The wheel has a folder of compiled files for every supported version of torch (``vccl/_torch_2_13``, ...), and
vccl chooses one when it is imported. The files are stripped. Their debug symbols go to an archive beside the
wheel, from which ``gdb`` reads them. The wheel's platform is the oldest on which the files can be loaded.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
BUILD = ROOT / "build" / "wheels"
# What of torch is needed to compile against it. The rest of its wheel is not unpacked.
NEEDED = ("torch/version.py", "torch/include/", "torch/lib/")


def main() -> None:
    """Builds the wheel, and writes the paths and sizes of what was made."""
    import torch

    from vccl import _torch_version

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", nargs="+", default=_torch_version.RELEASES, metavar="VERSION")
    arguments = parser.parse_args()
    here = torch.__version__.split("+")[0]
    BUILD.mkdir(parents=True, exist_ok=True)
    DIST.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        made = Path(folder, "made")
        for version in arguments.torch:
            if version != here:
                compile_for(version, made)
        unpacked = unpack(wheel_for_installed_torch(Path(folder)), Path(folder, "unpacked"))
        for compiled in (made / "vccl").glob("_torch_[0-9]*"):
            shutil.copytree(compiled, unpacked / "vccl" / compiled.name)
        symbols = Path(folder, "symbols")
        for compiled in sorted((unpacked / "vccl").glob("_torch_[0-9]*")):
            separate_symbols(compiled, symbols / compiled.name)
        packed = pack(unpacked, Path(folder, "packed"))
        finished = tag(packed, Path(folder, "tagged"))
        archive = DIST / f"{finished.stem}.debug.tar.xz"
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(symbols, "vccl")
    for path in (finished, archive):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB")


def call(*command: object, **options: object) -> None:
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT, **options)


def compile_for(version: str, made: Path) -> None:
    """Compiles against torch ``version``, and installs what comes of it into ``made``."""
    print(f"compiling for torch {version}", flush=True)
    folder = BUILD / f"torch-{version}"
    try:
        # One folder for all versions, because only the rooms with torch differ between them.
        build = BUILD / "compiled"
        options = (
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DTORCH_DIR={fetch(version, folder)}",
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        )
        call("cmake", "-G", "Ninja", "-S", ROOT, "-B", build, *options, stdout=subprocess.DEVNULL)
        call("cmake", "--build", build, stdout=subprocess.DEVNULL)
        call("cmake", "--install", build, "--prefix", made, stdout=subprocess.DEVNULL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fetch(version: str, folder: Path) -> Path:
    """Returns the folder of torch's package, of which the headers and libraries are there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # A constraint or an index of the machine may forbid a version that is not installed in any case.
    environment = os.environ | {"PIP_CONSTRAINT": "", "PIP_CONFIG_FILE": os.devnull}
    options = ("--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder)
    call(sys.executable, "-m", "pip", "download", *options, f"torch==={version}", env=environment)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(NEEDED)])
    wheel.unlink()
    return folder / "torch"


def wheel_for_installed_torch(folder: Path) -> Path:
    out = folder / "wheel"
    options = ("--no-isolation", "--wheel", "--outdir", out)
    call(sys.executable, "-m", "build", *options, stdout=subprocess.DEVNULL)
    (wheel,) = out.glob("*.whl")
    return wheel


def unpack(wheel: Path, folder: Path) -> Path:
    call(sys.executable, "-m", "wheel", "unpack", wheel, "--dest", folder, stdout=subprocess.DEVNULL)
    (unpacked,) = folder.iterdir()
    return unpacked


def separate_symbols(compiled: Path, symbols: Path) -> None:
    """Strips the files of a folder, and puts their debug symbols into another one."""
    symbols.mkdir(parents=True)
    for file in sorted(compiled.glob("*.so")):
        debug = symbols / f"{file.name}.debug"
        call("objcopy", "--only-keep-debug", file, debug)
        call("strip", "--strip-unneeded", file)
        call("objcopy", f"--add-gnu-debuglink={debug}", file)


def pack(unpacked: Path, folder: Path) -> Path:
    folder.mkdir()
    call(sys.executable, "-m", "wheel", "pack", unpacked, "--dest-dir", folder, stdout=subprocess.DEVNULL)
    (packed,) = folder.glob("*.whl")
    return packed


def tag(wheel: Path, folder: Path) -> Path:
    """Moves the wheel to dist/, under the name of the oldest platform that it runs on. torch's libraries stay
    outside of it."""
    excluded = [word for name in ("libtorch*", "libc10*") for word in ("--exclude", name)]
    environment = os.environ | {"PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}
    call("auditwheel", "repair", *excluded, "--wheel-dir", folder, wheel, env=environment)
    (tagged,) = folder.glob("*.whl")
    return Path(shutil.move(tagged, DIST / tagged.name))


if __name__ == "__main__":
    main()
