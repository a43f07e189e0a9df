"""Stands in for nvcc: takes its arguments, and compiles with the C++ compiler of the host.

It runs as a program of its own (toolkit/bin/nvcc) and imports nothing of vccl but the rewriter beside it.
"""

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rewriter import SourceError, rewrite  # type: ignore[import-not-found]

VERSION = "12.8"
_TEXT = (
    "nvcc: the compiler of vccl, in the place of NVIDIA (R) Cuda compiler driver\n"
    f"Cuda compilation tools, release {VERSION}, V{VERSION}.0\n"
)
_INCLUDE = Path(__file__).resolve().parent / "toolkit" / "include"

# Options of nvcc that say something about GPUs or nvcc itself. Those in the first set have a value, which
# stands behind `=` or is the next argument.
_DROPPED_WITH_VALUE = {
    "-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code", "-Xptxas",
    "--ptxas-options", "-maxrregcount", "--maxrregcount", "-Xcudafe", "-Xnvlink", "--nvlink-options", "-t",
    "--threads", "-ccbin", "--compiler-bindir", "-diag-suppress", "--diag-suppress", "-cudart", "--cudart",
    "-Xfatbin", "--split-compile", "-split-compile", "-rdc", "--relocatable-device-code", "-ftz", "--ftz",
    "-prec-div", "--prec-div", "-prec-sqrt", "--prec-sqrt", "-fmad", "--fmad", "-Werror", "-default-stream",
    "--default-stream", "-m", "--machine",
}  # fmt: skip
_DROPPED = {
    "--expt-relaxed-constexpr", "-expt-relaxed-constexpr", "--expt-extended-lambda", "-expt-extended-lambda",
    "--extended-lambda", "-extended-lambda", "--use_fast_math", "-use_fast_math", "-lineinfo",
    "--generate-line-info", "-G", "--device-debug", "-res-usage", "--resource-usage", "--keep", "-keep",
    "--forward-unknown-to-host-compiler", "-forward-unknown-to-host-compiler", "-dlto", "--use-local-env",
    "-dc", "--device-c", "-extra-device-vectorization", "--display-error-number",
}  # fmt: skip
_FOR_HOST = ("-Xcompiler", "--compiler-options")


class Arguments:
    """What is left of nvcc's arguments for the compiler of the host."""

    def __init__(self, arguments: list[str]) -> None:
        self.source = ""
        self.only_preprocesses = False
        self.output = ""
        self.flags: list[str] = []
        self.for_preprocessor: list[str] = []
        self._take(arguments)

    def _take(self, arguments: list[str]) -> None:
        rest = iter(arguments)
        for argument in rest:
            name, equals, value = argument.partition("=")
            if argument in _DROPPED:
                continue
            if name in _DROPPED_WITH_VALUE and argument != "-m64":
                if not equals:
                    next(rest, None)
            elif name in _FOR_HOST:
                self.flags += _host_options(value if equals else next(rest, ""))
            elif argument in ("-o", "--output-file"):
                self.output = next(rest, "")
            elif argument in ("-c", "--compile"):
                pass
            elif argument in ("-E", "--preprocess"):
                self.only_preprocesses = True
            elif argument in ("-MD", "-MMD"):
                self.for_preprocessor.append(argument)
            elif argument in ("-MF", "-MT", "-MQ"):
                self.for_preprocessor += [argument, next(rest, "")]
            elif argument in ("-x", "--x"):
                next(rest, None)
            elif argument in ("-isystem", "-include", "-I", "-D", "-U", "-L"):
                self._include_or_define(argument, next(rest, ""))
            elif argument.startswith("-I"):
                self._include_or_define("-I", argument[2:])
            elif argument.startswith("-"):
                self.flags.append({"--std": "-std"}.get(name, name) + equals + value)
            else:
                self.source = argument

    def _include_or_define(self, option: str, value: str) -> None:
        # The rewriter leaves headers of the system alone, and torch's are some.
        if option == "-I" and (Path(value) / "torch").is_dir() and (Path(value) / "c10").is_dir():
            option = "-isystem"
        self.flags += [option, value]


