#include "model/rows/device_rows.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// CUDA kernels read 16 bytes at a time (FBGEMM 1.8).
constexpr std::int64_t kCudaRowAlignment = 16;

/// Returns the block with a table's row whose columns start at `column`.
const RowBlock& FindBlock(const Manifest& manifest, const std::string& table, std::int64_t column,
                          std::int64_t row) {
  for (const RowBlock& block : manifest.blocks) {
    if (block.table == table && block.column_start == column && block.row_start <= row &&
        row < block.row_end) {
      return block;
    }
  }
  throw Error(ErrorKind::kManifest,
              "manifest.targets: the plan names what the rows lack: no block of table " +
                  Repr(table) + " at column " + std::to_string(column) + ", row " +
                  std::to_string(row));
}

/// Pads rows at alignment 1 with zeros.
at::Tensor AlignRows(const at::Tensor& rows, const RowBlock& block) {
  const std::int64_t padding = static_cast<std::int64_t>(block.row_bytes()) - rows.size(1);
  return padding == 0 ? rows : at::constant_pad_nd(rows, {0, padding});
}

/// Returns the shards of one rank, laid out contiguously.
std::vector<RowBlock> ShardBlocks(const Manifest& manifest, const Plan& plan, std::int64_t rank) {
  std::vector<RowBlock> blocks;
  Wide end = 0;
  for (const CollectionPlan& collection : plan) {
    for (const TablePlan& table : collection.tables) {
      Wide last = 0;
      for (const Shard& shard : table.shards) last = std::max(last, shard.rows().second);
      for (const Shard& shard : table.shards) {
        if (shard.rank != rank) continue;
        RowBlock block =
            FindBlock(manifest, collection.TablePath(table), shard.column_start, shard.row_start);
        block.row_start = shard.row_start;
        // A row of zeros after the table's last row (ID policy zero) belongs to the last shard.
        if (shard.rows().second != last)
          block.row_end = static_cast<std::int64_t>(shard.rows().second);
        block.row_alignment = kCudaRowAlignment;
        block.offset_bytes = static_cast<std::int64_t>(end);
        end = Aligned(end + block.num_bytes(), kBlockAlignmentBytes);
        blocks.push_back(block);
      }
    }
  }
  return blocks;
}

at::Tensor CopyBlocks(const Manifest& manifest, const at::Tensor& source,
                      const std::vector<RowBlock>& blocks, at::Device device) {
  Wide end = 0;
  for (const RowBlock& block : blocks) end = std::max(end, block.offset_bytes + block.num_bytes());
  const at::Tensor blob = at::zeros({static_cast<std::int64_t>(BlobBytes(end))},
                                    at::TensorOptions().dtype(at::kByte).device(device));
  for (const RowBlock& block : blocks) {
    const RowBlock& whole = FindBlock(manifest, block.table, block.column_start, block.row_start);
    const at::Tensor rows =
        RowsOfBlock(source, whole)
            .slice(0, block.row_start - whole.row_start, block.row_end - whole.row_start);
    RowsOfBlock(blob, block).copy_(AlignRows(rows, block));
  }
  return blob;
}

}  // namespace

at::Tensor RowsOfBlock(const at::Tensor& blob, const RowBlock& block) {
  const auto num_bytes = static_cast<std::int64_t>(block.num_bytes());
  return blob.slice(0, block.offset_bytes, block.offset_bytes + num_bytes)
      .view({block.num_rows(), static_cast<std::int64_t>(block.row_bytes())});
}

at::Tensor CutForBlock(const at::Tensor& rows, std::int64_t embedding_dim, const RowBlock& block) {
  if (block.column_start == 0 && block.column_end == embedding_dim) {
    return AlignRows(rows, block).contiguous();
  }
  const RowFormat format{block.data_type, embedding_dim};
  const RowFormat cut = block.row_format();
  const std::int64_t header = format.header_bytes();
  const std::int64_t first = header + block.column_start * format.bits() / 8;
  const std::int64_t num_codes = static_cast<std::int64_t>(cut.row_bytes()) - header;
  const at::Tensor columns =
      at::cat({rows.slice(1, 0, header), rows.slice(1, first, first + num_codes)}, 1);
  return AlignRows(columns, block).contiguous();
}

std::vector<DeviceRows> RankRows(const Manifest& manifest, const Target& target,
                                 const at::Tensor& blob) {
  std::vector<DeviceRows> ranks;
  for (std::size_t rank = 0; rank < target.devices.size(); ++rank) {
    const Device& device = target.devices[rank];
    if (device.type == "cpu") {
      ranks.push_back({at::kCPU, manifest.blocks, blob});
      continue;
    }
    DeviceRows rows;
    rows.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device.index));
    rows.blocks = ShardBlocks(manifest, target.plan, static_cast<std::int64_t>(rank));
    rows.rows = CopyBlocks(manifest, blob, rows.blocks, rows.device);
    ranks.push_back(std::move(rows));
  }
  return ranks;
}

}  // namespace recsys
