"""Kernel name to family, and family to what bounds it.

One ordered table: the first pattern found in a name decides, so what is special stands before what
is general, and a family in several places. Names are those that Kineto records: CUDA (cuBLAS,
cuDNN, CUTLASS, PyTorch, fbgemm, NCCL, Triton, cub), ROCm (Tensile, MIOpen, CK, RCCL, rocPRIM) and
serving engines, demangled or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from perfmodel.ops.spec import OPS
from perfmodel.trace.categories import COMMUNICATION_NAME, TELLING_CHARACTERS

OTHER = "other"
MATMUL = "matmul"

COMPUTE_BOUND = "compute_bound"
MEMORY_BOUND = "memory_bound"
COMMUNICATION = "communication"
HOST_COPY = "host_copy"
OF_CORES = (COMPUTE_BOUND, MEMORY_BOUND)
"""What a device does by itself."""

CLASS_OF_FAMILY = {
    **dict.fromkeys((MATMUL, "convolution", "attention"), COMPUTE_BOUND),
    **dict.fromkeys(("communication", "memcpy_peer"), COMMUNICATION),
    "memcpy_host": HOST_COPY,
    **dict.fromkeys(("memcpy", "memset", "gemv", "embedding", "elementwise"), MEMORY_BOUND),
    **dict.fromkeys(("reduction", "norm", "softmax", "sort", "scan"), MEMORY_BOUND),
    **dict.fromkeys(("gather_scatter", "cat_split", "transpose", "optimizer"), MEMORY_BOUND),
    **dict.fromkeys(("pooling", "dropout", "loss", "random", OTHER), MEMORY_BOUND),
}
"""Every family, and the resource that bounds its kernels unless they are tiny.

