"""The translation of CUDA's source: what becomes of launches and declarations. No compiler runs."""

import subprocess
import sys
from pathlib import Path

import pytest

import vccl
from vccl.cuda.cpp.compiler import Arguments
from vccl.cuda.cpp.rewriter import SourceError, rewrite

TOOLKIT = Path(vccl.__file__).parent / "cuda" / "cpp" / "toolkit"


def launched(source):
    """Returns the kernel, the configuration and the arguments of the one launch in a source."""
    text = rewrite(source)
    head, rest = text.split("::vccl_cuda::Launch(::vccl_cuda::config(", 1)
    configuration, rest = rest.split('), "', 1)
    _, rest = rest.split("vccl_arguments) { ", 1)
    kernel, rest = rest.split("(vccl_arguments...); }", 1)
    return head, kernel, configuration, rest


@pytest.mark.parametrize(
    ("source", "kernel"),
    [
        ("f() { kernel<<<1, 2>>>(a, b); }", "kernel"),
        ("f() { ns::kernel<scalar_t, 4><<<1, 2>>>(a, b); }", "ns::kernel<scalar_t, 4>"),
        ("f() { ::ns::kernel<<<1, 2>>>(a, b); }", "::ns::kernel"),
        ("f() { kernel<T, (N > 2)><<<1, 2>>>(a, b); }", "kernel<T, (N > 2)>"),
        ("f() { kernel<std::vector<int>><<<1, 2>>>(a, b); }", "kernel<std::vector<int>>"),
        ("f() { Kernels<T>::template run<U><<<1, 2>>>(a, b); }", "Kernels<T>::template run<U>"),
        ("f() { (kernel<int, 3>)<<<1, 2>>>(a, b); }", "(kernel<int, 3>)"),
        ("f() { if (x < 3) kernel <<< 1, 2 >>> (a, b); }", "kernel"),
        ("f() { return kernel<<<1, 2>>>(a, b); }", "kernel"),
    ],
)
def test_the_kernel_of_a_launch(source, kernel):
    head, found, configuration, rest = launched(source)
    assert found == kernel and configuration.strip() == "1, 2" and rest.startswith(", a, b);")
    assert kernel not in head or head.count(kernel) == source.count(kernel) - 1


def test_the_arguments_of_a_launch():
    source = 'f() { k<<<dim3((n + 1) >> 1, m), g(1, "a)"), sizeof(T) * 2, stream()>>>(h(a, ")"), x<<3); }'
    _, _, configuration, rest = launched(source)
    assert configuration == 'dim3((n + 1) >> 1, m), g(1, "a)"), sizeof(T) * 2, stream()'
    assert rest.startswith(', h(a, ")"), x<<3);')
    assert launched("f() { k<<<1, 1>>>(); }")[3].startswith(");")
    assert ", nullptr, a)" in launched("f() { k<<<1, 1>>>(__null, a); }")[3]


def test_launches_in_launches_and_lambdas():
    text = rewrite("f() { [&] { a<<<1, 2>>>(x); b<<<3, 4>>>(y); }(); }")
    assert text.count("::vccl_cuda::Launch") == 2 and "<<<" not in text


def test_lines_stay_where_they_are():
    source = '# 1 "a.cu"\nvoid f() {\n  k<<<1,\n    2>>>(a,\n    b);\n  asm("x"\n  "y");\n}\nint z;\n'
    assert rewrite(source).count("\n") == source.count("\n")
    assert rewrite(source).splitlines()[-1] == "int z;"


@pytest.mark.parametrize(
    ("source", "declared"),
    [
        ("extern static thread_local float s[];", "float* const s = static_cast<float*>("),
        ("extern static thread_local volatile int s[];", "volatile int* const s ="),
        (
            "extern static thread_local __attribute__((aligned(16))) unsigned char raw[];",
            "unsigned char* const raw =",
        ),
        ('extern\n# 3 "a.cu" 3\nstatic thread_local\n# 3 "a.cu"\ndouble2 s[ ];', "double2* const s ="),
        ("extern __attribute__((aligned(8))) static thread_local float s[];", "float* const s ="),
        ("extern static thread_local std::pair<int, T> s[];", "std::pair<int, T>* const s ="),
    ],
)
def test_dynamic_shared_memory(source, declared):
    text = rewrite(f'# 1 "a.cu"\nvoid f() {{{{ {source} }}}}')
    assert declared in text and "extern static" not in text


