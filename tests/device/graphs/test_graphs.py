"""Graphs: what streams are given while they are captured, and its replay."""

import gc
import threading

import pytest
import torch


def pinned(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).pin_memory()


class Echo:
    """Copies from ``host`` over a card to ``back``, as far as the stream runs."""

    def __init__(self, card: int = 0) -> None:
        self.host, self.back = pinned(0, 0), pinned(0, 0)
        self.card = torch.zeros(2, device=f"vdev:{card}")
        torch.vdev.synchronize(card)  # the streams of the tests do not wait for this one

    def enqueue(self) -> None:
        self.card.copy_(self.host, non_blocking=True)
        self.back.copy_(self.card, non_blocking=True)

    def check(self, replay) -> None:
        value = self.back[0].item() + 1
        self.host.fill_(value)
        replay()
        torch.accelerator.synchronize()
        assert self.back.tolist() == [value, value]


def test_capture_and_replay():
    echo, graph = Echo(), torch.vdev.VDEVGraph()
    assert not torch.vdev.is_current_stream_capturing()
    with torch.vdev.graph(graph):
        assert torch.vdev.is_current_stream_capturing()
        assert torch.vdev.current_stream() != torch.vdev.default_stream()
        echo.host.fill_(7)
        echo.enqueue()
    assert not torch.vdev.is_current_stream_capturing()
    assert torch.vdev.current_stream() == torch.vdev.default_stream()
    torch.vdev.synchronize()
    assert echo.back.tolist() == [0, 0] and len(graph) == 2
    for _ in range(3):
        echo.check(graph.replay)
    with torch.vdev.stream(torch.vdev.Stream()):
        echo.check(graph.replay)


def test_torch_accelerator_graph():
    echo = Echo()
    graph = torch.accelerator.Graph()
    with torch.Stream(), graph:
        echo.enqueue()
    echo.check(graph.replay)
    graph.reset()
    with torch.Stream(), graph:
        echo.enqueue()
    echo.check(graph.replay)
    sharing = torch.accelerator.Graph(keep_graph=True, pool=graph.pool(), capture_error_mode="relaxed")
    with torch.Stream(), sharing:
        echo.enqueue()
    assert sharing.pool() == graph.pool()
    sharing.instantiate()
    echo.check(sharing.replay)


def test_a_graph_is_called_in_order(tmp_path):
    graph = torch.vdev.VDEVGraph()
    for call in [
        graph.replay,
        graph.capture_end,
        graph.pool,
        graph.instantiate,
        graph.__len__,
        lambda: graph.debug_dump(str(tmp_path / "graph")),
    ]:
        with pytest.raises(RuntimeError, match=r"capture|enable_debug_mode"):
            call()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    with torch.vdev.stream(torch.vdev.Stream()):
        with pytest.raises(RuntimeError, match="capture error mode"):
            graph.capture_begin(capture_error_mode="loose")
        with pytest.raises(RuntimeError, match="graph_pool_handle"):
            graph.capture_begin(pool=(0, 1))
    with torch.vdev.graph(graph):
        pass
    with (
        torch.vdev.stream(torch.vdev.Stream()),
        pytest.raises(RuntimeError, match="captured something already"),
    ):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="keep_graph"):
        graph.instantiate()
    graph.replay()
    graph.reset()
    with pytest.raises(RuntimeError, match="capture"):
        graph.replay()


def test_debug_dump(tmp_path):
    echo, graph = Echo(), torch.vdev.VDEVGraph()
    graph.enable_debug_mode()
    with torch.vdev.graph(graph):
        echo.enqueue()
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert "0 -> 1" in (tmp_path / "graph.dot").read_text()
    with pytest.raises(RuntimeError, match="cannot write"):
        graph.debug_dump(str(tmp_path / "missing" / "graph.dot"))


def test_other_streams_join():
    one, two = Echo(), Echo()
    graph, side = torch.vdev.VDEVGraph(), torch.vdev.Stream()
    with torch.vdev.graph(graph):
        side.wait_stream(torch.vdev.current_stream())
        with torch.vdev.stream(side):
            assert torch.vdev.is_current_stream_capturing()
            one.enqueue()
        two.enqueue()
        torch.vdev.current_stream().wait_stream(side)
    side.synchronize()
    one.check(graph.replay)
    two.check(graph.replay)
    with (
        pytest.raises(RuntimeError, match="unjoined work"),
        torch.vdev.graph(torch.vdev.VDEVGraph()),
    ):
        side.wait_stream(torch.vdev.current_stream())
        with torch.vdev.stream(side):
            one.enqueue()
    side.synchronize()


