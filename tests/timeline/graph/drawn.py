"""Random small traces: any at all, and ones whose every start has a known reason."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, reject, settings
from hypothesis import strategies as st
from tiny import AUTOGRAD, COMMS, EVALUATE, MAIN, NCCL, STREAM, WORKER, Tiny

from perfmodel.errors import GraphError

quick = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)

THREADS = MAIN, AUTOGRAD, WORKER
GLOO = 4
CALLS = (
    *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMalloc", "cudaFree"),
    *("cudaStreamWaitEvent", "cudaEventRecord", "cudaEventElapsedTime", "cudaGetDevice"),
)
KERNELS = "gemm", NCCL, "elementwise"

times = st.integers(100, 3000).map(lambda tenths: tenths / 10)
lengths = st.one_of(st.integers(0, 50), st.integers(0, 1500).map(lambda tenths: tenths / 10))
call_lengths = st.integers(10, 1500).map(lambda tenths: tenths / 10)
_op = st.tuples(
    st.just("op"),
    st.sampled_from(["aten::mm", "aten::add", EVALUATE + "A", "c10d::allreduce_"]),
    times,
    lengths,
    st.sampled_from(THREADS),
)
_note = st.tuples(
    st.just("note"),
    st.sampled_from(["## forward ##", "enumerate(DataLoader)#x", "x wait()"]),
    times,
    lengths,
    st.sampled_from(THREADS),
)
_gloo = st.tuples(
    st.just("note"),
    st.just("gloo:all_reduce"),
    times,
    call_lengths,
    st.just(GLOO),
)
_call = st.tuples(st.just("call"), st.sampled_from(CALLS), times, lengths, st.sampled_from(THREADS))
_launch = st.tuples(
    st.just("launch"),
    st.sampled_from(KERNELS),
    times,
    call_lengths,
    st.sampled_from(THREADS),
    st.floats(-25, 300).map(lambda us: round(us, 1)),
    lengths,
    st.sampled_from([STREAM, COMMS]),
    st.sampled_from([0.0, 0.5, 3.0]),
)
_copy = st.tuples(
    st.just("copy"),
    st.sampled_from(["Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pinned -> Device)"]),
    times,
    call_lengths,
    st.sampled_from(THREADS),
    st.floats(0, 300).map(lambda us: round(us, 1)),
    lengths,
)
_orphan = st.tuples(st.just("orphan"), st.sampled_from(KERNELS), times, lengths)
events = st.lists(
    st.one_of(_op, _op, _launch, _launch, _call, _note, _gloo, _copy, _orphan),
    min_size=1,
    max_size=16,
)


def write(t: Tiny, event: tuple) -> None:  # type: ignore[type-arg]
    kind, name, start, length, *rest = event
    end = start + length
    if kind == "op":
        t.op(name, start, end, *rest)
    elif kind == "note":
        t.note(name, start, end, *rest)
    elif kind == "call":
        t.call(name, start, end, *rest)
    elif kind == "orphan":
        t.kernel(start, end, name)
    elif kind == "launch":
        thread, lag, took, stream, waves = rest
        begun = max(end + lag, 0.0)
        t.launch(start, end, (begun, begun + took), name, stream, thread, waves=waves)
    else:
        thread, lag, took = rest
        begun = start + lag
        t.copy(start, max(end, begun), (begun, begun + took), name, thread=thread)


@st.composite
def any_trace(draw: st.DrawFn) -> Tiny:
    """Events without rhyme or reason, as a damaged or strange file may hold them, in one or two
    steps or none. Every thread has some operators before."""
    t = Tiny()
    for thread in THREADS:
        t.op("aten::first", 0, 5, thread)
        t.op("aten::second", 6, 8, thread)
    bounds = draw(st.sampled_from([(), ((0, 330),), ((10, 150), (150, 300)), ((0, 80), (90, 200))]))
    for number, (start, end) in enumerate(bounds):
        t.step(number, start, end)
    for event in draw(events):
        write(t, event)
    try:
        t.graph()
    except GraphError:  # its times contradict one another, and the error says so
        reject()
    return t


CALL_US, LAUNCH_LAG_US, STREAM_LAG_US, SYNC_RETURN_US, MARGIN_US = 4, 5, 1, 6, 12


class Machine:
    """A host and its streams that obey constant lags; every start is the latest of its reasons.

    Reasons never come closer to one another than `MARGIN_US`, so that which of them decides does
    not hang on the lags.
    """

    def __init__(self) -> None:
        self.trace = Tiny()
        self.now = 0.0
        self.free = {STREAM: -1000.0, COMMS: -1000.0}
        self.sync("cudaDeviceSynchronize")  # waits for nothing: what such a call takes by itself

    def work(self, us: float, name: str = "aten::view") -> None:
        self.trace.op(name, self.now, self.now + us)
        self.now += us

    def _keep_margin(self, ahead_us: float) -> None:
        while any(abs(self.now + ahead_us - end) <= MARGIN_US for end in self.free.values()):
            self.work(7)

    def launch(self, us: float, stream: int = STREAM) -> None:
        self._keep_margin(CALL_US)
        self.now += CALL_US
        start = max(self.now + LAUNCH_LAG_US, self.free[stream] + STREAM_LAG_US)
        self.free[stream] = start + us
        self.trace.launch(self.now - CALL_US, self.now, (start, start + us), "gemm", stream)

    def sync(self, call: str) -> None:
        self._keep_margin(0)
        begun = self.now
        over = max(self.free.values())
        self.now = max(begun + CALL_US, over + SYNC_RETURN_US if over > begun else 0)
        self.trace.call(call, begun, self.now)

    def backward(self, us: float) -> None:
        """The main thread sleeps while the autograd thread works."""
        self.trace.op(EVALUATE + "A", self.now + 3, self.now + 3 + us, AUTOGRAD)
        self.now += 3 + us + 9

    def step(self, number: int, begun: float) -> None:
        self.trace.step(number, begun, self.now)


_instruction = st.one_of(
    st.tuples(st.just("work"), st.integers(1, 60)),
    st.tuples(st.just("launch"), st.integers(1, 200), st.sampled_from([STREAM, COMMS])),
    st.tuples(st.just("sync"), st.just("cudaDeviceSynchronize")),
    st.tuples(st.just("backward"), st.integers(20, 80)),
)


@st.composite
def explained_trace(draw: st.DrawFn) -> Tiny:
    """One or two steps of a program run on a `Machine`."""
    machine = Machine()
    for number in range(draw(st.integers(1, 2))):
        begun = machine.now
        machine.work(10)
        for method, *arguments in draw(st.lists(_instruction, min_size=1, max_size=12)):
            getattr(machine, method)(*arguments)
        machine.work(10)
        machine.step(number, begun)
    return machine.trace