@pytest.mark.parametrize(
    "source",
    [
        "static static thread_local float s[4];",
        "static thread_local float s[4];",
        "static const int a = 3;",
        'extern "C" int f();',
        "extern int g(int (*h)(int));",
    ],
)
def test_other_declarations(source):
    assert rewrite(f"void k() {{ x<<<1, 1>>>(); }} {source}").endswith(
        source.replace("static static", "static")
    )


def test_inline_ptx_and_assertions():
    text = rewrite('# 1 "a.cu"\nvoid f() { asm volatile("mov %0;" : "=r"(x) : "r"(y)); }')
    assert '::vccl_cuda::no_ptx("mov %0;", "a.cu", 1);' in text and "asm" not in text
    # A name for the linker is no code.
    declaration = 'extern int g(int) asm("h") __attribute__((nothrow));'
    assert rewrite(declaration) == declaration
    text = rewrite(
        'extern void __assert_fail(const char* a); int f() { x ? void(0) : __assert_fail("x", "f", 1, "g"); }'
    )
    assert "__assert_fail(const char* a)" in text and '::vccl_cuda::failed_assert("x"' in text


def test_headers_of_the_system_stay():
    source = '# 1 "a.cu"\n# 1 "/usr/x.h" 1 3\nint a = asm("1");\n# 2 "a.cu" 2\nvoid f() { k<<<1, 2>>>(); }\n'
    text = rewrite(source)
    assert 'asm("1")' in text and "::vccl_cuda::Launch" in text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('# 7 "a.cu"\nvoid f() { k<<<1, 2>>>; }', "a.cu:7: error: a launch must be"),
        ('# 7 "a.cu"\nvoid f() { k<<<1, 2(>>>); }', "a.cu:7: error: a launch must be"),
        ('# 7 "a.cu"\nvoid f() { 3<<<1, 2>>>(); }', "must be a name"),
        (
            '# 7 "a.cu"\nvoid f() { extern static thread_local int s; k<<<1, 1>>>(); }',
            "dynamic shared memory",
        ),
    ],
)
def test_what_is_no_cuda(source, words):
    with pytest.raises(SourceError, match=words):
        rewrite(source)


def test_strings_comments_and_numbers_are_no_brackets():
    source = """void f() { auto s = R"x(")<<<)x"; char c = '('; int n = 1'000'000; k<<<1, n>>>('"', ")"); }"""
    _, _, configuration, rest = launched(source)
    assert configuration == "1, n" and rest.startswith(""", '"', ")");""")


def test_flags_of_nvcc():
    parsed = Arguments(
        [
            "-MD",
            "-MF",
            "x.d",
            "-DA=1",
            "-D",
            "B",
            "-isystem",
            "inc",
            "-gencode=arch=compute_80,code=sm_80",
            "-arch",
            "sm_80",
            "-Xptxas",
            "-v",
            "--use_fast_math",
            "--expt-relaxed-constexpr",
            "--compiler-options",
            "-fPIC,-Wall",
            "-Xcompiler=-fno-strict-aliasing",
            "-O3",
            "--std=c++17",
            "-t=4",
            "--threads",
            "2",
            "-ccbin",
            "gcc",
            "-lineinfo",
            "-c",
            "a.cu",
            "-o",
            "a.o",
        ]
    )
    assert parsed.source == "a.cu" and parsed.output == "a.o"
    assert parsed.for_preprocessor == ["-MD", "-MF", "x.d"]
    assert parsed.flags == (
        ["-DA=1", "-D", "B", "-isystem", "inc", "-fPIC", "-Wall", "-fno-strict-aliasing", "-O3", "-std=c++17"]
    )


def test_nvcc_says_its_version_and_what_it_lacks():
    nvcc = [sys.executable, str(TOOLKIT.parent / "compiler.py")]
    done = subprocess.run([*nvcc, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "release 12.8" in done.stdout
    done = subprocess.run([*nvcc, "-O2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "no source was given" in done.stderr
