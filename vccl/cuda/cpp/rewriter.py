"""Makes C++ of CUDA's source: launches, arrays of shared memory, inline PTX and assertions of kernels.

It reads what the preprocessor has written, so macros are expanded, comments are gone, and headers are there.
Lines stay where they are, so errors of the compiler name the program's own lines.
"""

import re
from collections.abc import Iterator

_MARKER = re.compile(r'^# (\d+) "((?:[^"\\]|\\.)*)"((?: \d)*)$', re.MULTILINE)
_TOKEN = re.compile(
    r"""
    (?P<text> (?:u8|[uUL])?R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)"
    | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
  | (?P<name> [A-Za-z_]\w* )
  | (?P<number> \d (?: [\w.] | '\w | (?<=[eEpP])[+-] )* )
  | (?P<line> ^\#[^\n]* )
  | (?P<space> \s+ )
  | (?P<sign> <<<|>>>|::|->|&&|. )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_OPENING, _CLOSING = "([{", ")]}"


class SourceError(Exception):
    """Says what in the source cannot be translated, and where, as compilers do."""


class Token:
    """A piece of the source. `line` and `file` are the program's."""

    __slots__ = ("file", "kind", "line", "text")

    def __init__(self, kind: str, text: str, file: str, line: int) -> None:
        self.kind, self.text, self.file, self.line = kind, text, file, line


def rewrite(source: str) -> str:
    """Returns preprocessed CUDA C++ as C++.

    Raises:
        SourceError: a launch or a declaration is not complete.
    """
    return "".join(
        _rewrite_part(text, file, line) if _has_cuda(text, file, is_system) else _spare_asserts(text)
        for text, file, line, is_system in _parts(source)
    )


def _has_cuda(text: str, file: str, is_system: bool) -> bool:
    if "/vccl_cuda/" in file:
        return False
    # A header of the system's may have assembly for the host; those of torch that have kernels are known by
    # launches, or by the variables of kernels, which are macros.
    if is_system:
        return "<<<" in text or "::vccl_cuda::here" in text
    return any(word in text for word in ("<<<", "thread_local", "asm", "__assert_fail"))


# torch's headers have assertions for kernels, too.
def _spare_asserts(text: str) -> str:
    return re.sub(r'(?<![\w:])(?:::)?__assert_fail\s*\((?=\s*")', "::vccl_cuda::failed_assert(", text)


def _parts(source: str) -> Iterator[tuple[str, str, int, bool]]:
    """Yields the text of each file that was included, its file and line, and whether it is a system's.

    A marker that names the same file again is a part of the text: the preprocessor writes some around what
    the macros of a system's header have become.
    """
    begin, file, line = 0, "", 1
    system: dict[str, bool] = {}
    for marker in _MARKER.finditer(source):
        if marker[2] == file:
            continue
        yield source[begin : marker.start()], file, line, system.get(file, False)
        begin, file, line = marker.start(), marker[2], int(marker[1]) - 1
        system.setdefault(file, "3" in marker[3].split())
    yield source[begin:], file, line, system.get(file, False)


def _tokens(text: str, file: str, line: int) -> list[Token]:
    tokens = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup if match.lastgroup != "mark" else "text"
        piece = match[0]
        tokens.append(Token(kind or "sign", piece, file, line))
        if kind == "line" and (marker := _MARKER.match(piece)):
            line = int(marker[1]) - 1
        line += piece.count("\n")
    return tokens


def _rewrite_part(text: str, file: str, line: int) -> str:
    tokens = _tokens(text, file, line)
    result: list[str] = []
    _translate(tokens, 0, len(tokens), result)
    return "".join(result)


def _translate(tokens: list[Token], begin: int, end: int, result: list[str]) -> None:
    """Appends the C++ of the tokens, one string for each."""
    at = begin
    while at < end:
        token = tokens[at]
        if token.text == "<<<":
            at = _launch(tokens, at, end, result)
        elif token.kind == "name" and token.text in ("asm", "__asm__", "__asm"):
            at = _inline_ptx(tokens, at, end, result)
        elif token.kind == "name" and token.text == "__assert_fail":
            at = _assertion(tokens, at, end, result)
        elif token.kind == "name" and token.text in ("extern", "static"):
            at = _storage(tokens, at, end, result)
        else:
            result.append(token.text)
            at += 1


def _fail(token: Token, what: str) -> SourceError:
    return SourceError(f"{token.file}:{token.line}: error: {what}")


def _next(tokens: list[Token], at: int, end: int) -> int:
    """Returns the next token that is no space and no marker, or `end`."""
    while at < end and tokens[at].kind in ("space", "line"):
        at += 1
    return at


def _closing(tokens: list[Token], at: int, end: int) -> int:
    """Returns where the bracket that token `at` opens is closed."""
    depth = 0
    for i in range(at, end):
        if tokens[i].kind == "sign":
            depth += (tokens[i].text in _OPENING) - (tokens[i].text in _CLOSING)
            if depth == 0:
                return i
    raise _fail(tokens[at], f"{tokens[at].text!r} is not closed")


def _launch(tokens: list[Token], at: int, end: int, result: list[str]) -> int:
    """Translates ``kernel<<<configuration>>>(arguments)``, whose kernel is the end of `result` already."""
    launch = tokens[at]
    depth, close = 0, at + 1
    while close < end and not (depth == 0 and tokens[close].text == ">>>"):
        if tokens[close].kind == "sign":
            depth += (tokens[close].text in _OPENING) - (tokens[close].text in _CLOSING)
        close += 1
    opening = _next(tokens, close + 1, end)
    if depth != 0 or opening >= end or tokens[opening].text != "(":
        raise _fail(launch, "a launch must be kernel<<<grid, block, shared, stream>>>(arguments)")
    last = _closing(tokens, opening, end)
    kernel = _take_kernel(result, launch)
    name = re.sub(r"\s+", " ", kernel.strip()).replace("\\", "\\\\").replace('"', '\\"')
    configuration: list[str] = []
    _translate(tokens, at + 1, close, configuration)
    arguments: list[str] = []
    _translate(tokens, opening + 1, last, arguments)
    # The type of __null is that of a number, once it is a variable.
    given = re.sub(r"\b__null\b", "nullptr", "".join(arguments))
    result += [
        f'::vccl_cuda::Launch(::vccl_cuda::config({"".join(configuration)}), "{name}")',
        f".run([=](const auto&... vccl_arguments) {{ {kernel.strip()}(vccl_arguments...); }}",
        f", {given})" if given.strip() else f"{given})",
    ]
    return last + 1


def _take_kernel(result: list[str], launch: Token) -> str:
    """Takes the kernel's name from the end of what was translated: ``ns::kernel<scalar_t, 4>``."""
    taken: list[str] = []

    def take_space() -> None:
        while result and (result[-1].isspace() or result[-1].startswith("# ")):
            taken.append(result.pop())

    take_space()
    if result and result[-1] == ")":  # (kernel<float, 4>)<<<...>>>, as macros with commas need it
        _take_brackets(result, taken, "(", ")", launch)
        return _without_markers(taken)
    while True:
        if result and result[-1] == ">":
            _take_brackets(result, taken, "<", ">", launch)
            take_space()
        if not result or not re.fullmatch(r"[A-Za-z_]\w*", result[-1]):
            raise _fail(launch, "the kernel of a launch must be a name, with or without template arguments")
        taken.append(result.pop())
        before = len(result) - 1
        while before >= 0 and result[before].isspace():
            before -= 1
        # `template` and `typename` belong to the name in front of them: ns::template kernel<T>.
        if before >= 0 and result[before] in ("::", ".", "->", "template"):
            take_space()
            while result and result[-1] in ("::", ".", "->", "template"):
                taken.append(result.pop())
                take_space()
            if result and (result[-1] == ">" or _is_qualifier(result[-1])):
                continue
        return _without_markers(taken)


def _is_qualifier(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w*", text) is not None and text not in ("return", "else", "do", "case")


def _take_brackets(result: list[str], taken: list[str], opening: str, closing: str, launch: Token) -> None:
    depth = 0
    while result:
        text = result.pop()
        taken.append(text)
        if text in _CLOSING and text != closing:
            _put_back_to_opening(result, taken, text)
            continue
        depth += (text == closing) - (text == opening)
        if depth == 0:
            return
    raise _fail(launch, f"the {closing!r} before a launch has no {opening!r}")


def _put_back_to_opening(result: list[str], taken: list[str], closing: str) -> None:
    """Takes a bracket of another kind as a whole, so that a ``<`` in it is no bracket."""
    depth = 1
    while result and depth:
        text = result.pop()
        taken.append(text)
        depth += (text in _CLOSING) - (text in _OPENING)


def _without_markers(taken: list[str]) -> str:
    return "".join(text if not text.startswith("# ") else "" for text in reversed(taken))


def _inline_ptx(tokens: list[Token], at: int, end: int, result: list[str]) -> int:
    """Replaces ``asm volatile("..." : ...)`` by a call that says that it cannot run."""
    opening = _next(tokens, at + 1, end)
    while opening < end and tokens[opening].text in ("volatile", "__volatile__", "inline", "goto"):
        opening = _next(tokens, opening + 1, end)
    if opening >= end or tokens[opening].text != "(":
        result.append(tokens[at].text)
        return at + 1
    last = _closing(tokens, opening, end)
    text = _next(tokens, opening + 1, last)
    # A name for the linker, as in `int f() asm("g")`, stands after a declaration, and is no code.
    before = next((piece for piece in reversed(result) if not piece.isspace()), ";")
    if tokens[text].kind != "text" or (before == ")" and _names_a_symbol(tokens, last, end)):
        result.append(tokens[at].text)
        return at + 1
    lines = "".join("\n" for token in tokens[at : last + 1] for _ in range(token.text.count("\n")))
    quoted = tokens[text].text if tokens[text].text.startswith('"') else '""'
    place = f'"{tokens[at].file}", {tokens[at].line}'
    result.append(f"::vccl_cuda::no_ptx({quoted}, {place}){lines}")
    return last + 1


def _names_a_symbol(tokens: list[Token], last: int, end: int) -> bool:
    after = _next(tokens, last + 1, end)
    return after < end and tokens[after].text in ("__attribute__", "noexcept", ";")


def _assertion(tokens: list[Token], at: int, end: int, result: list[str]) -> int:
    """Lets an assertion in a kernel end the kernel, and not the process."""
    opening = _next(tokens, at + 1, end)
    is_call = opening < end and tokens[opening].text == "("
    if is_call and tokens[_next(tokens, opening + 1, end)].kind == "text":
        while result and (result[-1].isspace() or result[-1] == "::"):
            result.pop()
        result.append(" ::vccl_cuda::failed_assert")
    else:
        result.append(tokens[at].text)
    return at + 1


def _storage(tokens: list[Token], at: int, end: int, result: list[str]) -> int:
    """Translates ``extern __shared__ T name[];``, and drops the ``static`` of ``static __shared__``.

    The preprocessor has made ``static thread_local`` of __shared__.
    """
    words = _specifiers(tokens, at, end)
    shared = next((i for i in range(len(words) - 1) if words[i : i + 2] == ["static", "thread_local"]), 0)
    if shared == 0:
        result.append(tokens[at].text)
        return at + 1
    if "extern" in words[:shared]:
        return _dynamic_shared(tokens, at, end, result)
    if tokens[at].text != "static":
        result.append(tokens[at].text)
    return at + 1


def _specifiers(tokens: list[Token], at: int, end: int) -> list[str]:
    """Returns the words at the beginning of a declaration, without its attributes."""
    words: list[str] = []
    while len(words) < 8 and (at := _next(tokens, at, end)) < end and tokens[at].kind == "name":
        attribute = tokens[at].text in ("__attribute__", "alignas")
        if not attribute:
            words.append(tokens[at].text)
        at = _next(tokens, at + 1, end)
        if attribute and at < end:
            at = _closing(tokens, at, end) + 1
    return words


def _dynamic_shared(tokens: list[Token], at: int, end: int, result: list[str]) -> int:
    """Makes a pointer of an array of dynamic shared memory."""
    last = at
    while last < end and tokens[last].text != ";":
        last += 1
    declaration = "".join(token.text for token in tokens[at:last] if token.kind != "line")
    lines = declaration.count("\n")
    # The memory is aligned to more than any array asks for.
    plain = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|\balignas\s*\([^()]*\)", " ", declaration)
    plain = re.sub(r"\b(?:extern|static|thread_local)\b", " ", plain)
    match = re.fullmatch(r"\s*(?P<type>.*?[\s*>])(?P<name>[A-Za-z_]\w*)\s*\[\s*\]\s*", plain, re.DOTALL)
    if match is None:
        raise _fail(tokens[at], "dynamic shared memory must be declared as extern __shared__ type name[];")
    kind, name = " ".join(match["type"].split()), match["name"]
    result.append(
        f"{kind}* const {name} = static_cast<{kind}*>(::vccl_cuda::dynamic_shared()); "
        f'static_assert(sizeof(__func__) > 1, "declare extern __shared__ arrays inside of the kernel")'
        + "\n"
        * lines
    )
    return last
