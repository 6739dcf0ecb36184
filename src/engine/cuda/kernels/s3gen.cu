// The kernels of S3Gen, one entry for each kind of number.
#include "attention.cuh"
#include "pointwise.cuh"
#include "vocoder.cuh"

#define TILES(name, W, shape, BM, BN, WM, WN, GROUPS)                                                                    \
    extern "C" __global__ void __launch_bounds__(RowTile<W, BM, BN, WM, WN, GROUPS>::THREADS)                            \
        rows_##shape##_##name(const __grid_constant__ RowsSet p) {                                                       \
        RowTile<W, BM, BN, WM, WN, GROUPS>::run(p);                                                                      \
    }

#define HEADS(name, W, HEAD)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) attend_##HEAD##_##name(const __grid_constant__ Attend p) {         \
        Flash<W, HEAD>::run(p);                                                                                        \
    }

#define EXACT(name, S, shape, BM)                                                                                        \
    extern "C" __global__ void __launch_bounds__(ExactTile<S, BM>::THREADS)                                              \
        rows_##shape##_##name(const __grid_constant__ RowsSet p) {                                                       \
        ExactTile<S, BM>::run(p);                                                                                        \
    }

#define BETWEEN(name, W)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) normalise_rows_##name(const __grid_constant__ NormRows p) {        \
        normalise_rows<W>(p);                                                                                            \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) gather_##name(const W* t, const uint32_t* i, W* o, int dim) {      \
        gather<W>(t, i, o, dim);                                                                                         \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) distances_##name(const float* f, W* o, int furthest, int dim) {    \
        distances<W>(f, o, furthest, dim);                                                                               \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(320) stack_inputs_##name(const __grid_constant__ FlowState p) {         \
        stack_inputs<W>(p);                                                                                              \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) advance_##name(const __grid_constant__ FlowState p) { advance<W>(p); }

#define CORES(name, W)                                                                                                   \
    TILES(name, W, wide, 64, 128, 32, 32, 1)                                                                                    \
    TILES(name, W, even, 64, 64, 32, 32, 2)                                                                                    \
    TILES(name, W, deep, 32, 64, 16, 32, 2)                                                                                    \
    HEADS(name, W, 32)                                                                                                   \
    HEADS(name, W, 64)                                                                                                   \
    BETWEEN(name, W)

CORES(f16, __half)
CORES(bf16, __nv_bfloat16)
EXACT(f32, float, wide, 64)
EXACT(f32, float, deep, 32)
EXACT(f64, double, deep, 32)
BETWEEN(f32, float)

/// As many products as the tensor cores can do by this instruction: eight at a time of a warp, `rounds` times over.
extern "C" __global__ void __launch_bounds__(256) peak_bf16(float* out, int rounds) {
    float c[8][4] = {};
    uint32_t a[4] = {threadIdx.x, 1, 2, 3};
#pragma unroll 1
    for (int i = 0; i < rounds; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) multiply(c[j], a, i, j, (__nv_bfloat16*)nullptr);
    }
    float sum = 0;
    for (int j = 0; j < 8; j++) sum += c[j][0] + c[j][1] + c[j][2] + c[j][3];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

/// What T3 sees of its cache while it reads a prompt.
extern "C" __global__ void __launch_bounds__(256) attend_cache_f16(const __grid_constant__ Attend p) { Flash<__half, 64>::run(p); }
extern "C" __global__ void __launch_bounds__(256) attend_cache_bf16(const __grid_constant__ Attend p) {
    Flash<__half, 64, __nv_bfloat16>::run(p);
}
extern "C" __global__ void __launch_bounds__(128) attend_exact_f32(const __grid_constant__ Attend p) { attend_exactly(p); }
extern "C" __global__ void __launch_bounds__(256) stft_f32(const float* w, const float* b, float* o, int n) { stft(w, b, o, n); }
extern "C" __global__ void __launch_bounds__(256)
    istft_f32(const float* x, const float* basis, const float* window, float* wav, int rows, float limit) {
    istft(x, basis, window, wav, rows, limit);
}
extern "C" __global__ void __launch_bounds__(256) snakes_f32(const __grid_constant__ Snakes p) { snakes(p); }
extern "C" __global__ void __launch_bounds__(256)
    mean3_f32(const float* a, const float* b, const float* c, float* o, int size, float slope) {
    mean3(a, b, c, o, size, slope);
}
