/// \file align.cpp
/// \brief The host part of `moe_align_block_size`.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>
#include <sgl_kernel/rows.h>
#include <sgl_kernel/variant.h>

#include "align.h"

namespace {

using namespace host;

constexpr std::int64_t kMostExperts = 2048;  // whose counts fit into the shared memory of every chip
constexpr std::int64_t kInt32Max = 0x7fffffff;
constexpr std::int64_t kLanes = 32;

Kernel<moe::Align> align{"align.cuh", "moe::align"};
Deferred<void(const moe::Align&, DLDataType)> align_on_cpu{"align_cpu.cpp", "moe::align_on_cpu"};

void check_range(const char* name, std::int64_t value, std::int64_t most) {
  if (value < 1 || value > most) [[unlikely]]
    throw Error("ValueError", name, " must be from 1 to ", most, ", got ", value);
}

void check_size(const char* name, const TensorView& tensor, std::int64_t least) {
  if (tensor.numel() < least) [[unlikely]]
    rows(name, tensor)
        .raise({}, {"Size mismatch for dimension 0: expected at least ", least, " but got ", tensor.numel()});
}

MemoryRows memory_of(const TensorView& tensor) {
  return {tensor.data_ptr(), tensor.numel() * static_cast<std::int64_t>(dtype_bytes(tensor.dtype()))};
}

void launch(moe::Align& params, DLDevice device, DLDataType type) {
  constexpr std::int64_t kMostWarps = 32;
  constexpr std::int64_t kPairsOfBlock = 2048;  // one block sorts so many sooner than a cluster meets
  constexpr std::int64_t kSmem = 48 * 1024 - 512;
  const auto chip = runtime::get_chip(device.device_id);
  const std::int64_t pairs = params.num_pairs, experts = params.num_experts;
  const auto blocks = chip.has_clusters() && pairs > kPairsOfBlock ? std::int64_t{moe::kAlignBlocks} : 1;
  const auto least = [](std::int64_t a, std::int64_t b) { return a < b ? a : b; };
  const auto useful = div_ceil(pairs > experts ? pairs : experts, kLanes);
  const auto warps = least(least(useful, kMostWarps), kSmem / (4 * experts) - 3);
  params.chunk = static_cast<unsigned>(div_ceil(div_ceil(pairs, kLanes), blocks * warps) * kLanes);
  const auto smem = static_cast<std::size_t>(4 * experts * (warps + 3));  // see the kernel
  LaunchKernel(blocks, warps * kLanes, device, smem)
      .enable_cluster(blocks)
      .enable_pdl(chip.has_pdl())(align.get(blocks > 1, type), params);
}

void moe_align_block_size(
    TensorView topk_ids, std::int64_t num_experts, std::int64_t block_size, TensorView sorted_token_ids,
    TensorView expert_ids, TensorView num_tokens_post_pad) {
  check_range("num_experts", num_experts, kMostExperts);
  check_range("block_size", block_size, kInt32Max);
  auto type = SymbolicDType{};
  auto device = SymbolicDevice{};
  TensorMatcher({-1, -1})
      .with_dtype<std::int32_t, std::int64_t>(type)
      .with_device<kDLCUDA, kDLCPU>(device)
      .ensure_alignment(static_cast<std::int64_t>(dtype_bytes(topk_ids.dtype())))
      .verify(topk_ids, "topk_ids");
  TensorMatcher({-1})
      .with_dtype<std::int32_t>()
      .with_device(device)
      .ensure_alignment(4)
      .verify(sorted_token_ids, "sorted_token_ids")
      .verify(expert_ids, "expert_ids");
  TensorMatcher({1}).with_dtype<std::int32_t>().with_device(device).ensure_alignment(4).verify(
      num_tokens_post_pad, "num_tokens_post_pad");
  const auto pairs = topk_ids.numel();
  // The most blocks: each expert that has a pair begins one, and the pairs that are left fill whole ones.
  const auto blocks = pairs < num_experts ? pairs : num_experts + (pairs - num_experts) / block_size;
  if (blocks > kInt32Max / block_size) [[unlikely]]
    throw Error("ValueError", "topk_ids has too many elements for int32, padded to blocks of ", block_size);
  check_size("sorted_token_ids", sorted_token_ids, blocks * block_size);
  check_size("expert_ids", expert_ids, blocks);

  const struct {
    const char* name;
    const TensorView& tensor;
    MemoryRows memory;
  } arguments[] = {
      {"topk_ids", topk_ids, memory_of(topk_ids)},
      {"sorted_token_ids", sorted_token_ids, memory_of(sorted_token_ids)},
      {"expert_ids", expert_ids, memory_of(expert_ids)},
      {"num_tokens_post_pad", num_tokens_post_pad, memory_of(num_tokens_post_pad)},
  };
  for (const auto& output : arguments) {
    for (const auto* other = arguments; other != &output; ++other) {
      if (rows_meet(output.memory, other->memory)) [[unlikely]]
        throw Error(
            "ValueError", output.name, " shares memory with ", other->name, ": they are ", output.tensor, " and ",
            other->tensor);
    }
  }
  moe::Align params = {
      .ids = topk_ids.data_ptr(),
      .sorted = static_cast<int*>(sorted_token_ids.data_ptr()),
      .sorted_size = sorted_token_ids.numel(),
      .block_experts = static_cast<int*>(expert_ids.data_ptr()),
      .num_blocks = expert_ids.numel(),
      .num_padded = static_cast<int*>(num_tokens_post_pad.data_ptr()),
      .num_pairs = static_cast<unsigned>(pairs),
      .num_experts = static_cast<int>(num_experts),
      .block_size = static_cast<unsigned>(block_size),
      .chunk = 0,
  };
  if (device.unwrap().device_type == kDLCPU) return align_on_cpu(params, type.unwrap());
  launch(params, device.unwrap(), type.unwrap());
}

}  // namespace

SGL_EXPORT(moe_align_block_size, (moe_align_block_size))