`memcpy` is within one device, `memcpy_host` to or from the host, `memcpy_peer` between devices;
`gemv` is a matrix product with one vector, which moves its matrix once.
"""

FAMILIES = tuple(CLASS_OF_FAMILY)

_OWN = r"(?:\(anonymous namespace\)|[^<(])*?"
"""Within what a kernel is called, before the arguments of its template and its own."""

_PATTERNS: tuple[dict[str, str], ...] = (
    {  # Copies and fills, which Kineto names itself; ROCm does some of them with kernels.
        "memcpy_host": r"^Memcpy (HtoD|DtoH|HtoH|[HMS]2[DHMS]|D2[HMS])"
        r"|^Copy(HostToDevice|DeviceToHost)",
        "memcpy_peer": r"^Memcpy PtoP|^CopyPeer",
        "memcpy": r"^Memcpy|^CopyDeviceToDevice|rocclr_copyBuffer|^memcpy\d*_",
        "memset": r"^Memset|rocclr_fillBuffer|^Fill(Buffer)?$",
        "communication": COMMUNICATION_NAME.pattern,
    },
    {  # Triton names a kernel after all it fuses: what surrounds a matrix product is not one.
        "elementwise": r"^triton_poi_\w*?(convolution|mm|attention|dot_product)",
        "reduction": r"^triton_(red|per)_\w*?(convolution|mm|attention|dot_product)",
    },
    {  # Recommendation models: table lookups before everything that their names also contain.
        "embedding": r"split_embedding|dense_embedding|embedding_codegen|ssd_embedding"
        r"|[Ee]mbedding_?[Bb]ag|embedding_backward|embedding_dense|bounds_check_indices"
        r"|linearize_(index|cache)|l[xfr]u_cache|lxu_|permute_pooled_embs|nbit_forward"
        r"|embedding_forward",
        "gather_scatter": r"permute_(1|2)D|permute_(indices|lengths|sequence|multi)|recat"
        r"|offsets_range|block_bucketize|segment_sum|jagged|to_dense_representation|keyed_jagged",
    },
    {  # Serving: keys and values into their cache, tokens to their experts and back.
        "gather_scatter": "^"
        + _OWN
        + r"(?:(?i:(store|append|copy|concat|reshape|set|write|move|swap)\w*kv_?(cache|buffer)"
        r"|(and|concat|copy|reshape)_cache|kv_indices|moe_?(permute|unpermute|finalize)"
        r"|finalize_?(moe|matmul)|expandInputRows)|(add|update)_\w*rows)",
        "sort": r"[Mm]oe_?([Aa]lign|[Ss]ort)|[Rr]outing|topk_?([Gg]ating|[Ss]oftmax)",
        "scan": r"complete_cumsum|exclusive_cumsum|inclusive_cumsum",
    },
    {  # Training's ends.
        "optimizer": r"multi_tensor_apply|FusedAdam|fused_adam|FusedSgd|AdamFunctor|[Aa]dagrad"
        r"|[Ll]amb_|_lamb\b|multi_tensor_(adam|sgd|l2norm|scale)|^triton_for_|rowwise_adagrad"
        r"|^.{0,40}sgd_kernel",
        "loss": r"nll_loss|ClassNLL|cross_entropy"
        r"|(mse|smooth_l1|huber|bce|l1)_(backward|kernel|loss)|mse_backward|binary_cross_entropy"
        r"|kl_div|hinge|ctc_loss",
        "dropout": r"dropout",
        "random": r"distribution_|philox|curand|rocrand|randperm|bernoulli|multinomial",
    },
    {  # Attention before softmax and matrix products.
        "attention": r"flash_(fwd|bwd)|[Ff]mha|attn_(fwd|bwd)|_attn|[Aa]ttention|mha_(fwd|bwd)"
        r"|FlashAttn|sage_fwd|efficient_attention|sdpa|paged_attn|mla_|With(Paged|Ragged)?KV"
        r"|[Mm]erge_?(Attn)?[Ss]tates?|[Gg]emm_?[Ss]oft_?[Mm]ax_?[Gg]emm",
        # Composable Kernel names a product with all that may follow it.
        MATMUL: r"(?:ck::|_ZN2ck)[^<]*?kernel_(?![a-z\d_]*bwd)[a-z\d_]*(gemm|contraction)",
        "softmax": r"[Ss]oft_?[Mm]ax",
        "norm": r"([Bb]atch|[Ll]ayer|[Gg]roup|[Ii]nstance|[Rr][Mm][Ss]|native|weight|[Qq][Kk])"
        r"_?[Nn]orm|GammaBeta|RowwiseMoments|cudnn::bn_|\bbn_(fw|bw)|ComputeInternalGrad|BNFwd|BNBwd"
        r"|[Nn]ormalization|norm_(forward|backward|fwd|bwd)",
        "pooling": r"(max|avg|average)_?pool|[Pp]ooling|adaptive_(max|average)|[Pp]oolFwd"
        r"|[Pp]oolBwd",
    },
    {  # Convolutions before matrix products and transposes: many are named after both.
        "convolution": r"scudnn|winograd|implicit_(convolve|gemm)|explicit_convolve"
        r"|[_:](wgrad|dgrad|fprop)|(wgrad|dgrad)[_2]|s\d+(wgrad|dgrad|fprop)|igemm_(fwd|bwd|wrw)"
        r"|[cC]onv(olve|olution|2d|3d)|_conv_|[cC]onv(nd)?_?([Ff]wd|[Bb]wd|wrw)|bwd_(weight|data)"
        r"|im2(col|d)|col2im|Conv[23]D|Im2(Col|d2Col)|depthwise|compute\w*OffsetsKernel|fft[123]d_"
        r"|miopenSp3Asm|Conv_|gfx9_\w*conv|grouped_direct|naive_conv|xdlops_bwd|MIOpenConv",
        "reduction": r"split_?[Kk]_?[Rr]educe|reduce_1Block|PostGSU|splitk?_?reduce",
        "gemv": r"gemv|wvSplitK|LLMM1|dot_kernel|gemmSN_|dot_product|ger_kernel",
        "transpose": r"[Tt]ranspose|n[ck]hwTo|nhwcToN|nchwToN|tensorTransform|permute_kernel"
        r"|Cijk_S?_?Transp",
        MATMUL: r"(?<!fb)gemm|Gemm|GEMM|^Cijk_|cutlass|nvjet|_cublas|cublasLt::(?!epilogue)"
        r"|[Ff]latmm|mat_?mul|bmm_|_bmm|triton_(tem|mm|bmm)|wmma|xmma|mfma|trsm|syrk"
        r"|persistent_rnn|RNN_blockPersist|[Ff]used_?[Mm]oe|fmoe_|[Mm]arlin|[Cc]ontraction",
    },
    {  # Orders and prefix sums.
        "sort": r"[Rr]adixSort|radix_sort|[Ss]egmentedSort|segmented_sort|[Mm]erge_?[Ss]ort"
        r"|bitonic|[Tt]op_?[Kk]|radixSelect|gatherTopK|searchsorted|onesweep|[Ss]ort(Keys|Pairs)"
        r"|sort_by_key|mergesort|block_sort|gatherMedian|bucketize",
        "scan": r"DeviceScan|DeviceReduceByKey|DeviceCompact|DeviceSelect|DeviceRunLength"
        r"|DevicePartition|scan_(innermost|outer|dim|config|impl)|wrapped_partition|[Cc]umsum"
        r"|[Cc]umprod|lookback_scan|unique_by_key|init_lookback|tensor_kernel_scan"
        r"|adjacent_difference|DeviceUnique|scan_kernel",
        "cat_split": r"CatArray|[Ss]plit_with_sizes|split_copy|chunk_cat|cat_kernel|concat|_cat_"
        r"|stack_kernel",
        "gather_scatter": r"index_elementwise|indexing_backward|indexSelect|index_select|indexFunc"
        r"|index_(put|copy|add|fill)|[Gg]ather|[Ss]catter|take_|compute_cuda_kernel"
        r"|repeat_interleave|vectorized_gather|nonzero|flip_kernel|roll_cuda|triu_tril"
        r"|index_kernel|masked_select|unfold|coalesce",
    },
    {  # What is left of PyTorch, Triton and the libraries.
        "reduction": r"reduce_kernel|reduce_|[Rr]eduction|Reduce|triton_(red|per)_|argm(ax|in)"
        r"|norm_kernel|sum_kernel|^_?sum_|histogram|bincount|BlockReduce|colsum|rowsum|qparam",
        "elementwise": r"[Ee]lement_?[Ww]ise|pointwise|triton_poi_|triton_|CUDAFunctor|[Uu]nrolled"
        r"|upsample|SubTensorOp|OpTensor|Op1dTensor|Op2dTensor|Op3dTensor|Op4dTensor|op_generic"
        r"|epilogue::|scal_kernel|scalePackedTensor|axpy|[Aa]ctiv|arange|linspace|fill_|_fill"
        r"|copy_kernel|CastTensor|rowwise_to_float|[Qq]uant|FP8|[Ff]loat.*[Hh]alf|elemWise|LSTM"
        r"|lstm|gru_|copy_device|copyKernel|add_kernel|bias_|rotary|rope_|silu|gelu|relu|[Gg]lu"
        r"|gated|sigmoid|clamp|position|act_and_mul|fused_",
    },
)
_TABLE = tuple((family, re.compile(text)) for each in _PATTERNS for family, text in each.items())


@lru_cache(maxsize=1 << 16)
def family_of_kernel(name: str) -> str:
    """The family of one kernel, copy or fill, by its name; `other` when nothing matches."""
    if name in OPS:  # as predicted kernels are called; one of a plugin's own family is `other`
        family = OPS[name].kernel_family
        return family if family in CLASS_OF_FAMILY else OTHER
    telling = name[:TELLING_CHARACTERS]
    for family, pattern in _TABLE:
        if pattern.search(telling):
            return family
    return OTHER


def families_of_kernels(names: Iterable[str]) -> list[str]:
    """The family of each name; every distinct name is matched once per process."""
    return [family_of_kernel(name) for name in names]


def classes_of_kernels(names: Iterable[str]) -> list[str]:
    """What bounds each kernel: `compute_bound memory_bound communication host_copy`."""
    return [CLASS_OF_FAMILY[family_of_kernel(name)] for name in names]
