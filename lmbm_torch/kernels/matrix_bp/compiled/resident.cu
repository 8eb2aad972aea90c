// Sum-product belief propagation in odds, with the messages of an instance in the registers of a cluster of blocks.
//
// A block has 32 hidden units, one per lane; each of its WARPS warps has COLS visible units, one message per thread
// and visible unit. Weights stay in shared memory through all instances, messages in registers through all iterations.
// Sums over hidden units are exchanged through distributed shared memory; all blocks then know every visible belief.
//
// Before this come VISIBLE and HIDDEN (numbers of units), and the instructions that it calls: resident_device.cuh.
// Fields and logarithms are in units of log 2.

#define WARPS 16
#define THREADS (WARPS * 32)
#define COLS ((VISIBLE + WARPS - 1) / WARPS)
#define PAD ((COLS + 3) / 4 * 4)
#define BLOCKS ((HIDDEN + 31) / 32)

struct Shared {
  float4 weight[PAD / 4][THREADS];
  float partial[2][BLOCKS][VISIBLE];  // every block's sums for the visible units
  // Probabilities of 1 and 0 of the visible units as their messages see them, loaded two at a time.
  alignas(16) float2 column[WARPS][PAD];
  float rows[2][WARPS][32];
  float values[WARPS][32];
  float change[2][BLOCKS][WARPS];
};

// The probability of 1 and its complement, as precise.
__device__ __forceinline__ float2 probabilities(float field) {
  const float tail = ex2(-fabsf(field)), one = rcp(1.f + tail), less = tail * one;
  return field > 0 ? make_float2(one, less) : make_float2(less, one);
}

// A visible unit's probabilities, unless it is known: {0, 1}, or NaN.
__device__ __forceinline__ float2 as_seen(float field, float known) {
  if (known == known) return known > 0 ? make_float2(1.f, 0.f) : make_float2(0.f, 1.f);
  return probabilities(field);
}

