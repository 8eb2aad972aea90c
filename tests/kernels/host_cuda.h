// What CUDA kernels call, on the host: a thread of the device is a fiber, and a barrier or a shuffle hands over to the
// next one. `order` says who runs first: 0 one after the other, 1 always the first that can, 2 the last that can, so
// that blocks get as far ahead of each other as barriers let them. Shared memory begins as NaN.
//
// With ROUGH, reciprocals and logarithms are off by as much as those of a device may be.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __cluster_dims__(...)
#define __launch_bounds__(...)
#define LOG2_E 1.44269504f
#define LOG_2 0.69314718f
#ifndef LANES
#define LANES 32
#endif
#define SHARED_DOUBLES(name) double *name = reinterpret_cast<double *>(shared_memory(block_of_cluster()))
#define SHARED_MEMORY(name) Shared &name = *reinterpret_cast<Shared *>(shared_memory(block_of_cluster()))

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }

static const size_t MOST_SHARED = 227 * 1024, STACK = 1 << 15;

struct Group { unsigned members, arrived = 0; unsigned long generation = 0; };
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  unsigned thread, block;
  Group *waits = nullptr;
  unsigned long seen = 0;
  unsigned exchanges = 0;
  double sent[2];
  bool ended = false;
};

struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim;
static unsigned num_threads, num_blocks, cluster, num_clusters;
static std::vector<Fiber> fibers;
static std::vector<char *> memories;
static std::vector<Group> warps, blocks;
static Group everyone;
static Fiber *current;
static ucontext_t scheduler;
static void (*body)();

static char *shared_memory(unsigned block) { return memories[block]; }

static void wait_for(Group &group) {
  current->seen = group.generation;
  if (++group.arrived == group.members) {
    group.arrived = 0;
    ++group.generation;
  }
  current->waits = &group;
  swapcontext(&current->context, &scheduler);
}

static inline unsigned block_of_cluster() { return current->block; }
static inline unsigned cluster_of_grid() { return cluster; }
static inline unsigned clusters_of_grid() { return num_clusters; }
static inline void cluster_sync() { wait_for(everyone); }
static inline void __syncthreads() { wait_for(blocks[current->block]); }

static inline unsigned thread_of_all() { return current->block * num_threads + current->thread; }
static inline int lane() { return current->thread % LANES; }
static inline void together() { wait_for(warps[thread_of_all() / LANES]); }

static inline double from_thread(double x, unsigned partner) {
  const unsigned place = current->exchanges++ % 2;
  current->sent[place] = x;
  together();
  return fibers[partner].sent[place];
}
static inline float from_lane(float x, int distance) { return from_thread(x, thread_of_all() ^ distance); }
static inline double from_lane(double x, int distance) { return from_thread(x, thread_of_all() ^ distance); }
static inline int taken(int *counter) {
  return from_thread(lane() == 0 ? (*counter)++ : 0, thread_of_all() / LANES * LANES);
}

static inline void put(const float *place, unsigned block, float x) {
  const size_t offset = reinterpret_cast<const char *>(place) - memories[current->block];
  std::memcpy(memories[block] + offset, &x, sizeof x);
}

static inline void store_in_l2(float *place, float x) { *place = x; }
static inline float load_from_l2(const float *place) { return *place; }

#ifdef ROUGH
// −1 or 1, by the bits of x.
static inline float sign_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (bits * 2654435761u) >> 31 ? 1.f : -1.f;
}
static inline float rcp(float x) { return std::nextafterf(1.f / x, sign_of(x) * INFINITY); }
static inline float lg2(float x) {
  const float exact = std::log2f(x);
  return exact + sign_of(x) * 0x1p-22f * std::fmax(1.f, std::fabs(exact) / 2);
}
#else
static inline float rcp(float x) { return 1.f / x; }
static inline float lg2(float x) { return std::log2f(x); }
#endif
static inline float ex2(float x) { return std::exp2f(x); }

static void enter() {
  body();
  current->ended = true;
  swapcontext(&current->context, &scheduler);
}

static bool can_run(const Fiber &fiber) {
  return !fiber.ended && !(fiber.waits && fiber.waits->generation == fiber.seen);
}

static void run_until_it_waits(Fiber &fiber) {
  current = &fiber;
  threadIdx.x = fiber.thread;
  blockIdx.x = cluster * num_blocks + fiber.block;
  fiber.waits = nullptr;
  swapcontext(&scheduler, &fiber.context);
}

// Run a kernel; false if its threads wait for each other forever.
static bool launch(void (*kernel)(), unsigned of_clusters, unsigned of_blocks, unsigned of_threads, int order) {
  body = kernel;
  num_clusters = of_clusters, num_blocks = of_blocks, num_threads = blockDim.x = of_threads;
  const unsigned all = num_blocks * num_threads;
  for (cluster = 0; cluster < num_clusters; ++cluster) {
    fibers = std::vector<Fiber>(all);
    warps.assign(all / LANES, Group{LANES});
    blocks.assign(num_blocks, Group{num_threads});
    everyone = Group{all};
    memories.clear();
    for (unsigned i = 0; i < num_blocks; ++i) {
      memories.push_back(static_cast<char *>(std::aligned_alloc(16, MOST_SHARED)));
      std::memset(memories[i], 0xff, MOST_SHARED);
    }
    for (unsigned i = 0; i < all; ++i) {
      fibers[i].thread = i % num_threads, fibers[i].block = i / num_threads;
      fibers[i].stack.resize(STACK);
      getcontext(&fibers[i].context);
      fibers[i].context.uc_stack.ss_sp = fibers[i].stack.data();
      fibers[i].context.uc_stack.ss_size = STACK;
      makecontext(&fibers[i].context, enter, 0);
    }
    bool progress = true;
    while (progress) {
      progress = false;
      for (unsigned i = 0; i < all; ++i) {
        // By turns of warps: nobody but the other lanes is ahead of a shuffle.
        Fiber &fiber = fibers[order == 2 ? all - 1 - i : i];
        if (!can_run(fiber)) continue;
        run_until_it_waits(fiber);
        progress = true;
        // Whoever comes first may be able to go on.
        if (order != 0 && i % LANES == LANES - 1) i = i / num_threads * num_threads - 1;
      }
    }
    for (unsigned i = 0; i < num_blocks; ++i) std::free(memories[i]);
    for (const Fiber &fiber : fibers) if (!fiber.ended) return false;
  }
  return true;
}
