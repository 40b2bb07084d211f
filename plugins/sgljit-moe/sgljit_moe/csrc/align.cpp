/// \file align.cpp
/// \brief The host part of `moe_align_block_size` and `sort_by_expert`.

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

Kernel<moe::Align> align{"align.cuh", "moe::align"}, sort_few{"align.cuh", "moe::sort_few"};
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
  constexpr std::int64_t kPaddedByBlock = 4096, kExpertsOfWarp = 4, kMostThatPad = 16;
  const auto chip = runtime::get_chip(device.device_id);
  const std::int64_t pairs = params.num_pairs, experts = params.num_experts;
  const auto blocks = chip.has_clusters() && pairs > kPairsOfBlock ? std::int64_t{moe::kAlignBlocks} : 1;
  const auto least = [](std::int64_t a, std::int64_t b) { return a < b ? a : b; };
  const auto useful = div_ceil(pairs > experts ? pairs : experts, kLanes);
  const auto warps = least(least(useful, kMostWarps), kSmem / (4 * experts) - 3);
  params.chunk = static_cast<unsigned>(div_ceil(div_ceil(pairs, kLanes), blocks * warps) * kLanes);
  const auto smem = static_cast<std::size_t>(4 * experts * (warps + 3));  // see the kernel
  // One block takes longer to write much padding than to sort. Others go from expert to expert, so each of their warps
  // gets few.
  const auto of_experts = div_ceil(experts, kExpertsOfWarp * warps);
  const auto of_padding = least(params.sorted_size / kPaddedByBlock, kMostThatPad);
  const bool others_pad = blocks == 1 && params.sorted_size > 2 * kPaddedByBlock && of_experts <= kMostThatPad;
  const auto that_pad = !others_pad ? 0 : of_padding > of_experts ? of_padding : of_experts;
  LaunchKernel(blocks + that_pad, warps * kLanes, device, smem)
      .enable_cluster(blocks)
      .enable_pdl(chip.has_pdl())(align.get(blocks > 1, type), params);
}

void launch_few(const moe::Align& params, DLDevice device, DLDataType type) {
  constexpr std::int64_t kMostThreads = 1024, few = moe::kFewPairs;
  const std::int64_t wanted = div_ceil(params.num_experts > few ? params.num_experts : few, kLanes) * kLanes;
  LaunchKernel(1, wanted < kMostThreads ? wanted : kMostThreads, device)
      .enable_pdl(runtime::get_chip(device.device_id).has_pdl())(sort_few.get(type), params);
}

struct Argument {
  const char* name;
  const TensorView& tensor;
};

/// \brief No output shares memory with another argument. The first argument is read.
template <std::size_t kCount>
void check_memory(const Argument (&arguments)[kCount]) {
  for (const auto& output : arguments) {
    for (const auto* other = arguments; other != &output; ++other) {
      if (rows_meet(memory_of(output.tensor), memory_of(other->tensor))) [[unlikely]]
        throw Error(
            "ValueError", output.name, " shares memory with ", other->name, ": they are ", output.tensor, " and ",
            other->tensor);
    }
  }
}

/// \brief Checks the ids of pairs, and returns their number.
std::int64_t check_ids(const TensorView& topk_ids, SymbolicDType& type, SymbolicDevice& device) {
  TensorMatcher({-1, -1})
      .with_dtype<std::int32_t, std::int64_t>(type)
      .with_device<kDLCUDA, kDLCPU>(device)
      .ensure_alignment(static_cast<std::int64_t>(dtype_bytes(topk_ids.dtype())))
      .verify(topk_ids, "topk_ids");
  return topk_ids.numel();
}

int* ints(const TensorView& tensor) {
  return static_cast<int*>(tensor.data_ptr());
}

void run(moe::Align params, SymbolicDevice& device, SymbolicDType& type) {
  if (device.unwrap().device_type == kDLCPU) return align_on_cpu(params, type.unwrap());
  if (params.ends != nullptr && params.num_pairs <= moe::kFewPairs)
    return launch_few(params, device.unwrap(), type.unwrap());
  launch(params, device.unwrap(), type.unwrap());
}

