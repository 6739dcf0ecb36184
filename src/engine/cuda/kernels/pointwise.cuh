// What stands between the products of S3Gen.
#pragma once
#include "rows.cuh"

/// Layer norm of rows of at most 512 values, a warp to each: `norm(x) * scale`, or `mish(norm(x)) + shift`.
struct NormRows {
    const float* x;               // (rows, dim)
    const float* weight;
    const float* bias;
    const float* shift;           // (dim) or none
    float* out;                   // (rows, dim) or none
    void* second;                 // (rows, second_pitch) or none
    int rows, dim, second_pitch, mish;
    float eps, scale;
};

__device__ __forceinline__ float mish(float x) {
    const float e = expf(fminf(x, 20.0f)), n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
}

template <class W> __device__ __forceinline__ void normalise_rows(const NormRows& p) {
    admit_next();
    await_previous();
    constexpr int MOST = 16;
    const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= p.rows) return;
    const float* x = p.x + (size_t)row * p.dim;
    float v[MOST], mean = 0, square = 0;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        v[i] = i * 32 + lane < p.dim ? x[i * 32 + lane] : 0.0f;
        mean += v[i];
    }
    mean = warp_sum(mean) / p.dim;
#pragma unroll
    for (int i = 0; i < MOST; i++)
        if (i * 32 + lane < p.dim) square += (v[i] - mean) * (v[i] - mean);
    const float inverse = 1.0f / sqrtf(warp_sum(square) / p.dim + p.eps);
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        const int c = i * 32 + lane;
        if (c >= p.dim) continue;
        float y = ((v[i] - mean) * inverse * p.weight[c] + p.bias[c]) * p.scale;
        if (p.mish) y = mish(y);
        if (p.shift) y += p.shift[c];
        if (p.out) p.out[(size_t)row * p.dim + c] = y;
        if (p.second) put(static_cast<W*>(p.second) + (size_t)row * p.second_pitch + c, y);
    }
}

/// Rows of a table: out (count, dim). A block for each.
template <class W> __device__ __forceinline__ void gather(const W* table, const uint32_t* ids, W* out, int dim) {
    admit_next();
    await_previous();
    for (int c = threadIdx.x; c < dim; c += blockDim.x) out[(size_t)blockIdx.x * dim + c] = table[(size_t)ids[blockIdx.x] * dim + c];
}

/// Sinusoids of the distances `furthest`, `furthest - 1`, ..: sine and cosine in turns, (rows, dim). A block for each row.
template <class W> __device__ __forceinline__ void distances(const float* frequencies, W* out, int furthest, int dim) {
    admit_next();
    await_previous();
    const float distance = furthest - (int)blockIdx.x;
    for (int c = threadIdx.x; c < dim / 2; c += blockDim.x) {
        float sine, cosine;
        sincosf(distance * frequencies[c], &sine, &cosine);
        put(out + (size_t)blockIdx.x * dim + 2 * c, sine);
        put(out + (size_t)blockIdx.x * dim + 2 * c + 1, cosine);
    }
}

constexpr int MEL = 80;

/// The flow's state and what its estimator is told of it.
struct FlowState {
    float* x;                     // (frames, MEL)
    const float* velocity;        // (batch, frames, MEL)
    const float* mu;              // (frames, MEL)
    const float* speaker;         // (MEL)
    const float* cond;            // (frames, MEL)
    void* inputs;                 // (batch, frames, 4 * MEL): state, mu, speaker, cond; the second row knows the state alone
    int frames, batch;
    float step, guidance;         // x += step * ((1 + guidance) * v0 - guidance * v1)
};

/// The inputs of the first step. Grid (frames, batch), 320 threads.
template <class W> __device__ __forceinline__ void stack_inputs(const FlowState& p) {
    admit_next();
    await_previous();
    const int t = blockIdx.x, b = blockIdx.y, c = threadIdx.x % MEL, part = threadIdx.x / MEL;
    const size_t at = (size_t)t * MEL + c;
    float v = 0;
    if (part == 0) v = p.x[at];
    else if (b == 0) v = part == 1 ? p.mu[at] : part == 2 ? p.speaker[c] : p.cond[at];
    put(static_cast<W*>(p.inputs) + ((size_t)b * p.frames + t) * 4 * MEL + threadIdx.x, v);
}

/// A step along the velocity, and the inputs of the next.
template <class W> __device__ __forceinline__ void advance(const FlowState& p) {
    admit_next();
    await_previous();
    const int i = blockIdx.x * blockDim.x + threadIdx.x, size = p.frames * MEL;
    if (i >= size) return;
    float v = p.velocity[i];
    if (p.batch == 2) v = v * (1.0f + p.guidance) - p.velocity[size + i] * p.guidance;
    const float x = p.x[i] + v * p.step;
    p.x[i] = x;
    for (int b = 0; b < p.batch; b++)
        put(static_cast<W*>(p.inputs) + ((size_t)b * p.frames + i / MEL) * 4 * MEL + i % MEL, x);
}
