"""The things a machine is made of: frozen values whose every quantity ends in its unit.

Rates of links are one direction; GB is 10**9 bytes; `sources` says where each figure comes from.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Literal


def _read_only(table: Mapping[str, str]) -> MappingProxyType[str, str]:
    return MappingProxyType(table)


copyreg.pickle(MappingProxyType, lambda proxy: (_read_only, (dict(proxy),)))
"""What parts hold can go to the workers of a sweep."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Part:
    """What every part of a machine has. Two parts are equal if their figures are."""

    name: str
    maker: str | None = None
    sources: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )
    """Key of a figure or text, to where it comes from."""

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


Target = Literal["cuda", "rocm", "cpu"]
USUAL_STREAM_FRAC = 0.85
"""`stream_peak_frac` where nobody published one. assumed: the middle of the catalogue's (0.74 to
0.94)."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Device(Part):
    """What operators run on: a GPU, as the driver shows it, or one CPU socket with its memory."""

    target: Target
    """The software stack that lowers ops to kernels on it."""
    aliases: tuple[str, ...] = ()
    """Names that drivers report for it."""
    based_on: str | None = None
    """The catalogue's device that it is, or was made from by changing figures."""
    usual_node: str | None = None
    """The catalogue's node that it usually sits in; stands in when only a device is named."""
    usual_host: str | None = None
    """The catalogue's host that it hangs on where no node is known; of a CPU, the CPU itself."""
    architecture: str | None = None
    """The maker's generation: `volta`, `hopper`, `cdna3`, `zen3`, …"""
    compute_capability: str | None = None
    """NVIDIA's version of the multiprocessor, `9.0`; kernels are built for it."""
    memory_kind: str | None = None
    """`hbm3`, `gddr6`, `ddr4`, …"""
    sm_count: int
    """Streaming multiprocessors (NVIDIA), compute units (AMD), or physical cores (CPU)."""
    base_mhz: float | None = None
    boost_mhz: float
    max_sustained_mhz: float | None = None
    """The clock that long matrix products are measured to hold."""
    tdp_w: float
    hbm_bytes: int
    """Device memory, whatever its kind, as the driver reports it; of a CPU, its DRAM."""
    hbm_gb_per_s: float
    """Peak bandwidth of the device memory."""
    l2_bytes: int
    """Of a CPU, all private L2 together."""
    l2_gb_per_s: float | None = None
    """Measured, or the peak of the design; its source says which."""
    llc_bytes: int | None = None
    """A last-level cache behind the L2 (AMD's Infinity Cache, a CPU's L3)."""
    llc_gb_per_s: float | None = None
    shared_bytes_per_sm: int | None = None
    """What thread blocks on one multiprocessor can share (shared memory, LDS)."""
    max_threads_per_sm: int | None = None
    """Threads that one multiprocessor can hold at a time."""
    fp32_tflop_per_s: float
    """Peak of the vector units (a CPU's at its base clock); all peaks are without sparsity."""
    fp32_matrix_tflop_per_s: float | None = None
    """Peak of matrix units that take fp32 unrounded (AMD)."""
    tf32_tflop_per_s: float | None = None
    fp16_tflop_per_s: float | None = None
    """Peak of the tensor or matrix units, as for all types below; of packed vectors before them."""
    bf16_tflop_per_s: float | None = None
    fp8_tflop_per_s: float | None = None
    fp4_tflop_per_s: float | None = None
    int8_tflop_per_s: float | None = None
    """Tera-operations per second."""
    gemm_peak_frac: float = 0.8
    """Share of the peak that the best measured dense matrix product reaches."""
    stream_peak_frac: float | None = None
    """Share of the memory's peak that long streams of reads and writes were measured to reach."""
    pcie_gb_per_s: float | None = None
    """To the host, one direction, whatever the bus; None for a CPU, which is the host."""
    link_gb_per_s: float | None = None
    """To its peers in the node (NVLink, xGMI): all links together, one direction."""
    kernel_floor_us: float
    """Duration of the shortest real kernels: what a kernel costs that does next to nothing."""
    price_usd: float | None = None
    calibration: Mapping[str, Mapping[str, float]] = field(
        default_factory=lambda: MappingProxyType({}), hash=False, repr=False
    )
    """Parameters that kernel models were fitted on this device: family or op, to name, to value."""

    @property
    def last_cache_bytes(self) -> float:
        """The last cache before the memory: the L2, or the one behind it."""
        return float(self.llc_bytes or self.l2_bytes)

    @property
    def stream_gb_per_s(self) -> float:
        """What long streams of reads and writes reach of the device memory's bandwidth."""
        return (self.stream_peak_frac or USUAL_STREAM_FRAC) * self.hbm_gb_per_s

    @property
    def host_gb_per_s(self) -> float:
        """To the host, one direction; a CPU copies within its memory (a read and a write)."""
        return self.pcie_gb_per_s or self.hbm_gb_per_s / 2

    @property
    def peer_gb_per_s(self) -> float:
        """To its peers in the node, one direction: its links, or the way to the host."""
        return self.link_gb_per_s or self.host_gb_per_s

    def matrix_tflop_per_s(self, dtype: str | None) -> float:
        """Peak rate of a matrix product of `dtype` (`fp32 tf32 fp16 bf16 fp8 fp4 int8`).

        A type the device has no units for runs on the next wider one it has, any other on fp32's
        vectors; None is fp32.
        """
        for candidate in _MATRIX_UNITS.get(dtype or "fp32", ()):
            rate: float | None = getattr(self, f"{candidate}_tflop_per_s")
            if rate is not None:
                return rate
        return self.fp32_tflop_per_s

    def multiplies(self, dtype: str) -> bool:
        """Whether there are products of `dtype`: no library has those of fp8 and fp4 on units of
        wider types."""
        return dtype not in ("fp8", "fp4") or getattr(self, f"{dtype}_tflop_per_s") is not None