void moe_align_block_size(
    TensorView topk_ids, std::int64_t num_experts, std::int64_t block_size, TensorView sorted_token_ids,
    TensorView expert_ids, TensorView num_tokens_post_pad) {
  check_range("num_experts", num_experts, kMostExperts);
  check_range("block_size", block_size, kInt32Max);
  auto type = SymbolicDType{};
  auto device = SymbolicDevice{};
  const auto pairs = check_ids(topk_ids, type, device);
  TensorMatcher({-1})
      .with_dtype<std::int32_t>()
      .with_device(device)
      .ensure_alignment(4)
      .verify(sorted_token_ids, "sorted_token_ids")
      .verify(expert_ids, "expert_ids");
  TensorMatcher({1}).with_dtype<std::int32_t>().with_device(device).ensure_alignment(4).verify(
      num_tokens_post_pad, "num_tokens_post_pad");
  // The most blocks: each expert that has a pair begins one, and the pairs that are left fill whole ones.
  const auto blocks = pairs < num_experts ? pairs : num_experts + (pairs - num_experts) / block_size;
  if (blocks > kInt32Max / block_size) [[unlikely]]
    throw Error("ValueError", "topk_ids has too many elements for int32, padded to blocks of ", block_size);
  check_size("sorted_token_ids", sorted_token_ids, blocks * block_size);
  check_size("expert_ids", expert_ids, blocks);
  check_memory(
      {{"topk_ids", topk_ids},
       {"sorted_token_ids", sorted_token_ids},
       {"expert_ids", expert_ids},
       {"num_tokens_post_pad", num_tokens_post_pad}});
  run({.ids = topk_ids.data_ptr(),
       .sorted = ints(sorted_token_ids),
       .sorted_size = sorted_token_ids.numel(),
       .block_experts = ints(expert_ids),
       .num_blocks = expert_ids.numel(),
       .num_padded = ints(num_tokens_post_pad),
       .places = nullptr,
       .ends = nullptr,
       .num_pairs = static_cast<unsigned>(pairs),
       .num_experts = static_cast<int>(num_experts),
       .block_size = static_cast<unsigned>(block_size),
       .chunk = 0},
      device, type);
}

void sort_by_expert(TensorView topk_ids, TensorView pairs, TensorView expert_ids, TensorView places, TensorView ends) {
  auto type = SymbolicDType{};
  auto device = SymbolicDevice{};
  const auto num_pairs = check_ids(topk_ids, type, device);
  if (num_pairs > kInt32Max) [[unlikely]]
    throw Error("ValueError", "topk_ids has too many elements for int32");
  TensorMatcher({num_pairs})
      .with_dtype<std::int32_t>()
      .with_device(device)
      .ensure_alignment(4)
      .verify(pairs, "pairs")
      .verify(expert_ids, "expert_ids")
      .verify(places, "places");
  TensorMatcher({-1}).with_dtype<std::int32_t>().with_device(device).ensure_alignment(4).verify(ends, "ends");
  check_range("the size of ends, which is the number of experts,", ends.numel(), kMostExperts);
  check_memory(
      {{"topk_ids", topk_ids}, {"pairs", pairs}, {"expert_ids", expert_ids}, {"places", places}, {"ends", ends}});
  run({.ids = topk_ids.data_ptr(),
       .sorted = ints(pairs),
       .sorted_size = num_pairs,
       .block_experts = ints(expert_ids),
       .num_blocks = num_pairs,
       .num_padded = nullptr,
       .places = ints(places),
       .ends = ints(ends),
       .num_pairs = static_cast<unsigned>(num_pairs),
       .num_experts = static_cast<int>(ends.numel()),
       .block_size = 1,
       .chunk = 0},
      device, type);
}

}  // namespace

SGL_EXPORT(moe_align_block_size, (moe_align_block_size))
SGL_EXPORT(sort_by_expert, (sort_by_expert))