// The answer, in odds, of a unit of these probabilities.
__device__ __forceinline__ float answer(float message, float weight, float own, float rest) {
  const float other = message * rest;
  return fmaf(weight, own, other) * rcp(other + own);
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)
resident(const float *__restrict__ weight,   // (HIDDEN, VISIBLE): odds
         const float *__restrict__ hidden,   // (batch, HIDDEN): biases
         const float *__restrict__ visible,  // (batch, VISIBLE): biases
         const float *__restrict__ known,    // (batch, VISIBLE) of {0, 1, NaN}
         float *__restrict__ visible_fields, // (batch, VISIBLE)
         float *__restrict__ hidden_fields,  // (batch, HIDDEN)
         float *__restrict__ row_values,     // (batch, HIDDEN): Σ log of pairs times the messages in them
         float *__restrict__ residuals,      // (batch,): the largest change of odds, relative to the smaller
         int *__restrict__ num_iters,        // (batch,)
         float *__restrict__ scratch,        // (blocks of the grid, COLS, THREADS)
         int batch, int iters, float tol, int look_every) {
  SHARED_MEMORY(s);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = block_of_cluster();
  const int row = rank * 32 + lane, first_column = warp * COLS;
  const bool in_rows = row < HIDDEN;
  // Units beyond the model have weights of nothing.
  for (int k = 0; k < PAD; ++k) {
    const bool inside = in_rows && k < COLS && first_column + k < VISIBLE;
    reinterpret_cast<float *>(&s.weight[k / 4][threadIdx.x])[k % 4] = inside ? weight[row * VISIBLE + first_column + k] : 1.f;
  }
  // Nothing is put into the memory of a block that has not begun.
  cluster_sync();
  // Counts barriers of the cluster, through all instances: what is exchanged alternates between two places, since a
  // block may write for the next one while another still reads.
  unsigned step = 0;
  for (int b = cluster_of_grid(); b < batch; b += clusters_of_grid()) {
    float m[COLS];
    #pragma unroll
    for (int k = 0; k < COLS; ++k) m[k] = 1.f;
    // Nothing is known yet of a visible unit but what is given: its first messages say nothing.
    for (int i = threadIdx.x; i < WARPS * PAD; i += THREADS) {
      const int k = i % PAD, column = i / PAD * COLS + k;
      const bool inside = k < COLS && column < VISIBLE;
      s.column[i / PAD][k] = as_seen(-INFINITY, inside ? known[b * VISIBLE + column] : 0.f);
    }
    const float bias = in_rows ? hidden[b * HIDDEN + row] * LOG2_E : 0.f;
    // Nor does a warp write sums before all have read those of the instance before.
    __syncthreads();
    float residual = INFINITY;
    int it = 0;
    while (it < iters) {
      // A look at the largest change; the old messages wait in the second-level cache.
      const bool looks = it > 0 && (it % look_every == look_every - 1 || it == iters - 1);
      float *old = scratch + (size_t)blockIdx.x * COLS * THREADS + threadIdx.x;
      if (looks) {
        #pragma unroll
        for (int k = 0; k < COLS; ++k) store_in_l2(old + k * THREADS, m[k]);
      }
      float sum = 0.f;
      #pragma unroll
      for (int q = 0; q < PAD / 4; ++q) {
        const float4 four = s.weight[q][threadIdx.x];
        const float a[4] = {four.x, four.y, four.z, four.w};
        float product = 1.f;
        #pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const int k = 4 * q + e;
          if (k < COLS) {
            const float4 two = *reinterpret_cast<const float4 *>(&s.column[warp][k]);
            m[k] = answer(m[k], a[e], two.x, two.y);
            product *= m[k];
            if (k + 1 < COLS) {
              m[k + 1] = answer(m[k + 1], a[e + 1], two.z, two.w);
              product *= m[k + 1];
            }
          }
        }
        sum += lg2(product);
      }
      s.rows[step % 2][warp][lane] = sum;
      __syncthreads();
      float field = bias;
      #pragma unroll
      for (int w = 0; w < WARPS; ++w) field += s.rows[step % 2][w][lane];
      const float2 own = probabilities(field);
      // What the hidden unit answers, and sums over the 32 rows: in five exchanges lanes halve the columns that they
      // hold, multiplying in two of them and adding logarithms in three.
      #pragma unroll
      for (int first = 0; first < COLS; first += 32) {
        #pragma unroll
        for (int q = 0; q < 8; ++q) {
          if (first + 4 * q < COLS) {
            const float4 four = s.weight[first / 4 + q][threadIdx.x];
            const float a[4] = {four.x, four.y, four.z, four.w};
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int k = first + 4 * q + e;
              if (k < COLS) m[k] = answer(m[k], a[e], own.x, own.y);
            }
          }
        }
        float v[16] = {};
        #pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int low = first + i, high = first + i + 16;
          if (high < COLS) {
            const bool upper = lane & 16;
            v[i] = (upper ? m[high] : m[low]) * from_lane(upper ? m[low] : m[high], 16);
          } else if (low < COLS) {
            v[i] = m[low] * from_lane(m[low], 16);
          }
        }
        const int live = COLS - first < 16 ? COLS - first : 16;
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i + 8 < live) {
            const bool upper = lane & 8;
            v[i] = lg2((upper ? v[i + 8] : v[i]) * from_lane(upper ? v[i] : v[i + 8], 8));
          } else if (i < live) {
            v[i] = lg2(v[i] * from_lane(v[i], 8));
          }
        }
        #pragma unroll
        for (int width = 4; width > 0; width /= 2) {
          #pragma unroll
          for (int i = 0; i < width; ++i) {
            const bool upper = lane & width;
            v[i] = (upper ? v[i + width] : v[i]) + from_lane(upper ? v[i] : v[i + width], width);
          }
        }
        const int column = first_column + first + lane;
        if (first + lane < COLS && column < VISIBLE) {
          #pragma unroll
          for (int c = 0; c < BLOCKS; ++c) put(&s.partial[step % 2][rank][column], c, v[0]);
        }
      }
      if (looks) {
        float change = 0.f;
        #pragma unroll
        for (int k = 0; k < COLS; ++k) {
          const float before = load_from_l2(old + k * THREADS);
          const float by = fabsf(m[k] - before) * rcp(fminf(m[k], before));
          if (in_rows && first_column + k < VISIBLE) change = fmaxf(change, by);
        }
        #pragma unroll
        for (int width = 16; width > 0; width /= 2) change = fmaxf(change, from_lane(change, width));
        if (lane < BLOCKS) put(&s.change[step % 2][rank][warp], lane, change);
      }
      cluster_sync();
      for (int column = threadIdx.x; column < VISIBLE; column += THREADS) {
        float heard = visible[b * VISIBLE + column] * LOG2_E;
        #pragma unroll
        for (int c = 0; c < BLOCKS; ++c) heard += s.partial[step % 2][c][column];
        s.column[column / COLS][column % COLS] = as_seen(heard, known[b * VISIBLE + column]);
        if (rank == 0) visible_fields[b * VISIBLE + column] = heard * LOG_2;
      }
      if (looks) {
        residual = 0.f;
        for (int c = 0; c < BLOCKS; ++c) {
          for (int w = 0; w < WARPS; ++w) residual = fmaxf(residual, s.change[step % 2][c][w]);
        }
      }
      __syncthreads();
      ++it;
      ++step;
      // All blocks have read the same numbers, and stop together.
      if (looks && residual <= tol) break;
    }
    // The hidden beliefs, and the rows' parts of the log partition, of products: a device's logarithms near 1 are all off
    // in one direction.
    float sum = 0.f, value = 0.f;
    #pragma unroll
    for (int q = 0; q < PAD / 4; ++q) {
      float answers = 1.f, pairs = 1.f;
      #pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int k = 4 * q + e;
        if (k < COLS) {
          const float2 seen = s.column[warp][k];
          answers *= answer(m[k], reinterpret_cast<const float *>(&s.weight[q][threadIdx.x])[e], seen.x, seen.y);
          pairs *= fmaf(m[k], seen.y, seen.x);
        }
      }
      sum += lg2(answers);
      value += lg2(pairs);
    }
    s.rows[step % 2][warp][lane] = sum;
    s.values[warp][lane] = value;
    __syncthreads();
    if (warp == 0 && in_rows) {
      float field = bias, total = 0.f;
      for (int w = 0; w < WARPS; ++w) {
        field += s.rows[step % 2][w][lane];
        total += s.values[w][lane];
      }
      hidden_fields[b * HIDDEN + row] = field * LOG_2;
      row_values[b * HIDDEN + row] = total * LOG_2;
    }
    if (rank == 0 && threadIdx.x == 0) {
      residuals[b] = residual;
      num_iters[b] = it;
    }
  }
}
