"""Names of kernels that a person can read."""

from __future__ import annotations

import pytest

from perfmodel.plot.names import (
    named,
    readable_name,
    readable_names,
    short_name,
    shortened,
    shortened_apart,
)

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
        (
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::C<64>>>(X)",
            "cutlass::device_kernel[GemmUniversal]",
        ),
        (
            "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<X>>>(X)",
            "cutlass::device_kernel[FlashAttnFwdSm90]",
        ),
        ("void ck_tile::kentry<2, ck_tile::SortKernel<int>>(X)", "ck_tile::kentry[SortKernel]"),
        ("triton_poi_fused_add_native_layer_norm_3", "triton_poi_fused_add_native_layer_norm_3"),
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


def test_names_that_would_look_alike_are_cut_where_they_are_the_same() -> None:
    names = ["xmma_gemm_f32_nn_64x64_execute", "xmma_gemm_f32_tn_64x64_execute", "short"]
    assert shortened_apart(names, 12) == ["xmma…nn_64x6", "xmma…tn_64x6", "short"]
    assert shortened_apart(names[1:], 12) == ["xmma_g…ecute", "short"]


def test_kernels_of_one_short_name_are_told_apart_by_what_differs() -> None:
    gemm = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<{}>>>(X)"
    names = [gemm.format(tile) for tile in ("C<64>, C<128>", "C<128>, C<128>", "C<128>, C<256>")]
    short = "cutlass::device_kernel[GemmUniversal]"
    assert readable_names([*names, "gemm"]) == [
        *(f"{short}<64>", short, f"{short}<256>"),
        "gemm",
    ]
    assert readable_names(names[:1]) == [short]

    native = "void ns::cat<{}>(int)"
    assert readable_names([native.format(x) for x in ("float, 4", "long, 4")]) == [
        "cat<float>",
        "cat<long>",
    ]

    mangled = "_ZN5aiter4normILi{}ELb{}EEvPT_"
    assert readable_names([mangled.format(*x) for x in ((256, 0), (256, 1))]) == [
        "norm<ELb0>",
        "norm<ELb1>",
    ]


def test_names_of_several_lengths_and_names_that_differ_in_the_call_alone() -> None:
    names = ["void k<int, 1, true>(X)", "void k<int, 1, false>(X)", "void k<int>(X)"]
    assert len({*readable_names(names)}) == 3
    assert readable_names(["void k<int>(float)", "void k<int>(long)"]) == ["k<float>", "k<long>"]
    assert readable_names(["void k<int>(X)", "void k<int>( X)"]) == ["k", "k"]
    assert readable_names([]) == []


def test_causes_and_families_are_shown_in_words() -> None:
    from perfmodel.timeline.graph.kinds import Cause

    words = [named(cause.name.lower()) for cause in Cause]
    assert not [each for each in words if "_" in each]
    assert len({*words}) == len(Cause)
    assert named("host_t1") == named("T1") == "Python, between ops (T1)"
    assert named("gather_scatter") == "gather scatter"


def test_a_wait_is_called_so_before_a_short_name() -> None:
    kernel = f"void {NATIVE}reduce_kernel<512, 1, X>(X)"
    assert short_name(f"wait before {kernel}") == "wait before reduce_kernel"
    assert short_name("wait before Memcpy HtoD (Pinned -> Device)").endswith("-> Device)")
