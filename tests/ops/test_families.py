"""Kernel names to families, classes and types."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import ops
from perfmodel.ops.families import OTHER

_AT = "void at::native::"
_EW = _AT + "vectorized_elementwise_kernel<4, at::native::"


@pytest.mark.parametrize(
    ("name", "family", "dtype"),
    [
        ("volta_sgemm_128x64_tn", "matmul", "fp32"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn", "matmul", "fp16"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "matmul", "bf16"),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", "matmul", "fp16"),
        ("volta_h884gemm_256x64_ldg8_nn", "matmul", "fp16"),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nn>",
            "matmul",
            "tf32",
        ),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", "matmul", "fp32"),
        ("cutlass_80_tensorop_f16_s16816gemm_f16_256x128_32x3_tn_align8", "matmul", "fp16"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_stage3", "matmul", "tf32"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", "matmul", "bf16"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", "matmul", "fp16"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "matmul", "bf16"),
        ("nvjet_qqtst_128x256_128x4_1x2_h_bz_coopA_TNT", "matmul", "fp8"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_SN", "matmul", "bf16"),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64", "matmul", "bf16"),
        ("Cijk_Alik_Bljk_HHS_BH_Bias_MT128x128x64", "matmul", "fp16"),
        ("Cijk_Ailk_Bljk_SB_MT32x32x16", "matmul", "fp32"),
        ("Cijk_Alik_Bljk_F8BS_BH_MT256x256x128", "matmul", "fp8"),
        ("triton_tem_fused_addmm_relu_4", "matmul", None),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128>", "gemv", "fp32"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "convolution", "fp32"),
        ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "convolution", "fp32"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc", "convolution", "tf32"),
        ("cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc", "convolution", "bf16"),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5>", "convolution", "fp32"),
        ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3>", "convolution", "fp32"),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", "convolution", "bf16"),
        ("igemm_wrw_gtcx2_nhwc_fp16_bx0_ex1_bt64x64x64", "convolution", "fp16"),
        ("miopenSp3AsmConv_v30_3_1_gfx90a_fp32_f3x2_stride1", "convolution", "fp32"),
        (
            "_ZN2ck16tensor_operation6device12_GLOBAL__N_149kernel_grouped_conv_fwd_multiple_abd"
            "_xdl_cshuffleINS_34GridwiseGemmMultipleD_xdl_cshuffleItttftNS",
            "convolution",
            "bf16",
        ),
        (
            "void split_embedding_codegen_forward_unweighted_kernel<float",
            "embedding",
            "fp32",
        ),
        (
            "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<"
            "c10::Half, float, c10::Half, 2ul, 32>",
            "embedding",
            "fp16",
        ),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int)", "gather_scatter", None),
        ("void fbgemm_gpu::_FP8rowwise_to_float_cuda_kernel<float>", "elementwise", "fp8"),
        (_EW + "CUDAFunctor_add<float>, at::detail::Array<char*, 3> >", "elementwise", "fp32"),
        (_EW + "mse_kernel_cuda(at::TensorIterator&)", "loss", None),
        (_AT + "reduce_kernel<512, 1, at::native::ReduceOp<float", "reduction", "fp32"),
        (
            _AT + "(anonymous namespace)::CatArrayBatchedCopy<float, unsigned",
            "cat_split",
            "fp32",
        ),
        (_AT + "(anonymous namespace)::vectorized_layer_norm_kernel<float", "norm", "fp32"),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512>", "norm", "fp32"),
        (_AT + "(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16", "softmax", "bf16"),
        (_AT + "(anonymous namespace)::multi_tensor_apply_kernel<", "optimizer", None),
        (_AT + "(anonymous namespace)::fused_dropout_kernel_vec<float", "dropout", "fp32"),
        (_AT + "(anonymous namespace)::distribution_elementwise_grid_stride", "random", None),
        (_AT + "(anonymous namespace)::max_pool_backward_nchw<float", "pooling", "fp32"),
        (
            _AT + "index_elementwise_kernel<128, 4, void at::native::gpu_",
            "gather_scatter",
            None,
        ),
        ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy", "sort", None),
        ("void at_cuda_detail::cub::DeviceScanKernel<", "scan", None),
        ("batched_transpose_32x32_half", "transpose", "fp16"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float", "transpose", "fp32"),
        ("pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>", "attention", "bf16"),
        ("attn_fwd", "attention", None),
        ("triton_poi_fused_add_relu_0", "elementwise", None),
        ("triton_poi_fused_convolution_1", "elementwise", None),
        ("triton_per_fused_native_layer_norm_2", "norm", None),
        ("triton_red_fused__softmax_3", "softmax", None),
        ("triton_red_fused_sum_4", "reduction", None),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*", "communication", "fp32"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "communication", "int8"),
        ("Memcpy HtoD (Pageable -> Device)", "memcpy_host", None),
        ("Memcpy DtoH (Device -> Pinned)", "memcpy_host", None),
        ("Memcpy DtoD (Device -> Device)", "memcpy", None),
        ("Memcpy PtoP (Device -> Device)", "memcpy_peer", None),
        ("Memset (Device)", "memset", None),
        ("at::cuda::(anonymous namespace)::spin_kernel(long)", OTHER, None),
    ],
)
def test_family_and_dtype(name: str, family: str, dtype: str | None) -> None:
    assert ops.family_of_kernel(name) == family
    assert ops.dtype_of_kernel(name) == dtype


def test_lists_and_classes() -> None:
    names = ["volta_sgemm_128x64_tn", "Memset (Device)", "Memcpy HtoD (Pinned -> Device)", "nccl"]
    assert ops.families_of_kernels(names) == ["matmul", "memset", "memcpy_host", "communication"]
    assert ops.classes_of_kernels(names) == [
        "compute_bound",
        "memory_bound",
        "host_copy",
        "communication",
    ]
    assert ops.dtypes_of_kernels(names) == ["fp32", None, None, None]
    assert ops.families_of_kernels([]) == []


@given(st.text(max_size=400))
def test_any_name_has_a_family_and_perhaps_a_type(name: str) -> None:
    assert ops.family_of_kernel(name) in ops.FAMILIES
    assert ops.dtype_of_kernel(name) in (None, *ops.DTYPES)


@pytest.mark.slow
def test_share_of_gpu_time_without_a_family() -> None:
    folder = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data")) / "traces"
    if not folder.exists():
        pytest.skip(f"reference data not found: {folder}; set PERFMODEL_REFERENCE")
    categories = {"kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"}
    checked = 0
    for path in sorted(folder.rglob("*.json.gz")):
        with gzip.open(path) as file:
            content = json.loads(file.read())
        time_us: dict[str, float] = defaultdict(float)
        for event in content.get("traceEvents", ()):
            sleeps = "spin_kernel" in event.get("name", "")
            if event.get("cat", "").lower() in categories and not sleeps:
                time_us[ops.family_of_kernel(event["name"])] += event["dur"]
        if time_us:
            checked += 1
            assert time_us[OTHER] <= 0.03 * sum(time_us.values()), path
    assert checked >= 25
