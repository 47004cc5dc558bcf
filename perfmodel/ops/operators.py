"""Operators of PyTorch as records: the sizes of their arguments, what they return and launch.

A signature says by position what an operator is called with, and behind `->` what it returns:

    a[m,k] b[k,n] -> [m,n]              a tensor, its sizes by name
    x[*r,k] w[n,k] bias? -> [*r,n]      `*r`: any number of sizes; `bias?`: 1 for a tensor, else 0
    x[*a,c,*z] @c=0 i[n] -> [*a,n,*z]   `@c`: which dimension `c` is, 0 where unknown, else the last
    x[*r,*c] (c) -> [*r,*c] [*r,1*c]    `(c)`: a list of as many integers as `c` has sizes (or one);
                                        `1*c`: as many sizes of 1
    _ x[n,*_] -> [n,=] =...             `_`: anything; `=`: whatever the batch; `...`: all after
    x[n,*s] w bias _ _ _ #g             `#g`: an integer, 1 where it is not known

Arguments called `w`, `bias`, `mean` and `var` are parameters and buffers of a module.

From it come the dims of what is launched (`perfmodel.lowering.arguments`) and how sizes follow
another batch (`perfmodel.ops.edits.batch`). What is launched is rows of the measurement table, one
behind the other: `layer_norm.bwd rows=r cols=c x2; fill:int32 rows=1 cols=1`, with a direction, a
dtype or the tensor that has it (else the first named one), products of sizes and their quotients as
dims (`m` stands for `m=m`; `strided=z>1`: 1 where `z` is above 1, else left out; `out`: elements of
what is made, a guess where the graph does not say), and launches per row. Over no elements, or none
of those behind `if=`, nothing is launched. `wait` copies a number that the host waits for.

`stream reads=x,y writes=out flop=4` is one elementwise kernel over the tensors of these names:
arguments, `all` of them, or what is made (`out`, else as all broadcast); with a dtype behind `:`, a
new tensor of the same sizes. `move reads=x writes=out` is a copy, `write writes=x` a fill.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from perfmodel.base.registry import Registry
from perfmodel.ops.graph import Op, Tensor, argument, integer, integers

T = TypeVar("T")
Sizes = Mapping[str, tuple[T, ...]]
_REPEATED, _ONES = "...", "1*"
STREAM, ALL, OUTPUT, WAIT = "stream", "all", "out", "wait"
WHOLE_TENSORS = (STREAM, "move", "write")
_NONE = -1
"""How many sizes stand before a dimension that a tensor does not have."""
_PARAMETERS = ("w", "bias", "mean", "var")


class Row(NamedTuple):
    """A row of the measurement table as a record has it."""

    op: str
    direction: str
    dtype: str
    dims: tuple[tuple[str, str], ...]
    launches: int


@dataclass(frozen=True)
class Operator:
    """An operator by its signature; `launches` is None where code says what it launches."""

    signature: str
    launches: str | None = None

    @cached_property
    def tensors(self) -> dict[str, tuple[int, list[str]]]:
        """Tensors with sizes: their places, and the names of the sizes."""
        found = {}
        for place, token in enumerate(self._arguments):
            name, bracket, names = token.rstrip("]").partition("[")
            if bracket:
                found[name] = place, names.split(",")
        return found

    @cached_property
    def parameters(self) -> list[int]:
        """Places of a module's parameters and buffers."""
        names = [token.rstrip("?").partition("[")[0] for token in self._arguments]
        return [place for place, name in enumerate(names) if name in _PARAMETERS]

    @cached_property
    def rows(self) -> list[Row]:
        """The rows that it launches."""
        found = []
        for text in filter(None, (self.launches or "").split("; ")):
            head, *words = text.split()
            times = int(words.pop()[1:]) if words and re.fullmatch(r"x\d+", words[-1]) else 1
            name, _, dtype = head.partition(":")
            op, _, direction = name.partition(".")
            dims = tuple((word.partition("=")[0], word.partition("=")[2] or word) for word in words)
            found.append(Row(op, direction or "fwd", dtype, dims, times))
        return found

    @cached_property
    def _arguments(self) -> list[str]:
        return self.signature.partition("->")[0].split()

    def bind(self, op: Op, sizes: Callable[[int], Sequence[T] | None]) -> Sizes[T] | None:
        """Name to sizes, of a call whose tensor at a place has `sizes`; None where it does not
        fit."""
        bound: dict[str, tuple[T, ...]] = {}
        for place, names in self.tensors.values():
            given = sizes(place)
            if given is None:
                return None
            counts = [self._count(op, names, at, len(given), bound) for at in range(len(names))]
            rest = len(given) - sum(filter(None, counts))
            is_odd = _NONE in counts or counts.count(None) > 1 or (rest and None not in counts)
            if rest < 0 or is_odd:
                return None
            left = iter(given)
            for name, count in zip(names, counts, strict=True):
                own = range(rest if count is None else count)
                bound.setdefault(name.lstrip("*"), tuple(next(left) for _ in own))
        return bound

    def _count(self, op: Op, names: list[str], at: int, rank: int, bound: Sizes[T]) -> int | None:
        """How many sizes one name stands for; None where the others tell."""
        name = names[at].removeprefix("*")
        if name == names[at]:
            return 1
        if name in bound and name != "_":
            return len(bound[name])
        following = names[at + 1] if at + 1 < len(names) else ""
        for place, token in enumerate(self._arguments):
            if token == f"({name})":
                return len(integers(op, place) or (1,))
            if following and token in (f"@{following}", f"@{following}=0"):
                usual = 0 if token.endswith("=0") else rank - 1
                dim = (integers(op, place) or (usual,))[0]
                return dim % rank if -rank <= dim < rank else _NONE
        return None

    def numbers(self, op: Op) -> Iterator[tuple[str, float]]:
        """Integers, and arguments that may be a tensor or none, to 1 or 0."""
        for place, token in enumerate(self._arguments):
            if token.endswith("?"):
                yield token[:-1], float(isinstance(argument(op, place), Tensor))
            elif token.startswith("#"):
                yield token[1:], float(integer(op, place) or 1)

    def returned(
        self,
        bound: Sizes[T],
        made: Sequence[Tensor | None],
        fixed: Callable[[Sequence[int]], tuple[T, ...]],
    ) -> Iterator[tuple[T, ...] | None]:
        """Sizes of what a call returned (`made`); None of what the signature does not say."""
        said = self.signature.partition("->")[2].split()
        for at, tensor in enumerate(made):
            token = said[min(at, len(said) - 1)] if said else "_"
            is_said = at < len(said) or token.endswith(_REPEATED)
            token = token.removesuffix(_REPEATED)
            if tensor is None or not is_said or token == "_":
                yield None
                continue
            sizes: tuple[T, ...] = ()
            for name in filter(None, token.strip("[]").split(",")):
                if name == "=":
                    sizes += fixed(tensor.shape[len(sizes) :])
                elif name.startswith(_ONES):
                    sizes += fixed((1,) * len(bound[name.removeprefix(_ONES)]))
                else:
                    sizes += bound[name.lstrip("*")]
            yield sizes


