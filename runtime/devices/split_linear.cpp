// Products of fp32 matrices on AMX, each number split into two or three of bfloat16.
//
// A bfloat16 keeps 8 bits of a number's significand, its rest the next 8, and the rest of that the last 8, so that
// x = x0 + x1 + x2 exactly. Of the products x_i * w_j those with i + j < parts count, summed in fp32: three of them for
// two parts (relative error about 2^-17), six for three parts (that of fp32 itself). The method: Henry, Tang and
// Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", ARITH 2019.
//
// Names: a tile is what one AMX register holds, 16 rows of 32 numbers (of weights: 16 pairs of rows by 16 columns); a
// block is the result of two tiles by two, 32 rows by 32 columns. Both operands lie as tiles in the order of use:
// [16 rows or columns][32 of depth][part].

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

using torch::stable::Tensor;

namespace {

using bits = uint16_t;  // of a bfloat16

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileDepth = 32;
constexpr int64_t kTile = kTileRows * kTileDepth;  // numbers; 1 KiB of bfloat16, and of fp32 half as many
constexpr int64_t kBlock = 32;                     // rows, and columns
constexpr int64_t kBlockNumbers = kBlock * kBlock;
constexpr int64_t kChunkBytes = 768 * 1024;  // of split rows at a time: they stay in the second-level cache
constexpr int64_t kLine = 64;

// What LDTILECFG reads: all eight registers hold 16 rows of 64 bytes.
struct __attribute__((packed)) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct Sizes {
  int64_t rows, depth, columns;
  int64_t depth_tiles, column_blocks;

