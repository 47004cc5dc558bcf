"""Kernel names to families, classes and types."""

from __future__ import annotations

import gzip
import os
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import ops
from perfmodel.cost.contract import TIERS
from perfmodel.ops.families import OTHER
from perfmodel.ops.spec import OPS

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
        (
            "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc",
            "convolution",
            "tf32",
        ),
        (
            "cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc",
            "convolution",
            "bf16",
        ),
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


@pytest.mark.parametrize(
    "name",
    [
        "nccl",
        "void ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymkDevWorkArgs4K)",
        "rcclGenericKernel(ncclDevKernelArgsStorage<4096ul>)",
        "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*)",
        "void mscclpp::allreduce6<__half>(__half*, __half*, void*, int)",
        "gloo:all_reduce",
        "nvshmemi_proxy_quiet_entrypoint()",
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, float*, int*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*, float*)",
        "_ZN7deep_ep9intranode15notify_dispatchILi8EEEvPKiPii",
        "void uccl::internode_ll::combine<7168, 9>(void*, void*, int*)",
        "notify_dispatch",
        "void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(mori::moe::Args)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, int, int)",
        "_ZN5aiter26cross_device_reduce_2stageI14__hip_bfloat16Li8EEEvPNS_8RankDataE",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half> >()",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>(P)",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(AllReduceParams)",
        "void tensorrt_llm::kernels::moeA2ADispatchKernel<8>(MoeA2ADispatchKernelPointers)",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<float, 8, 8, true>(float**)",
        "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*, unsigned int**)",
        "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
        "userbuffers_fp16_sum_inplace_gpu_mc_rw(int, int, void*)",
    ],
)
def test_exchanges_between_ranks(name: str) -> None:
    assert ops.family_of_kernel(name) == "communication"


@pytest.mark.parametrize(
    "name",
    [
        "void deep_ep::layout::get_dispatch_layout<256, 8, 256>(long const*, int*, int*)",
        "moe_dispatch_kernel",
        "void moe::combine_kernel<float>(float const*, float*)",
        "triton_poi_fused_all_gather_into_tensor_view_wait_tensor_3",
        "triton_red_fused_add_all_reduce_mul_0",
        "void LayerNormBlockAllReduce<float>(float*)",
        "void warpAllReduceSum<float>(float*)",
        _AT + "reduce_kernel<512, 1, at::native::ReduceOp<float",
        "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128> >(Flash_fwd_params)",
        "fused_moe_kernel",
        "void vllm::rms_norm_kernel<c10::BFloat16>(tensorrt_llm::AllReduceParams)",
        "void fused_add_rmsnorm<vllm::nccl_tag>(int)",
        "void scatter_reduce_kernel<float>(float*)",
    ],
)
def test_what_only_sounds_like_an_exchange(name: str) -> None:
    assert ops.family_of_kernel(name) != "communication"


_ROWS = "ck::tensor_layout::gemm::RowMajor, "
_CK = "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3<" + 3 * _ROWS
_MOE = "void ck::kernel_moe_gemm<ck::GridwiseMoeGemm<" + 8 * _ROWS
_MANGLED = "_ZN2ck27kernel_gemm_xdl_cshuffle_v3INS_29GridwiseGemm_xdl_cshuffle_v3INS_13tensor_"
_MANGLED += "layout4gemm8RowMajorENS3_11ColumnMajorES4_"
_TILE = "void ck_tile::kentry<256, 2, ck_tile::"