def _host_options(value: str) -> list[str]:
    """Returns the options in the value of -Xcompiler: they are divided by commas or spaces."""
    options: list[str] = []
    for option in shlex.split(value):
        # A comma in -Wl,-rpath belongs to the option.
        options += [option] if option.startswith("-Wl,") else [part for part in option.split(",") if part]
    return options


def _host_compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX") or "c++")


def compile_source(arguments: Arguments) -> int:
    """Preprocesses, rewrites and compiles a source. Returns the exit code."""
    output = arguments.output or str(Path(arguments.source).with_suffix(".o").name)
    compiler = _host_compiler()
    optimized = [] if any(flag.startswith("-O") for flag in arguments.flags) else ["-O2"]
    dependencies = arguments.for_preprocessor
    if dependencies and not {"-MT", "-MQ"} & set(dependencies):
        dependencies = [*dependencies, "-MT", output]
    preprocess = [
        *compiler, "-E", "-x", "c++", "-D__CUDACC__", "-D__NVCC__", "-D__CUDACC_VER_MAJOR__=12",
        "-D__CUDACC_VER_MINOR__=8", "-D__CUDACC_VER_BUILD__=0", "-isystem", str(_INCLUDE), "-include",
        "cuda_runtime.h", *optimized, *arguments.flags, *dependencies, arguments.source,
    ]  # fmt: skip
    if arguments.only_preprocesses:
        return _print_preprocessed(preprocess, arguments.output)
    done = subprocess.run(preprocess, stdout=subprocess.PIPE, text=True, errors="surrogateescape")
    if done.returncode != 0:
        return done.returncode
    try:
        rewritten = rewrite(done.stdout)
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / (Path(arguments.source).stem + ".ii")
        file.write_text(rewritten, errors="surrogateescape")
        # -fpreprocessed alone would let the compiler look for headers again.
        flags = [flag for flag in _without_preprocessing(arguments.flags)]
        compilation = [
            *compiler, "-c", *optimized, *flags, "-ffp-contract=off",
            "-Wno-unknown-pragmas", "-Wno-deprecated", "-Wno-attributes", str(file), "-o", output,
        ]  # fmt: skip
        return subprocess.run(compilation).returncode


def _print_preprocessed(preprocess: list[str], output: str) -> int:
    """Writes what ccache compares: the preprocessed source, and what else the object depends on."""
    done = subprocess.run(preprocess, stdout=subprocess.PIPE)
    digest = hashlib.sha256()
    for name in ("compiler.py", "rewriter.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    text = done.stdout + f"// translated by {digest.hexdigest()}\n".encode()
    if output:
        Path(output).write_bytes(text)
    else:
        sys.stdout.buffer.write(text)
    return done.returncode


def _without_preprocessing(flags: list[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(flags)
    for flag in rest:
        if flag in ("-isystem", "-include", "-I", "-D", "-U", "-L"):
            next(rest, None)
        elif not flag.startswith(("-D", "-U", "-I")):
            kept.append(flag)
    return kept


def main(arguments: list[str]) -> int:
    """Does what nvcc would do. Returns the exit code."""
    if {"--version", "-V"} & set(arguments):
        sys.stdout.write(_TEXT)
        return 0
    expanded: list[str] = []
    for argument in arguments:
        if argument.startswith("@"):
            expanded += shlex.split(Path(argument[1:]).read_text())
        else:
            expanded.append(argument)
    parsed = Arguments(expanded)
    if "-dlink" in expanded or "--device-link" in expanded:
        # There is no code of a device to link: an empty object takes its place.
        empty = [*_host_compiler(), "-x", "c++", "-c", "-fPIC", os.devnull, "-o", parsed.output]
        return subprocess.run(empty).returncode
    if not parsed.source:
        print("nvcc of vccl: no source was given. It compiles one source to an object.", file=sys.stderr)
        return 1
    return compile_source(parsed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
