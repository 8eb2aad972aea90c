// The instructions of a device of capability 9.0 that resident.cu calls.

#define LOG2_E 1.44269504f
#define LOG_2 0.69314718f
#define INFINITY __int_as_float(0x7f800000)
#define SHARED_MEMORY(name)                                    \
  extern __shared__ __align__(16) unsigned char raw_memory[]; \
  Shared &name = *reinterpret_cast<Shared *>(raw_memory)

// Within a unit in the last place, and 2^-22 near 1.
__device__ __forceinline__ float rcp(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float lg2(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

__device__ __forceinline__ float from_lane(float x, int distance) { return __shfl_xor_sync(~0u, x, distance); }
__device__ __forceinline__ void store_in_l2(float *place, float x) { __stcg(place, x); }
__device__ __forceinline__ float load_from_l2(const float *place) { return __ldcg(place); }

__device__ __forceinline__ unsigned block_of_cluster() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ unsigned cluster_of_grid() { unsigned r; asm("mov.u32 %0, %%clusterid.x;" : "=r"(r)); return r; }
__device__ __forceinline__ unsigned clusters_of_grid() { unsigned r; asm("mov.u32 %0, %%nclusterid.x;" : "=r"(r)); return r; }
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Store x where the block has `place` in its shared memory, in that of another block of the cluster.
__device__ __forceinline__ void put(const float *place, unsigned block, float x) {
  const unsigned here = static_cast<unsigned>(__cvta_generic_to_shared(place));
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
}
