"""Let sparse gradients be accumulated under a dispatch mode as they are without one.

Autograd takes a sparse gradient as it is only where nothing else refers to its parts; a mode that
has seen them makes it clone the gradient. Around that moment the mode is therefore left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def taken_unseen(torch: Any, leaves: Iterable[Any]) -> Iterator[None]:
    """Inside, modes do not see how those of `leaves` with a sparse gradient accumulate it.

    Without effect before PyTorch 2.1, which has no hook after accumulation.
    """
    exclude = getattr(torch._C, "_dispatch_tls_set_dispatch_key_excluded", None)
    python_key = torch._C.DispatchKey.Python
    handles: list[Any] = []
    for leaf in leaves:
        after = getattr(leaf, "register_post_accumulate_grad_hook", None)
        if exclude is None or after is None or not _is_sparse(torch, leaf.grad):
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


def _is_sparse(torch: Any, gradient: Any) -> bool:
    return gradient is not None and gradient.layout == torch.sparse_coo
