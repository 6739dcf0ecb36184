// The kernels of T3, one entry for each kind of number, backbone and number of rows.
#include "decode.cuh"
#include "prefill.cuh"

#define DECODE(name, W, ROWS, GPT2)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                      \
        decode_##name(const __grid_constant__ Net net, const __grid_constant__ Job job) {                         \
        decode<W, ROWS, GPT2>(net, job);                                                                          \
    }

#define DECODERS(name, W)                                                                                         \
    DECODE(llama_##name, W, 1, false)                                                                             \
    DECODE(llama_guided_##name, W, 2, false)                                                                      \
    DECODE(gpt2_##name, W, 1, true)

DECODERS(f32, float)
DECODERS(f16, __half)
DECODERS(bf16, __nv_bfloat16)
DECODERS(int8, int8_t)
PREFILL(f32, float)
PREFILL(f16, __half)
PREFILL(bf16, __nv_bfloat16)

extern "C" __global__ void __launch_bounds__(128) widen_int8(const int8_t* from, const float* scales, __nv_bfloat16* to, int width) {
    widen(from, scales, to, width);
}

/// The sampler alone, for its test: logits (blocks, vocab), seen (blocks, words), one choice for each block.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    choose_each(const Sampling sampling, const float* logits, const uint32_t* seen, const float* uniforms, uint32_t* out) {
    extern __shared__ __align__(16) float choose_memory[];
    float* mine = choose_memory;
    for (int i = threadIdx.x; i < sampling.vocab; i += THREADS) mine[i] = logits[(size_t)blockIdx.x * sampling.vocab + i];
    __syncthreads();
    const int words = (sampling.vocab + 31) / 32;
    const uint32_t token = choose(sampling, mine, seen + (size_t)blockIdx.x * words, uniforms[blockIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x] = token;
}
