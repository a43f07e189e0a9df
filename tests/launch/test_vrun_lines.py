"""How lines of several ranks are put together, on a terminal and elsewhere."""

import pytest

from vccl.launch.lines import Lines, prefix_of

ERASE = b"\r\x1b[K"


@pytest.fixture(params=[True, False], ids=["terminal", "elsewhere"])
def is_terminal(request):
    return request.param


class Output:
    """Lines of the sources 0 and 1, and what was written since it was last asked."""

    def __init__(self, is_terminal: bool, prefixes: bool = True) -> None:
        self.written = b""
        self.lines = Lines(self._write, is_terminal)
        for rank in range(2):
            self.lines.add(rank, prefix_of(rank, False) if prefixes else b"")

    def _write(self, data: bytes) -> None:
        self.written += data

    def feed(self, source: int, data: bytes) -> bytes:
        self.lines.feed(source, data)
        return self.take()

    def show(self) -> bytes:
        self.lines.show_unfinished()
        return self.take()

    def take(self) -> bytes:
        written, self.written = self.written, b""
        return written


def test_a_line_is_written_when_it_is_complete(is_terminal):
    output = Output(is_terminal)
    assert output.feed(0, b"one") == b""
    assert output.feed(1, b"other\nnext") == b"[rank 1] other\n"
    assert output.feed(0, b" line\ntwo\n\n") == b"[rank 0] one line\n[rank 0] two\n[rank 0] \n"
    output.lines.finish(1)
    assert output.take() == b"[rank 1] next\n"
    output.lines.finish(0)
    assert output.take() == b""


def test_a_prefix_of_torch_is_left_out(is_terminal):
    output = Output(is_terminal)
    output.lines.add(7, prefix_of(7, False), b"[rank7]: ")
    assert output.feed(7, b"[rank7]: Traceback\n[rank0]: of another\n") == (
        b"[rank 7] Traceback\n[rank 7] [rank0]: of another\n"
    )


def test_a_rank_of_several_hosts_is_named_with_its_host():
    assert prefix_of(3, False, 1) == b"[host1 rank 3] "
    assert prefix_of(3, True, 0) == b"\x1b[35m[host0 rank 3]\x1b[0m "


def test_colours_differ_between_ranks():
    assert prefix_of(0, True) == b"\x1b[36m[rank 0]\x1b[0m "
    assert len({prefix_of(rank, True)[:5] for rank in range(8)}) == 8


def test_an_unfinished_line_gives_way_on_a_terminal():
    output = Output(True)
    output.feed(0, b"prompt: ")
    assert output.lines.has_hidden
    shown = b"\x1b[?7l[rank 0] prompt: \x1b[?7h"
    assert output.show() == shown
    assert not output.lines.has_hidden
    assert output.feed(1, b"line\n") == ERASE + b"[rank 1] line\n"
    assert output.lines.has_hidden
    assert output.show() == shown
    output.lines.say(b"vrun: text")
    assert output.take() == ERASE + b"vrun: text\n"
    assert output.show() == shown
    assert output.feed(0, b"answer\n") == ERASE + b"[rank 0] prompt: answer\n"
    assert not output.lines.has_hidden


def test_an_unfinished_line_ends_elsewhere_when_another_begins():
    output = Output(False)
    output.feed(0, b"begun")
    assert output.show() == b"[rank 0] begun"
    assert not output.lines.has_hidden
    assert output.feed(0, b" and ended\nnext\n") == b" and ended\n[rank 0] next\n"
    output.feed(0, b"begun")
    output.show()
    assert output.feed(1, b"line\n") == b"\n[rank 1] line\n"
    assert output.feed(0, b" again\n") == b"[rank 0]  again\n"
    output.feed(1, b"begun")
    output.show()
    output.lines.finish(1)
    assert output.take() == b"\n"


def test_a_progress_bar_is_what_was_drawn_last():
    output = Output(True)
    output.feed(0, b"\r10%")
    output.feed(0, b"\r20%")
    assert output.show() == b"\x1b[?7l[rank 0] 20%\x1b[?7h"
    assert output.feed(0, b"\r100%\r\n") == ERASE + b"[rank 0] 100%\n"
    assert output.feed(0, b"50%\r") == b""
    assert output.show() == b"\x1b[?7l[rank 0] 50%\x1b[?7h"
    elsewhere = Output(False)
    assert elsewhere.feed(0, b"10%\r20%\r\n") == b"[rank 0] 10%\r20%\r\n"


def test_the_cursor_stays_and_colours_go_through_on_a_terminal():
    text = b"\x1b[31mred\x1b[0m\x1b[A\x1b[2K\x1b[?25l end\n"
    assert Output(True).feed(0, text) == b"[rank 0] \x1b[31mred\x1b[0m end\n"
    assert Output(False).feed(0, text) == b"[rank 0] " + text


def test_half_a_character_is_not_shown_yet():
    output = Output(True)
    output.feed(0, "ü".encode()[:1])
    assert output.show() == b"\x1b[?7l[rank 0] \x1b[?7h"
    assert output.feed(0, "ü".encode()[1:] + b"\n") == ERASE + "[rank 0] ü\n".encode()


def test_a_line_that_never_ends_is_divided(is_terminal):
    output = Output(is_terminal)
    written = output.feed(0, b"x" * 65536)
    written += output.feed(0, b"x" * 65536)
    assert written == b"[rank 0] " + b"x" * 131072 + b"\n"


def test_without_prefixes_every_byte_is_the_ranks():
    output = Output(False, prefixes=False)
    assert output.feed(0, b"be") == b""
    assert output.feed(1, b"[rank1]: other\n\r\n") == b"[rank1]: other\n\r\n"
    assert output.feed(0, b"gun\nen") == b"begun\n"
    output.lines.finish(0)
    assert output.take() == b"en"
    assert output.feed(1, b"x" * 100_000) == b"\n" + b"x" * 100_000
    assert output.feed(1, b"yy") == b""
    output.lines.finish(1)
    assert output.take() == b"yy"
