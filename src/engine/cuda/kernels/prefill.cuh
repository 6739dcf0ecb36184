// Many positions at once: voice and text, before the first token; what stands between their products and attention, which
// are those of S3Gen.
//
// With 16-bit weights products run on the tensor cores, which take activations of the same kind, and so does attention;
// sums, norms and the residual stream are f32.
#pragma once
#include "cores.cuh"

/// A norm of each of the rows `x (rows, dim)` into `out (rows, width)`; one block of 128 threads for each row.
struct Norm {
    const float* x;
    const float* norm;            // weights, then shifts (GPT-2)
    void* out;
    int dim, width, gpt2;
};

template <class W> __device__ __forceinline__ void normalise_row(const Norm& n) {
    admit_next();
    await_previous();
    __shared__ float red[2][4];
    const float* x = n.x + (size_t)blockIdx.x * n.dim;
    W* out = static_cast<W*>(n.out) + (size_t)blockIdx.x * n.width;
    const auto total = [&](float v, int turn) {
        v = warp_sum(v);
        if (threadIdx.x % 32 == 0) red[turn][threadIdx.x / 32] = v;
        __syncthreads();
        return red[turn][0] + red[turn][1] + red[turn][2] + red[turn][3];
    };
    float mean = 0, square = 0;
    if (n.gpt2) {
        for (int c = threadIdx.x; c < n.dim; c += 128) mean += x[c];
        mean = total(mean, 0) / n.dim;
    }
    for (int c = threadIdx.x; c < n.dim; c += 128) square += (x[c] - mean) * (x[c] - mean);
    const float inverse = 1.0f / sqrtf(total(square, 1) / n.dim + 1e-5f);
    for (int c = threadIdx.x; c < n.width; c += 128) {
        const float y = c < n.dim ? (x[c] - mean) * inverse * n.norm[c] + (n.gpt2 ? n.norm[n.dim + c] : 0.0f) : 0.0f;
        put(out + c, y);
    }
}

/// Where queries, keys and values go.
struct Heads {
    const float* qkv;             // (batch, length, 3 * heads * HEAD)
    void* queries;                // (batch, length, heads * HEAD), in the numbers of the cache
    void* cache;                  // of this layer: keys, then values, (rows, heads, capacity, HEAD)
    const float* cosines;
    const float* sines;
    int length, start, batch, rows, heads, capacity, gpt2;
};

/// Rotates queries and keys and puts keys and values into the cache; a batch of one fills all rows. Grid (length, batch).
template <class KV> __device__ __forceinline__ void turn(const Heads& h) {
    admit_next();
    await_previous();
    const int t = blockIdx.x, b = blockIdx.y, position = h.start + t, dim = h.heads * HEAD;
    const float* q = h.qkv + ((size_t)b * h.length + t) * 3 * dim;
    KV* query = static_cast<KV*>(h.queries) + ((size_t)b * h.length + t) * dim;
    const size_t plane = (size_t)h.rows * h.heads * h.capacity * HEAD;
    for (int i = threadIdx.x; i < dim / 2; i += blockDim.x) {
        const int head = i / (HEAD / 2), d = i % (HEAD / 2), at = head * HEAD + d;
        float c = 1, s = 0;
        if (!h.gpt2) c = h.cosines[(size_t)position * (HEAD / 2) + d], s = h.sines[(size_t)position * (HEAD / 2) + d];
        const float q0 = q[at], q1 = q[at + HEAD / 2], k0 = q[dim + at], k1 = q[dim + at + HEAD / 2];
        query[at] = KV(q0 * c - q1 * s);
        query[at + HEAD / 2] = KV(q1 * c + q0 * s);
        for (int row = h.batch == 1 ? 0 : b; row < (h.batch == 1 ? h.rows : b + 1); row++) {
            KV* key = static_cast<KV*>(h.cache) + ((size_t)(row * h.heads + head) * h.capacity + position) * HEAD + d;
            key[0] = KV(k0 * c - k1 * s);
            key[HEAD / 2] = KV(k1 * c + k0 * s);
            key[plane] = KV(q[2 * dim + at]);
            key[plane + HEAD / 2] = KV(q[2 * dim + at + HEAD / 2]);
        }
    }
}

/// Values of 8 bits, measured in `scales` row by row, as 16-bit numbers. Eight to a thread, a block for each row.
__device__ __forceinline__ void widen(const int8_t* from, const float* scales, __nv_bfloat16* to, int width) {
    admit_next();
    await_previous();
    const float scale = scales[blockIdx.x];
    for (int c = threadIdx.x * 8; c < width; c += blockDim.x * 8) {
        const uint2 eight = *reinterpret_cast<const uint2*>(from + (size_t)blockIdx.x * width + c);
        const int8_t* v = reinterpret_cast<const int8_t*>(&eight);
        __nv_bfloat16 out[8];
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = __float2bfloat16_rn(v[i] * scale);
        *reinterpret_cast<uint4*>(to + (size_t)blockIdx.x * width + c) = *reinterpret_cast<uint4*>(out);
    }
}

#define PREFILL(name, W)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128) normalise_##name(const __grid_constant__ Norm n) {            \
        normalise_row<W>(n);                                                                                        \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(256) turn_##name(const __grid_constant__ Heads h) {                \
        turn<CacheOf<W>::Type>(h);                                                                                  \
    }