def test_streams_of_other_cards_join():
    echo = Echo(card=1)
    graph, there = torch.vdev.VDEVGraph(), torch.vdev.Stream(device="vdev:1")
    before = torch.vdev.memory_reserved(1)
    with torch.vdev.graph(graph):
        there.wait_stream(torch.vdev.current_stream())
        with torch.vdev.stream(there):
            echo.enqueue()
            torch.empty(1 << 20, device="vdev:1")
        torch.vdev.current_stream().wait_stream(there)
    assert torch.vdev.memory_reserved(1) > before
    echo.check(graph.replay)
    del graph
    gc.collect()
    torch.vdev.empty_cache()
    assert torch.vdev.memory_reserved(1) <= before


REFUSED = {
    "synchronize": lambda x: torch.vdev.synchronize(),
    "stream.synchronize": lambda x: torch.vdev.current_stream().synchronize(),
    "stream.query": lambda x: torch.vdev.current_stream().query(),
    "event.query": lambda x: torch.vdev.current_stream().record_event().query(),
    "event.synchronize": lambda x: torch.vdev.current_stream().record_event().synchronize(),
    "item": lambda x: x[0].item(),
    "cpu": lambda x: x.cpu(),
    "pageable copy": lambda x: x.copy_(torch.ones(2)),
    "nonzero": lambda x: x.nonzero(),
    "another graph": lambda x: torch.vdev.VDEVGraph().capture_begin(),
    "an event from before": lambda x: torch.vdev.current_stream().wait_stream(torch.vdev.default_stream()),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_calls_leave_everything_usable(what):
    x, echo, graph = torch.zeros(2, device="vdev"), Echo(), torch.vdev.VDEVGraph()
    stream = torch.vdev.Stream()
    reserved = torch.vdev.memory_reserved()
    with torch.vdev.stream(stream):
        graph.capture_begin()
        torch.empty(1 << 22, device="vdev")
        with pytest.raises(RuntimeError, match=r"not permitted|uncaptured work|captured already"):
            REFUSED[what](x)
        echo.enqueue()
        if what == "another graph":
            graph.capture_end()
        else:
            with pytest.raises(RuntimeError, match="invalidated"):
                graph.capture_end()
        graph.reset()
        echo.check(echo.enqueue)
    torch.vdev.empty_cache()
    assert torch.vdev.memory_reserved() <= reserved
    with torch.vdev.graph(graph):
        echo.enqueue()
    echo.check(graph.replay)


def test_modes():
    ordinary = torch.vdev.Event()
    ordinary.record()

    def refused(here: bool) -> bool:
        errors = []

        def ask():
            try:
                ordinary.query()
            except RuntimeError as error:
                errors.append(error)

        if here:
            ask()
        else:
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
        return bool(errors)

    for mode, expected in {"global": (1, 1), "thread_local": (1, 0), "relaxed": (0, 0)}.items():
        for here, should in zip([True, False], expected, strict=True):
            graph = torch.vdev.VDEVGraph()
            with torch.vdev.stream(torch.vdev.Stream()):
                graph.capture_begin(capture_error_mode=mode)
                assert refused(here) == should
                if should:
                    with pytest.raises(RuntimeError, match="invalidated"):
                        graph.capture_end()
                else:
                    graph.capture_end()


def test_the_block_raises_its_own_error_behind_the_captures():
    with pytest.raises(RuntimeError) as caught, torch.vdev.graph(torch.vdev.VDEVGraph()):
        torch.zeros(3, device="vdev").cpu()
    assert "not permitted when stream is capturing" in str(caught.value.__context__)
    with pytest.raises(KeyError), torch.vdev.graph(torch.vdev.VDEVGraph()):
        raise KeyError


def test_the_stream_is_restored_after_an_error():
    graph = torch.vdev.VDEVGraph()
    with pytest.raises(RuntimeError), torch.vdev.graph(graph):
        torch.vdev.synchronize()
    assert torch.vdev.current_stream() == torch.vdev.default_stream()
    with torch.vdev.graph(graph):
        pass
    with pytest.raises(RuntimeError), torch.vdev.graph(graph):
        pass
    assert torch.vdev.current_stream() == torch.vdev.default_stream()


def test_capture_ends_on_its_stream():
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.stream(torch.vdev.Stream()):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="same stream"):
        graph.capture_end()


