"""Time every ATen operator inside real steps with a dispatch mode, without the profiler.

A `TorchDispatchMode` sees each operator below autograd, in forward, backward (its thread too: the
mode goes with autograd's state) and optimizer. Composite operators appear as their parts; what a
kernel calls inside is not seen, so every operator seen is an outermost one.

Autograd takes a sparse gradient as it is only where nothing else refers to its parts; a mode that
has seen them makes it clone the gradient. Around that moment the mode is therefore left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

if sys.platform != "win32":
    import resource

ACCUMULATE = "AccumulateGrad"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


def page_faults() -> int:
    """Pages that this process has had to map so far, without reading a file; 0 on Windows."""
    if sys.platform == "win32":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def meter_mode(read: Callable[[], int]) -> Any:
    """A mode that notes each operator in `.operators`, and what `read()` gave before and after it.

    `read` is `time.perf_counter_ns` or `page_faults`; `.readings` has two entries per operator.
    Only integers and operators are kept, so that the garbage collector has nothing to do.
    """
    base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Meter(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.operators: list[Any] = []
            self.readings: list[int] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if kwargs is None:
                kwargs = {}
            before = read()
            result = func(*args, **kwargs)
            after = read()
            self.operators.append(func)
            self.readings.append(before)
            self.readings.append(after)
            return result

    return Meter()


def describe_mode(torch: Any) -> Any:
    """A mode that notes what each operator is (`.seen`), and the parameters (`.leaves`).

    It is slow, so never timed. `artefact` marks what runs only because a mode looks on: a sparse
    gradient whose parts Python has seen is cloned when it is accumulated.
    """
    base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode
    node_name = _node_reader(torch)

    class Describe(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[dict[str, Any]] = []
            self.leaves: dict[int, Any] = {}
            self._phase = FORWARD

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names = [argument.name for argument in func._schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
            described = _inputs(torch, given)
            for tensor in tensors_of(torch, given.values()):
                if tensor.requires_grad and tensor.is_leaf:
                    self.leaves[id(tensor)] = tensor
            held = {tensor.data_ptr() for tensor in dense_tensors(torch, given.values())}
            result = func(*args, **(kwargs or {}))
            node = node_name()
            if node:
                self._phase = BACKWARD
            elif self._phase == BACKWARD:
                self._phase = OPTIMIZER
            made = list(dense_tensors(torch, [result]))
            sparse = "sparse_coo" in described["input_layouts"]
            cloned = sparse and func.name() == "aten::clone" and node == ACCUMULATE
            self.seen.append(
                {
                    "op": func.name(),
                    "phase": self._phase,
                    "node": node,
                    "artefact": int(cloned),
                    **described,
                    "output_shapes": [list(tensor.shape) for tensor in tensors_of(torch, [result])],
                    "allocated_bytes": sum(
                        tensor.numel() * tensor.element_size()
                        for tensor in made
                        if tensor.data_ptr() not in held and tensor.data_ptr()
                    ),
                }
            )
            return result

    return Describe()


def tensors_of(torch: Any, values: Any) -> Iterator[Any]:
    """Every tensor among `values` and in lists and dictionaries among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from tensors_of(torch, value.values() if isinstance(value, dict) else value)


def dense_tensors(torch: Any, values: Any) -> Iterator[Any]:
    """The tensors that hold their values, for a sparse one its indices and values."""
    for tensor in tensors_of(torch, values):
        if tensor.layout == torch.strided:
            yield tensor
        elif tensor.layout == torch.sparse_coo:
            yield tensor._indices()
            yield tensor._values()


def _inputs(torch: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Shapes, dtypes and layouts of the tensors in `given`, its scalars, and distinct indices."""
    tensors = {n: v for n, v in given.items() if any(True for _ in tensors_of(torch, [v]))}
    scalars = {
        name: _plain(value)
        for name, value in given.items()
        if name not in tensors and value is not None
    }
    flat = tensors_of(torch, tensors.values())
    sparse = [tensor for tensor in flat if tensor.layout == torch.sparse_coo]
    if sparse:
        scalars["nnz"] = sum(int(tensor._nnz()) for tensor in sparse)
    indices = [tensor._indices() for tensor in sparse]
    indices += [tensors[name] for name in ("indices", "index") if name in tensors]

    def of_each(describe: Callable[[Any], Any]) -> list[Any]:
        return [_nested(torch, value, describe) for value in tensors.values()]

    return {
        "input_shapes": of_each(lambda tensor: list(tensor.shape)),
        "input_dtypes": of_each(lambda tensor: _plain(tensor.dtype)),
        "input_layouts": of_each(lambda tensor: _layout(torch, tensor)),
        "scalars": scalars,
        "unique_rows": sum(_distinct(torch, each) for each in tensors_of(torch, indices)) or None,
    }


def _nested(torch: Any, value: Any, describe: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return describe(value)
    return [_nested(torch, item, describe) for item in value if item is not None]


def _layout(torch: Any, tensor: Any) -> str:
    """`contiguous`, `transposed` (the last two dims), `strided`, or the name of its layout."""
    if tensor.layout != torch.strided:
        return str(_plain(tensor.layout))
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.dim() > 1 and tensor.transpose(-1, -2).is_contiguous():
        return "transposed"
    return "strided"


def _distinct(torch: Any, indices: Any) -> int:
    """How many different values an index tensor holds."""
    if indices.dtype not in (torch.int64, torch.int32) or not indices.numel():
        return 0
    flat = indices.reshape(-1).long()
    seen = torch.zeros(int(flat.max()) + 1, dtype=torch.bool, device=flat.device)
    seen[flat] = True
    return int(seen.sum())


def _plain(value: Any) -> Any:
    """`value` as JSON has it."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value).removeprefix("torch.")


def _node_reader(torch: Any) -> Callable[[], str]:
    """What names the autograd node that runs now; before PyTorch 2.1 only that one does."""
    current = getattr(torch._C, "_current_autograd_node", None)
    if current is None:
        task = torch._C._current_graph_task_id
        return lambda: "backward" if task() != -1 else ""

    def name() -> str:
        node = current()
        return str(node.name()).rpartition("::")[2] if node is not None else ""

    return name


@contextmanager
def hidden_accumulation(torch: Any, leaves: Iterable[Any]) -> Iterator[None]:
    """Inside, modes do not see how those of `leaves` with a sparse gradient accumulate it.

    Without effect before PyTorch 2.1, which has no hook after accumulation.
    """
    exclude = getattr(torch._C, "_dispatch_tls_set_dispatch_key_excluded", None)
    python_key = torch._C.DispatchKey.Python
    handles: list[Any] = []
    for leaf in leaves:
        after = getattr(leaf, "register_post_accumulate_grad_hook", None)
        is_sparse = leaf.grad is not None and leaf.grad.layout == torch.sparse_coo
        if exclude is None or after is None or not is_sparse:
            continue
        handles.append(leaf.register_hook(lambda gradient: exclude(python_key, True)))
        handles.append(after(lambda parameter: exclude(python_key, False)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        if handles and exclude is not None:
            exclude(python_key, False)