_MATRIX_UNITS = {
    "fp32": ("fp32_matrix",),
    "tf32": ("tf32", "fp32_matrix"),
    "fp16": ("fp16",),
    "bf16": ("bf16", "fp32_matrix"),
    "fp8": ("fp8", "bf16", "fp16"),
    "fp4": ("fp4", "fp8", "bf16", "fp16"),
    "int8": ("int8", "fp16"),
}
"""Per type, the units that can compute it without loss of range, best first; then fp32 vectors."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Host(Part):
    """A CPU model, one socket of it."""

    cores: int
    boost_mhz: float
    single_thread_ratio: float
    """Speed of one thread of branchy code (Python, PyTorch's dispatcher); an EPYC 7742 is 1."""
    dram_gb_per_s: float
    """Peak bandwidth of the memory of one socket."""
    tdp_w: float | None = None
    price_usd: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Link(Part):
    """What joins the devices of one node."""

    gb_per_s: float
    """Per device, all its links together, one direction."""
    topology: Literal["switch", "mesh", "bridge", "pcie"]
    """`switch`: any pair at the full rate; `mesh`: the rate is split over fixed peers."""
    peers: int | None = None
    """Of a mesh, devices that one is wired to; None: all others of the node."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Nic(Part):
    """A network adapter."""

    gb_per_s: float
    """One direction."""
    network: Literal["infiniband", "roce", "slingshot", "efa", "tcp"] = "infiniband"
    """What it speaks to others: `roce` is RDMA over Ethernet, `tcp` Ethernet without RDMA."""
    latency_us: float | None = None
    messages_per_us: float | None = None
    exchange_frac: float | None = None
    """Share of its rate that an all-to-all among several nodes was measured to reach on the fabric
    it hangs on; None: what is usual for its network."""
    cores: int | None = None
    """Processors on the adapter itself (a DPU's Arm cores)."""
    memory_bytes: int | None = None
    """Memory on the adapter itself, that a cache or a reduction there can use."""
    memory_gb_per_s: float | None = None
    engine_rows_per_us: float | None = None
    """Rows that engines on the adapter look for, or read and add up; None: its cores do."""
    descriptors_per_us: float | None = None
    """Reads and writes of single rows that it starts; None: as many as messages."""
    pcie_gb_per_s: float | None = None
    """Between the adapter and one device, one direction; None: the device's bus."""
    tdp_w: float | None = None
    price_usd: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Storage(Part):
    """A solid-state drive."""

    read_gb_per_s: float
    """Sequential."""
    write_gb_per_s: float | None = None
    read_iops: float
    """Random reads of 4 KiB per second, many in flight."""
    read_latency_us: float | None = None
    """Of one random read of 4 KiB alone."""
    small_read_iops: float | None = None
    """Random reads of one sector per second, where sectors are below 4 KiB and the maker says."""
    sector_bytes: int | None = None
    """What one read moves at least; None: 4096."""
    drive_writes_per_day: float | None = None
    """How often the whole drive may be written per day over its warranty (endurance)."""
    capacity_bytes: int | None = None
    tdp_w: float | None = None
    price_usd: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Accelerator(Part):
    """What gathers rows of a node's host memory and sends them to its devices (Hotline's)."""

    engines: int
    """Gather engines, which wait for rows side by side."""
    rows_in_flight: int
    """Rows that one engine waits for at a time."""
    memory_latency_us: float
    """From the request of a row of host memory to its arrival."""
    memory_gb_per_s: float | None = None
    """What it reads of host memory; None: as much as the sockets' memory gives."""
    pcie_gb_per_s: float
    """To all devices of the node together, one direction."""
    keys_per_us: float
    """Keys that it looks for among the hot rows, to part the samples."""
    input_bytes: int
    """Buffer of samples that wait for a whole batch of their kind; others wait in host memory."""
    start_us: float
    """From a batch's command to the first request."""
    tdp_w: float | None = None
    price_usd: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Node(Part):
    """A server: devices of one kind, the host they hang on, and what joins them."""

    device: Device
    gpus: int
    """Devices, be they GPUs or CPUs."""
    host: Host
    sockets: int
    host_memory_bytes: int | None = None
    link: Link | None = None
    nic: Nic | None = None
    nics: int | None = None
    storage: Storage | None = None
    drives: int | None = None
    accelerator: Accelerator | None = None
    link_domain_gpus: int | None = None
    """Devices that the links join across nodes (a rack of NVL72 trays); None: the node's own."""
    gpus_per_uplink: int | None = None
    """Devices behind one switch that share one way to the host; None: each has its own."""
    power_w: float | None = None
    """What the whole node draws at most."""
    price_usd: float | None = None
    price_usd_per_hour: float | None = None
    """Rented, on demand."""

    @property
    def peer_gb_per_s(self) -> float:
        """Per device, to its peers in the node, one direction."""
        return self.link.gb_per_s if self.link else self.device.peer_gb_per_s


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Cluster(Part):
    """Equal nodes joined by their network adapters."""

    node: Node
    nodes: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.node.gpus

    @property
    def linked_gpus(self) -> int:
        """Devices that reach one another over the nodes' links, without a network adapter."""
        return min(self.gpus, self.node.link_domain_gpus or self.node.gpus)


_EVERY = (Device, Host, Link, Nic, Storage, Accelerator, Node, Cluster)
KINDS: dict[str, type[Part]] = {each.__name__.lower(): each for each in _EVERY}
"""The word a file uses for a kind of part, and its type."""


def kind_of(part: Part | type[Part]) -> str:
    """`device`, `host`, … for a part or its type."""
    cls = part if isinstance(part, type) else type(part)
    return next(kind for kind, each in KINDS.items() if issubclass(cls, each))


def a_kind_of(part: Part | type[Part]) -> str:
    """`a device`, `an accelerator`, …"""
    kind = kind_of(part)
    return f"{'an' if kind[0] in 'aeio' else 'a'} {kind}"


def parts_of(part: Part) -> dict[str, Part]:
    return {key: value for key, value in _values(part).items() if isinstance(value, Part)}


def texts_of(part: Part) -> dict[str, str | list[str]]:
    """What a part says in words, such as its driver's names, by key, but for its name."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in _values(part).items()
        if isinstance(value, str | tuple) and key != "name"
    }


def _values(part: Part) -> dict[str, object]:
    return {each.name: getattr(part, each.name) for each in fields(part)}