def test_a_dropped_capture_ends():
    stream = torch.vdev.Stream()
    with torch.vdev.stream(stream):
        graph = torch.vdev.VDEVGraph()
        graph.capture_begin()
        del graph
        gc.collect()
        assert not torch.vdev.is_current_stream_capturing()
    stream.synchronize()


def test_a_queued_replay_outlives_its_graph(gate):
    echo, graph = Echo(), torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        echo.enqueue()
    gate.close(torch.vdev.current_stream())
    echo.host.fill_(5)
    graph.replay()
    del graph
    gc.collect()
    gate.open()
    torch.vdev.synchronize()
    assert echo.back.tolist() == [5, 5]


def test_errors_of_a_replay_are_the_streams():
    ran = []

    def fail():
        if not ran:
            ran.append(1)
            raise ValueError("broken")

    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        torch.vdev._launch_host_func(fail)
        torch.vdev._launch_host_func(lambda: ran.append(2))
    graph.replay()
    with pytest.raises(Exception, match="broken"):
        torch.vdev.synchronize()
    assert ran == [1]
    torch.vdev.clear_errors()
    graph.replay()
    torch.vdev.synchronize()
    assert ran == [1, 2]


def test_memory():
    torch.vdev.empty_cache()
    before, graph = torch.vdev.memory_reserved(), torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        first = torch.empty(3 << 20, dtype=torch.uint8, device="vdev")
        address = first.data_ptr()
        del first
        kept = torch.empty(3 << 20, dtype=torch.uint8, device="vdev")
        assert kept.data_ptr() == address  # what is freed in a capture is reused in it
    after = torch.empty(3 << 20, dtype=torch.uint8, device="vdev")
    del kept
    torch.vdev.empty_cache()
    again = torch.empty(3 << 20, dtype=torch.uint8, device="vdev")
    assert address not in (after.data_ptr(), again.data_ptr())
    second = torch.vdev.VDEVGraph()
    with torch.vdev.graph(second, pool=graph.pool()):
        shared = torch.empty(3 << 20, dtype=torch.uint8, device="vdev")
    assert shared.data_ptr() == address
    del shared, after, again
    for last in (graph, second):
        torch.vdev.empty_cache()
        assert torch.vdev.memory_reserved() > before
        last.reset()
    torch.vdev.empty_cache()
    assert torch.vdev.memory_reserved() == before


def test_pool_handles_differ():
    assert torch.vdev.graph_pool_handle() != torch.vdev.graph_pool_handle()
    handle = torch.vdev.graph_pool_handle()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph, pool=handle):
        pass
    assert graph.pool() == handle


def test_a_graph_draws_from_the_states_that_its_generators_are_given():
    """As programs do that keep a stream of random numbers for each group of ranks, with CUDA's trackers."""
    default = torch.vdev.default_generators[0]
    own, side = default.graphsafe_get_state(), torch.Generator("vdev").manual_seed(7)
    expected = torch.rand(8, device="vdev", generator=side.clone_state())
    graph = torch.vdev.VDEVGraph()
    graph.register_generator_state(side)
    try:
        with torch.vdev.graph(graph):
            default.graphsafe_set_state(side)
            drawn = torch.rand(8, device="vdev")
            default.graphsafe_set_state(own)
            of_default = torch.rand(8, device="vdev")
    finally:
        default.graphsafe_set_state(own)
    torch.vdev.manual_seed(8)
    graph.replay()
    first = drawn.clone(), of_default.clone()
    torch.vdev.manual_seed(8)
    assert torch.equal(first[0], expected)
    assert torch.equal(first[1], torch.rand(8, device="vdev"))
    eager = side.clone_state()
    graph.replay()
    assert torch.equal(drawn, torch.rand(8, device="vdev", generator=eager))


def test_generators_are_left_alone():
    generator = torch.Generator(device="vdev")
    with torch.vdev.stream(torch.vdev.Stream()):
        graph = torch.vdev.VDEVGraph()
        with pytest.raises(RuntimeError):
            graph.register_generator_state(torch.Generator())
        graph.capture_begin()
        for call in [
            lambda: torch.vdev.manual_seed(1),
            torch.vdev.get_rng_state,
            lambda: generator.set_state(torch.zeros(16, dtype=torch.uint8)),
            generator.seed,
        ]:
            with pytest.raises(RuntimeError, match="not permitted while the current stream is capturing"):
                call()
        with pytest.warns(UserWarning, match="The graph is empty"):
            graph.capture_end()
