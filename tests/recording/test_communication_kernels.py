"""Names of kernels as they stand in public traces and sources of the libraries, and kernels that only sound like them."""

from __future__ import annotations

import pytest

from meshwright.recording.communication_kernels import communication_kernel

KNOWN = [
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce", "NCCL"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather", "NCCL"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter", "NCCL"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv", "NCCL"),
    ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", "broadcast", "NCCL"),
    ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymkDevWorkArgs4K)", "all_reduce", "NCCL"),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "", "NCCL"),
    ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "", "RCCL"),
    ("void mscclpp::collective::allreduceNvlsPacket<__half>(void*, void*)", "all_reduce", "MSCCL++"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)", "all_reduce", "custom all-reduce"),
    ("void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)", "all_reduce", "custom all-reduce"),
    ("void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<half>>(half const*)", "all_reduce", "custom all-reduce"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "all_to_all", "DeepEP"),
    ("void deep_ep::internode_ll::combine<true, 4, 7168, 9>(void*)", "all_to_all", "DeepEP"),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "all_reduce", "symmetric memory"),
    ("void c10d::one_shot_all_reduce_kernel<float, 4, 8>(float**, float*)", "all_reduce", "symmetric memory"),
    ("void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8, true>(AllReduceParams)", "all_reduce", "TensorRT-LLM"),
    ("void trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<2, half>(Params)", "all_reduce", "TensorRT-LLM"),
    ("userbuffers_fp16_sum_inplace_gpu_rw_ag(int, int)", "all_reduce", "Transformer Engine"),
    ("nvshmemi_transfer_amo_nonfetch_kernel", "", "NVSHMEM"),
    ("void pplx::a2a_dispatch_send_kernel<8>(unsigned char*)", "all_to_all", "pplx"),
    ("Memcpy PtoP (Device -> Device)", "send", "copy engine"),
    ("gloo:all_reduce", "all_reduce", "gloo"),
]  # fmt: skip

COMPUTE = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>(float)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, at::detail::Array<char*, 3>>(int)",
    "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, 128>(float*)",
    "fused_moe_kernel", "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16>(float const*)", "triton_red_fused_add_mean_0",
    "void cub::DeviceReduceSingleTileKernel<cub::Policy600, float*>(float*)", "Memcpy HtoD (Pinned -> Device)", "Memset (Device)",
    "void blockAllReduceSum<float>(float*)", "volta_sgemm_128x64_nt", "void deep_ep::layout::get_dispatch_layout<256, 4>(long const*)",
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
]  # fmt: skip

SUSPICIOUS = [
    ("void acme::fast_all_gather<__nv_bfloat16>(void*)", "all_gather"), ("ring_exchange_v2", ""), ("hyper_oneshot_reduce_kernel", "reduce"),
    ("void expert_rdma_put<8>(int*)", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "op", "library"), KNOWN, ids=[name[:40] for name, *_ in KNOWN])
def test_a_librarys_kernel_is_recognised(name: str, op: str, library: str) -> None:
    found = communication_kernel(name)
    assert found is not None
    assert (found.op, found.library, found.known) == (op, library, True)


@pytest.mark.parametrize("name", COMPUTE, ids=[name[:40] for name in COMPUTE])
def test_a_kernel_that_computes_is_not(name: str) -> None:
    assert communication_kernel(name) is None


@pytest.mark.parametrize(("name", "op"), SUSPICIOUS)
def test_what_only_sounds_like_communication_counts_and_is_unknown(name: str, op: str) -> None:
    found = communication_kernel(name)
    assert found is not None
    assert (found.op, found.known) == (op, False)