  Sizes(int64_t rows, int64_t depth, int64_t columns)
      : rows(rows),
        depth(depth),
        columns(columns),
        depth_tiles((depth + kTileDepth - 1) / kTileDepth),
        column_blocks((columns + kBlock - 1) / kBlock) {}
};

inline __mmask16 mask_of(int64_t count) { return count >= 16 ? 0xffff : count > 0 ? (1u << count) - 1 : 0; }

inline __m512 widened(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// 32 numbers of one row, split: part by part, a tile apart.
template <int kParts>
inline void split(__m512 low, __m512 high, bits* to) {
  for (int part = 0; part < kParts; ++part, to += kTile) {
    const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    _mm512_store_si512(to, rounded);
    low = _mm512_sub_ps(low, widened(_mm512_castsi512_si256(rounded)));
    high = _mm512_sub_ps(high, widened(_mm512_extracti64x4_epi64(rounded, 1)));
  }
}

// Up to 16 rows as tiles; what is missing of a tile is zero.
template <int kParts>
void split_rows(const float* x, int64_t rows, const Sizes& sizes, bits* tiles) {
  for (int64_t tile = 0; tile < sizes.depth_tiles; ++tile) {
    for (int64_t row = 0; row < kTileRows; ++row) {
      const int64_t left = row < rows ? sizes.depth - tile * kTileDepth : 0;
      const float* from = x + row * sizes.depth + tile * kTileDepth;
      const __m512 low = _mm512_maskz_loadu_ps(mask_of(left), from);
      const __m512 high = _mm512_maskz_loadu_ps(mask_of(left - 16), from + 16);
      split<kParts>(low, high, tiles + tile * kParts * kTile + row * kTileDepth);
    }
  }
}

// A block, tile by tile, from the tiles of 32 rows (or of 16, with half the block) and of 32 columns. Registers 0 to 3
// gather the result, 4 and 5 hold rows, 6 and 7 columns.
template <int kParts, bool kTwoRows>
inline void multiply(const bits* rows, const bits* columns, int64_t depth_tiles, float* block) {
  const int64_t next = depth_tiles * kParts * kTile;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t tile = 0; tile < depth_tiles; ++tile, rows += kParts * kTile, columns += kParts * kTile) {
    for (int w = 0; w < kParts; ++w) {
      _tile_loadd(6, columns + w * kTile, 64);
      _tile_loadd(7, columns + next + w * kTile, 64);
      for (int x = kParts - 1 - w; x >= 0; --x) {
        _tile_loadd(4, rows + x * kTile, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwoRows) {
          _tile_loadd(5, rows + next + x * kTile, 64);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
  }
  _tile_stored(0, block, 64);
  _tile_stored(1, block + kTile / 2, 64);
  _tile_stored(2, block + kTile, 64);
  _tile_stored(3, block + kTile * 3 / 2, 64);
}

// Copy a block to its place in y, plus the bias.
inline void place(const float* block, int64_t rows, int64_t columns, const float* bias, float* y, int64_t stride) {
  const __mmask16 low = mask_of(columns), high = mask_of(columns - 16);
  const __m512 low_bias = bias ? _mm512_maskz_loadu_ps(low, bias) : _mm512_setzero_ps();
  const __m512 high_bias = bias ? _mm512_maskz_loadu_ps(high, bias + 16) : _mm512_setzero_ps();
  for (int64_t row = 0; row < rows; ++row, y += stride) {
    const float* from = block + row / kTileRows * kTile + row % kTileRows * 16;
    _mm512_mask_storeu_ps(y, low, _mm512_add_ps(_mm512_load_ps(from), low_bias));
    _mm512_mask_storeu_ps(y + 16, high, _mm512_add_ps(_mm512_load_ps(from + kTile / 2), high_bias));
  }
}

// Some columns of the result, for rows that are split already.
template <int kParts>
void multiply_columns(const bits* rows, const bits* weights, const float* bias, const Sizes& sizes, int64_t first_block,
                      int64_t last_block, float* y) {
  const TileConfig config;
  _tile_loadconfig(&config);
  alignas(kLine) float block[kBlockNumbers];
  const int64_t step = sizes.depth_tiles * kParts * kTile;
  for (int64_t at = first_block; at < last_block; ++at) {
    const int64_t column = at * kBlock, columns = std::min(kBlock, sizes.columns - column);
    for (int64_t row = 0; row < sizes.rows; row += kBlock) {
      const int64_t some = std::min(kBlock, sizes.rows - row);
      const auto run = some > kTileRows ? multiply<kParts, true> : multiply<kParts, false>;
      run(rows + row / kTileRows * step, weights + at * 2 * step, sizes.depth_tiles, block);
      place(block, some, columns, bias ? bias + column : nullptr, y + row * sizes.columns + column, sizes.columns);
    }
  }
  _tile_release();
}

// Memory of this thread for split rows; kept, since every layer of every batch wants it again.
bits* scratch(int64_t numbers) {
  static thread_local std::unique_ptr<bits[]> memory;
  static thread_local int64_t held = 0;
  if (numbers > held) {
    memory.reset(new bits[numbers + kLine]);
    held = numbers;
  }
  return reinterpret_cast<bits*>((reinterpret_cast<uintptr_t>(memory.get()) + kLine - 1) & ~uintptr_t(kLine - 1));
}

template <int kParts>
void multiply_all(const float* x, const bits* weights, const float* bias, const Sizes& sizes, float* y) {
  const int64_t row_numbers = sizes.depth_tiles * kTileDepth * kParts, step = row_numbers * kTileRows;
  const int64_t fitting = kChunkBytes / (row_numbers * int64_t(sizeof(bits))) / kBlock * kBlock;
  const int64_t chunk = std::max(kBlock, std::min(fitting, (sizes.rows + kBlock - 1) / kBlock * kBlock));
  bits* tiles = scratch(chunk * row_numbers);
  for (int64_t first = 0; first < sizes.rows; first += chunk) {
    const Sizes part(std::min(chunk, sizes.rows - first), sizes.depth, sizes.columns);
    const float* from = x + first * sizes.depth;
    float* to = y + first * sizes.columns;
    torch::stable::parallel_for(0, (part.rows + kTileRows - 1) / kTileRows, 2, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at)
        split_rows<kParts>(from + at * kTileRows * sizes.depth, part.rows - at * kTileRows, part, tiles + at * step);
    });
    torch::stable::parallel_for(0, sizes.column_blocks, 1, [&](int64_t begin, int64_t end) {
      multiply_columns<kParts>(tiles, weights, bias, part, begin, end, to);
    });
  }
}

// y = x w' + bias. x: (..., depth) fp32. weights: int8, the bytes of split_linear.py's `arranged`. y: (..., columns).
Tensor split_linear(const Tensor& x, const Tensor& weights, const std::optional<Tensor>& bias, int64_t columns,
                    int64_t parts) {
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "split_linear multiplies fp32 only");
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  STD_TORCH_CHECK(!shape.empty() && shape.back() > 0, "split_linear needs a last dimension");
  const Sizes sizes(x.numel() / shape.back(), shape.back(), columns);
  const int64_t bytes = sizes.column_blocks * 2 * sizes.depth_tiles * parts * kTile * int64_t(sizeof(bits));
  STD_TORCH_CHECK(weights.is_contiguous() && weights.numel() == bytes, "the weights are not of this shape");
  shape.back() = columns;
  const Tensor rows = torch::stable::contiguous(x);
  Tensor y = torch::stable::new_empty(rows, shape);
  const auto run = parts == 2 ? multiply_all<2> : multiply_all<3>;
  run(rows.const_data_ptr<float>(), static_cast<const bits*>(weights.data_ptr()),
      bias ? bias->const_data_ptr<float>() : nullptr, sizes, y.mutable_data_ptr<float>());
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY(cotenant, library) {
  library.def("split_linear(Tensor x, Tensor weights, Tensor? bias, int columns, int parts) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(cotenant, CPU, library) { library.impl("split_linear", TORCH_BOX(&split_linear)); }