@pytest.mark.parametrize(
    ("name", "family", "dtype"),
    [
        (_CK + "_Float16, _Float16, float, _Float16", "matmul", "fp16"),
        (_CK + "unsigned short, unsigned short, float", "matmul", "bf16"),
        (_CK + "ck::f8_fnuz_t, ck::f8_fnuz_t, float, float, unsigned short", "matmul", "fp8"),
        (_CK + "signed char, signed char, int", "matmul", "int8"),
        (_CK + "float, float, float", "matmul", "fp32"),
        (_MOE + "unsigned short, unsigned short, float", "matmul", "bf16"),
        (_MANGLED + "DF16_DF16_fDF16_DF16_NS_16tensor_operation", "matmul", "fp16"),
        (_MANGLED + "ttftt", "matmul", "bf16"),
        (_MANGLED + "NS_9f8_fnuz_tES7_ffS6_tNS_", "matmul", "fp8"),
        (_MANGLED + "NS_9f4x2_pk_tENS_11e8m0_bexp_tES6_S7_fDF16_", "matmul", None),
        (_MANGLED + "aaiaaNS_", "matmul", "int8"),
        (
            "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47Gridwise"
            "Gemm_bk0mk1_bk0nk1_mn_xdlops_bwd_weightILi64EttftLNS_25InMemory",
            "convolution",
            "bf16",
        ),
        ("DeviceGemm_Xdl_CShuffle<256, 128, F16, F16, F32>", "matmul", "fp16"),
        ("DeviceGroupedConvFwdMultipleABD_Xdl_CShuffle<64, BF16>", "convolution", "bf16"),
        (_TILE + "GemmKernel<ck_tile::GemmPipelineProblem<_Float16, _Float16", "matmul", "fp16"),
        (_TILE + "FmhaFwdKernel<ck_tile::Problem<unsigned short, unsigned", "attention", "bf16"),
        (_TILE + "MoeSortingKernel<ck_tile::MoeSortingProblemEx<int, float", "sort", "fp32"),
        (
            "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_27"
            "Rmsnorm2dFwdPipelineProblemIDF16bDF16bfDF16b",
            "norm",
            "bf16",
        ),
    ],
)
def test_composable_kernel_names_its_first_operand(
    name: str, family: str, dtype: str | None
) -> None:
    assert (ops.family_of_kernel(name), ops.dtype_of_kernel(name)) == (family, dtype)


@pytest.mark.parametrize(
    ("name", "family", "dtype"),
    [
        ("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT", "matmul", "bf16"),
        ("nvjet_sm90_sss_128x128_32x6_2x1_v_bz_TNT", "matmul", "tf32"),
        ("bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2_s6_swiGlu_sm100f", "matmul", "bf16"),
        ("bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s6_sm100f", "matmul", "fp8"),
        ("fused_moe_kernel", "matmul", None),
        ("void wvSplitK_hf_sml_<__half, 64, 2, 16, 8, 2, 1>(int)", "gemv", "fp16"),
        ("kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnorm", "norm", None),
        ("void fused_qknorm_warp<128l, true, __nv_bfloat16>(QKNormParams)", "norm", "bf16"),
        ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>", "gather_scatter", "bf16"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<__half>", "attention", "fp16"),
        ("void vllm::moe::moe_align_block_size_kernel<int>(int*)", "sort", None),
        ("sage_fwd", "attention", None),
        ("at::native::xpu::VectorizedElementwiseKernel<4>", "elementwise", None),
        ("Memcpy M2D (Memory -> Device)", "memcpy_host", None),
    ],
)
def test_kernels_of_serving_engines(name: str, family: str, dtype: str | None) -> None:
    assert (ops.family_of_kernel(name), ops.dtype_of_kernel(name)) == (family, dtype)


def test_every_op_says_what_its_kernels_are() -> None:
    beside = {"host", "pause", "host_bus", "host_operators", *TIERS}
    assert {OPS[name].kernel_family for name in OPS} <= {*ops.FAMILIES, *beside}
    said = {"linear": "matmul", "tanh": "elementwise", "softmax": "softmax", "fill": "elementwise"}
    said |= {"all_reduce": "communication", "batch_norm": "norm", "copy_p2p": "memcpy_peer"}
    assert {name: OPS[name].kernel_family for name in said} == said


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


def test_predicted_kernels_have_the_family_of_their_op() -> None:
    predicted = ["linear", "all_reduce", "bounds_check", "copy_h2d", "host_view"]
    families = ["matmul", "communication", "embedding", "memcpy_host", OTHER]
    assert ops.families_of_kernels(predicted) == families
    assert {*ops.families_of_kernels(OPS)} <= {*ops.FAMILIES}


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
            content = msgspec.json.decode(file.read())
        time_us: dict[str, float] = defaultdict(float)
        for event in content.get("traceEvents", ()):
            sleeps = "spin_kernel" in event.get("name", "")
            if event.get("cat", "").lower() in categories and not sleeps:
                time_us[ops.family_of_kernel(event["name"])] += event["dur"]
        if time_us:
            checked += 1
            assert time_us[OTHER] <= 0.03 * sum(time_us.values()), path
    assert checked >= 25