OPERATORS: Registry[Operator] = Registry("operator", "perfmodel.operators")
"""By name. `leaf:` in front: what is launched counts only where nothing that it calls launches."""
LEAF = "leaf:"


def operator_of(name: str) -> Operator | None:
    """The record of an operator, also of one that counts as a leaf only."""
    return OPERATORS.get(name) or OPERATORS.get(f"{LEAF}{name}")


def _both(names: str) -> str:
    """Each name, and the same with the underscore of the variant that works in place."""
    return " ".join(f"{name} {name}_" for name in names.split())


def _scan(elements: str, dtype: str) -> str:
    """A prefix sum by cub: one kernel sets up what the other waits on, block by block."""
    whole = f"rows=1 cols={elements}"
    return f"fill:int32 rows=1 cols=1 if={elements}; cumsum:{dtype} {whole}"


_STREAMED, _MOVE = "stream reads=all writes=out", "move reads=x writes=out"
_ALIASES = _both("divide multiply subtract absolute negative clip square rsub prelu").split()
_ALONG = "rows=a*z cols=c strided=z>1"
_NORMALISED = "x[*r,*c] (c) w bias -> [*r,*c] [*r,1*c]..."
_BOUND = "sum rows=1 cols=e; wait if=e"
_LENGTHS, _CHECKED = _scan("l", "lengths"), "bounds_check:values elements=e segments=l"
# Names (one without `::` is ATen's) | signature | launches, none where code says them.
_RECORDS = (
    # Those that the measurement table has by name, `perfmodel.lowering.rules` knows before.
    _both(
        "add sub mul div relu gelu silu sigmoid tanh clamp_min "
        "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh "
        "cosh erf erfinv floor ceil round trunc frac sign sgn reciprocal nan_to_num bitwise_not "
        "hardtanh hardswish hardsigmoid leaky_relu elu selu celu softplus log_sigmoid mish logit "
        "threshold clamp clamp_max angle i0 lgamma digamma relu6 rad2deg softsign logical_not "
        "hardshrink softshrink atan2 remainder fmod floor_divide true_divide bitwise_and "
        "bitwise_or bitwise_xor __and__ __or__ __xor__ __lshift__ __rshift__ copysign hypot "
        "bitwise_left_shift bitwise_right_shift xlogy heaviside nextafter float_power addcmul "
        "addcdiv lerp logical_and logical_or logical_xor"
    )
    + " pow where _s_where maximum minimum fmax fmin gcd ldexp logaddexp isfinite "
    "threshold_backward _prelu_kernel "
    "gelu_backward silu_backward sigmoid_backward tanh_backward logit_backward hardtanh_backward "
    "leaky_relu_backward elu_backward hardswish_backward hardsigmoid_backward softplus_backward "
    "mish_backward _prelu_kernel_backward glu_backward masked_fill_backward "
    "native_dropout_backward _masked_scale upsample_nearest1d polar complex tril triu masked_fill_ "
    "flip roll glu log_sigmoid_forward log_sigmoid_backward reflection_pad2d replication_pad2d "
    "upsample_nearest2d_backward upsample_bilinear2d_backward pixel_shuffle special_entr"
    f" | x[*s] | {_STREAMED}",
    f"upsample_nearest2d upsample_bilinear2d | x[n,*s] -> [n,=]... | {_STREAMED}",
    # They call another op, which does the work.
    " ".join(f"{LEAF}{name}" for name in _ALIASES) + f" | x[*s] | {_STREAMED}",
    _both("eq ne lt le gt ge isnan isinf isneginf isposinf signbit isin")
    + " | _ | stream reads=all writes=all:bool",
    "native_dropout _fused_dropout leaf:dropout leaf:dropout_ leaf:feature_dropout"
    " | x[*s] | stream reads=x writes=x,x:bool flop=10",
    "mse_loss_backward binary_cross_entropy_backward smooth_l1_loss_backward huber_loss_backward "
    f"l1_loss_backward kl_div_backward soft_margin_loss_backward | x[*s] | {_STREAMED} flop=4",
    "fbgemm::FloatToHFP8Quantized | x[*s] | stream reads=x writes=x:uint8",
    "fbgemm::FloatToBfloat16Quantized | x[*s] | stream reads=x writes=x:bf16",
    "fbgemm::*QuantizedToFloat | x[*s] | stream reads=x writes=x:fp32",
    "fill_ fill eye_ leaf:zero_ leaf:zeros_like leaf:ones_like leaf:full_like | x[*s]"
    " | write writes=x",
    "arange linspace logspace tril_indices triu_indices | _ | fill:out rows=1 cols=out",
    "_amp_update_scale_ | x[*s] | stream writes=x flop=0",
    f"leaf:clone leaf:contiguous leaf:_to_copy | x[*s] | {_MOVE}",
    # A copy, which is then filled in place.
    f"leaf:masked_fill | x[*s] mask[*m] | {_MOVE}; stream reads=out,mask writes=out",
    # The range of each row, then its elements in one byte each.
    "fbgemm::FloatToFP8RowwiseQuantized fbgemm::FloatToFused8BitRowwiseQuantized"
    " | x[*r,c] | amax rows=r cols=c; stream reads=x writes=x:uint8",
    "mm _int_mm mm_out _scaled_mm | a[m,k] b[k,n] -> [m,n] | mm b=1 m n k",
    "addmm addmm_ _addmm_activation | bias x[m,k] w[k,n] -> [m,n] | linear b=1 m n k bias=1",
    "bmm | a[*b,m,k] c[*b,k,n] -> [*b,m,n] | bmm b m n k",
    "baddbmm baddbmm_ addbmm | _ a[*b,m,k] c[*b,k,n] -> [*b,m,n] | bmm b m n k",
    "leaf:linear | x[*m,k] w[n,k] bias? -> [*m,n] | linear b=1 m n k bias",
    "_cdist_forward | x[*b,m,k] y[*c,n,k] -> [*b,m,n] | bmm b m n k",
    "mv | a[m,k] | mm b=1 m n=1 k",
    "addmv addmv_ | _ a[m,k] | mm b=1 m n=1 k",
    "dot vdot | x[*k] | mm b=1 m=1 n=1 k",
    "matmul | a[*s,k] b[*t,k,n] -> [*s,n] |",
    f"_softmax _safe_softmax leaf:softmax leaf:special_softmax | x[*a,c,*z] @c | softmax {_ALONG}",
    f"_log_softmax leaf:log_softmax | x[*a,c,*z] @c | log_softmax {_ALONG}",
    # The product of gradient and output, then the gradient.
    f"_softmax_backward_data | g[*a,c,*z] _ @c | softmax.bwd {_ALONG} x2",
    f"_log_softmax_backward_data | g[*a,c,*z] _ @c | log_softmax.bwd {_ALONG}",
    f"native_layer_norm leaf:layer_norm | {_NORMALISED} | layer_norm rows=r cols=c",
    f"_fused_rms_norm leaf:rms_norm | {_NORMALISED} | rms_norm rows=r cols=c",
    # The gradient of the input, then of the weight.
    "_fused_rms_norm_backward | _ x[*r,*c] (c) -> [*r,*c] =... | rms_norm.bwd rows=r cols=c x2",
    # A block for each row of the weight, as a norm.
    "_weight_norm_interface | w[n,*s] | rms_norm rows=n cols=s",
    "_weight_norm_interface_backward | g[n,*s] | rms_norm.bwd rows=n cols=s",
    # The gradient of the input, then of weight and bias: gradient and input are summed together.
    "native_layer_norm_backward | _ x[*r,*c] (c) _ _ w? -> [*r,*c] =..."
    " | layer_norm.bwd rows=r cols=c; sum_rows rows=2*r cols=c if=w",
    # Statistics per group of a sample, then the normalisation.
    "native_group_norm | x[n,*s] w bias _ _ _ #g | group_norm rows=n*g cols=s/g x2",
    "native_group_norm_backward | _ x[n,c,*s] _ _ _ _ _ _ #g -> [n,c,*s] =..."
    " | group_norm.bwd rows=n*g cols=c*s/g channels=c/g x2",
    "native_batch_norm_backward convolution_backward | _ x[*s] -> [*s] =... |",
    "cudnn_batch_norm miopen_batch_norm leaf:batch_norm"
    " | x[n,c,*s] w bias mean var -> [n,c,*s] =... | batch_norm rows=n*s cols=c",
    "cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward"
    " | x[n,c,*s] -> [n,c,*s] =... | batch_norm.bwd rows=n*s cols=c",
    "native_batch_norm _batch_norm_impl_index | x[*s] -> [*s] =... |",
    "conv1d conv2d conv3d convolution _convolution mkldnn_convolution cudnn_convolution "
    "miopen_convolution | x[n,*_] w bias? -> [n,=]... |",
    "max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d "
    "adaptive_max_pool2d | x[n,*_] -> [n,=]... |",
    "uniform_ normal_ random_ bernoulli_ exponential_ log_normal_ bernoulli multinomial geometric_ "
    "cauchy_ poisson | x[*s] | random elements=s",
    # Zeros, and one element of each row.
    "nll_loss_backward nll_loss2d_backward | _ x[*s] -> [*s] | stream writes=x",
    # They count, the host waits for the count, and they compact.
    "nonzero masked_select argwhere | x[*s]"
    " | sum rows=1 cols=s x2; wait if=s; cumsum:int64 rows=1 cols=s x2",
    # The host waits for the smallest and the largest; then additions to bins.
    f"bincount | x[*e] | {_BOUND}; {_BOUND}; scatter_add rows=e cols=1 hash_size=out",
    "histc | x[*e] | scatter_add rows=e cols=1 hash_size=out",
    "leaf:repeat_interleave | repeats[*s] | offsets_range:int64 elements=out segments=s",
    "bucketize | x[*e] bounds[*b] | bucketize rows=1 cols=e boundaries=b",
    "searchsorted | bounds[*b] x[*e] | bucketize rows=1 cols=e boundaries=b",
    "_pack_padded_sequence segment_reduce | x[*s] _ | move reads=x writes=out",
    "scatter_ scatter | table[*t] _ index[*i] | scatter rows=i cols=1 hash_size=t",
    "scatter_add_ scatter_add scatter_reduce_ scatter_reduce | table[*t] _ index[*i]"
    " | scatter_add rows=i cols=1 hash_size=t",
    "gather | _ _ index[*s] -> [*s] |",
    "embedding | w[e,d] i[*s] -> [*s,d] |",
    "embedding_bag _embedding_bag | w ids offsets |",
    "_embedding_bag_per_sample_weights_backward | g[b,d] w[e,d] i[*l]"
    " | tbe.bwd_indice_weights tables=1 batch=b lookups=l dim=d hash_size=e weighted=1",
    "index_select | x[*a,c,*z] @c=0 i[n,*_] -> [*a,n,*z] |",
    "embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward "
    "embedding_backward embedding_sparse_backward _embedding_bag_sparse_backward | -> =... |",
    "fbgemm::asynchronous_complete_cumsum fbgemm::asynchronous_inclusive_cumsum "
    "fbgemm::asynchronous_exclusive_cumsum fb::asynchronous_complete_cumsum"
    f" | lengths[*l] | {_LENGTHS}",
    "fb::lengths_range* fbgemm::lengths_range*"
    f" | lengths[*l] | {_LENGTHS}; offsets_range elements=l segments=l",
    "fb::to_dense_representation* | values[*e] lengths[*l]"
    f" | {_scan('l', 'int64')}; jagged_to_dense elements=e segments=l",
    f"fbgemm::bounds_check_indices* | _ values[*e] offsets[*l] | {_CHECKED}",
    # Sizes per bucket, offsets, then the values.
    "fbgemm::block_bucketize_sparse_features* | lengths[*l] values[*e] | "
    f"{_LENGTHS}; {_CHECKED}; {_LENGTHS}; jagged_bucketize:values elements=e segments=l weighted=0",
    # Lengths, offsets, offsets after, then the values, which come again with their feature.
    "fbgemm::permute_2D_sparse_data fbgemm::permute_1D_sparse_data fbgemm::permute_sparse_features "
    "fbgemm::permute_sparse_data fbgemm::permute_multi_embedding_sparse"
    " | order[*t] lengths[r,*w] values[*e] weights? | index_select:lengths rows=t cols=w; "
    f"{_scan('r*w', 'lengths')}; {_scan('t*w', 'lengths')}; "
    "jagged_permute:values elements=e*t/r segments=t*w weighted=weights",
    "t numpy_T | w[a,b] -> [b,a] |",
    "select | x[*a,c,*z] @c=0 -> [*a,*z] |",
    "unbind | x[*a,c,*z] @c=0 -> [*a,*z]... |",
)
for _record in _RECORDS:
    if _record.count("|") != 2:  # such as two with no comma between them
        raise ValueError(f"expected names | signature | launches: {_record}")
    _names, _signature, _launches = map(str.strip, _record.split("|"))
    _full = (re.sub(rf"^({LEAF})?(?=\w+$)", r"\1aten::", name) for name in _names.split())
    OPERATORS.register(*_full)(Operator(_signature, _launches or None))
