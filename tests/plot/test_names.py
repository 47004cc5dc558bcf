"""Names of kernels that a person can read."""

from __future__ import annotations

import pytest

from perfmodel.plot.names import readable_name, shortened

NATIVE = "at::native::"


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        (
            f"void {NATIVE}vectorized_elementwise_kernel<4, {NATIVE}CUDAFunctor_add<float>, X>(X)",
            "vectorized_elementwise_kernel[CUDAFunctor_add]",
        ),
        (
            f"void {NATIVE}elementwise_kernel<128, 2, {NATIVE}gpu_kernel_impl<{NATIVE}BinaryFunctor"
            f"<float, float, float, {NATIVE}binary_internal::MulFunctor<float> > >(X)>(X)",
            "elementwise_kernel[MulFunctor]",
        ),
        (
            f"void {NATIVE}unrolled_elementwise_kernel<{NATIVE}direct_copy_kernel_cuda(at::Tensor"
            "IteratorBase&)::{lambda()#2}::operator()() const, X>(int)",
            "unrolled_elementwise_kernel[direct_copy_kernel_cuda]",
        ),
        (
            f"void {NATIVE}vectorized_elementwise_kernel<4, {NATIVE}(anonymous namespace)::launch_"
            "clamp_scalar(at::TensorIteratorBase&)::{lambda()#1}::operator()() const>(int)",
            "vectorized_elementwise_kernel[launch_clamp_scalar]",
        ),
        (
            f"void {NATIVE}reduce_kernel<512, 1, {NATIVE}ReduceOp<float, {NATIVE}MeanOps<float> > >"
            "(X)",
            "reduce_kernel[MeanOps]",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16_128x64_nn_align8>(X::Params)",
            "cutlass_80_tensorop_s16816gemm_f16_128x64_nn_align8",
        ),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>(X)",
            "gemvx::kernel",
        ),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Pipeline", "Rmsnorm2dFwd"),
        ("_ZN12_GLOBAL__N_19sort_kernIfEvPT_", "sort_kern"),
        ("triton_poi_fused_add_native_layer_norm_3", "triton_poi[add_native_layer_norm]_3"),
        ("triton__0d1d2d", "triton__0d1d2d"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("ncclDevKernel_AllReduce_Sum_f32(ncclDevComm*)", "ncclDevKernel_AllReduce_Sum_f32"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("_Z", "_Z"),
        ("_ZN99999999x", "x"),
        ("void <", "void <"),
        ("", ""),
    ],
)
def test_readable_names(name: str, readable: str) -> None:
    assert readable_name(name) == readable


@pytest.mark.parametrize(
    ("width", "text"), [(10, "abcdefghij"), (9, "abcd…ghij"), (4, "ab…j"), (2, "a…"), (1, "…")]
)
def test_long_names_lose_their_middle(width: int, text: str) -> None:
    assert shortened("abcdefghij", width) == text
    assert len(text) <= width
