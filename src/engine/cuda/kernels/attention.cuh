// Attention over whole sequences without a matrix of scores (Dao et al., "FlashAttention", 2022), for S3Gen.
#pragma once
#include "cores.cuh"

/// `softmax((q kᵀ + bias) · scale) v` for each head.
struct Attend {
    const void* q;                // (batch, queries, q_pitch), a head's values side by side
    const void* k;                // (batch, keys, k_pitch)
    const void* v;                // likewise
    void* out;                    // (batch, queries, out_pitch)
    const float* bias;            // or none; of head h, query i and key j: [h * bias_head + i * bias_pitch + queries - 1 - i + j]
    const int2* ranges;           // or none; first key that a query sees, and the one behind the last; neither ever falls
    long long q_batch, k_batch, k_head, out_batch, bias_head;
    int q_pitch, k_pitch, out_pitch, bias_pitch, queries, keys, width;
    int causal;                   // 1: the last query sees all keys, and each before it one less
    float scale;
};

/// What the queries from `first` to `last` see together.
__device__ __forceinline__ int2 seen_by(const Attend& p, int first, int last) {
    if (p.causal) return make_int2(0, p.keys - p.queries + last + 1);
    if (!p.ranges) return make_int2(0, p.keys);
    return make_int2(p.ranges[first].x, p.ranges[last].y);
}

/// On the tensor cores: 64 queries of one head, HEAD >= width, to eight warps: four see every other 64 keys, four the rest.
/// The result is of type OUT. Grid (queries / 64, heads, batch).
template <class W, int HEAD, class OUT = W> struct Flash {
    static constexpr int SIDE = 64, PITCH = HEAD + 8, PIECES = HEAD / 8, GROUP = 128;
    using Side = W[SIDE][PITCH];
    struct Memory {
        Side q;
        Side kv[2][2][2];         // of each group two stages of keys and values
    };
    static constexpr int BYTES = sizeof(Memory);

    /// Sixty-four rows from `row` on, zeros where there are none, by some threads.
    static __device__ __forceinline__ void load(Side& to, const W* from, int pitch, int row, int rows, int width, int tid, int threads) {
        for (int i = tid; i < SIDE * PIECES; i += threads) {
            const int r = i / PIECES, column = i % PIECES * 8;
            const bool ok = row + r < rows && column < width;
            copy16_or_zeros(&to[r][column], ok ? from + (size_t)(row + r) * pitch + column : from, ok);
        }
    }

    static __device__ __forceinline__ void run(const Attend& p) {
        extern __shared__ __align__(16) char flash_memory[];
        await_previous();
        Memory& memory = *reinterpret_cast<Memory*>(flash_memory);
        const int group = threadIdx.x / GROUP, tid = threadIdx.x % GROUP, lane = tid % 32, warp = tid / 32;
        const int first = blockIdx.x * SIDE, head = blockIdx.y * p.width, b = blockIdx.z;
        const W* q = static_cast<const W*>(p.q) + b * p.q_batch + head;
        const W* k = static_cast<const W*>(p.k) + b * p.k_batch + blockIdx.y * p.k_head;
        const W* v = static_cast<const W*>(p.v) + b * p.k_batch + blockIdx.y * p.k_head;
        const int2 span = seen_by(p, first, min(first + SIDE, p.queries) - 1);
        const int row = first + warp * 16 + lane / 4;
        int2 range[2];
#pragma unroll
        for (int e = 0; e < 2; e++) range[e] = seen_by(p, min(row + e * 8, p.queries - 1), min(row + e * 8, p.queries - 1));
        const auto keys = [&](int stage, int base) {
            load(memory.kv[group][stage][0], k, p.k_pitch, base, p.keys, p.width, tid, GROUP);
            load(memory.kv[group][stage][1], v, p.k_pitch, base, p.keys, p.width, tid, GROUP);
        };
        load(memory.q, q, p.q_pitch, first, p.queries, p.width, threadIdx.x, 2 * GROUP);
        keys(0, span.x + group * SIDE);
        copies_end();
        uint32_t x[HEAD / 16][4];
        float o[HEAD / 8][4] = {}, best[2] = {-INFINITY, -INFINITY}, mass[2] = {0, 0};
        const float scale = p.scale * 1.4426950408889634f;
        int stage = 0;
        // Both groups take as many turns, so that they meet at the barriers.
        for (int turn = span.x; turn < span.y; turn += 2 * SIDE, stage ^= 1) {
            const int base = turn + group * SIDE;
            if (base + 2 * SIDE < span.y) keys(stage ^ 1, base + 2 * SIDE);
            copies_end();
            copies_but<1>();
            __syncthreads();
            if (turn == span.x) {
#pragma unroll
                for (int d = 0; d < HEAD / 16; d++) fragments(x[d], &memory.q[warp * 16 + lane % 16][d * 16 + lane / 16 * 8]);
            }
            if (base < span.y) {
                const Side &ks = memory.kv[group][stage][0], &vs = memory.kv[group][stage][1];
                float s[8][4] = {};
#pragma unroll
                for (int d = 0; d < HEAD / 16; d++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        uint32_t y[4];
                        fragments(y, &ks[j * 16 + lane / 16 * 8 + lane % 8][d * 16 + lane / 8 % 2 * 8]);
                        multiply(s[2 * j], x[d], y[0], y[1], (W*)nullptr);
                        multiply(s[2 * j + 1], x[d], y[2], y[3], (W*)nullptr);
                    }
                if (p.bias) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const int i = min(row + e * 8, p.queries - 1);
                        const float* bias = p.bias + blockIdx.y * p.bias_head + (size_t)i * p.bias_pitch + p.queries - 1 - i;
#pragma unroll
                        for (int j = 0; j < 16; j++) {
                            const int key = base + j / 2 * 8 + lane % 4 * 2 + j % 2;
                            if (key < p.keys) s[j / 2][e * 2 + j % 2] += bias[key];
                        }
                    }
                }
                if (p.ranges || p.causal || base + SIDE > span.y) {
#pragma unroll
                    for (int j = 0; j < 8; j++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            const int key = base + j * 8 + lane % 4 * 2 + e % 2;
                            if (key < range[e / 2].x || key >= range[e / 2].y) s[j][e] = -INFINITY;
                        }
                }
                float higher[2] = {best[0], best[1]};
#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        s[j][e] *= scale;
                        higher[e / 2] = fmaxf(higher[e / 2], s[j][e]);
                    }
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    higher[e] = fmaxf(higher[e], __shfl_xor_sync(~0u, higher[e], 1));
                    higher[e] = fmaxf(higher[e], __shfl_xor_sync(~0u, higher[e], 2));
                    // A query may see none of these keys, and none of those before.
                    const float safe = higher[e] == -INFINITY ? 0.0f : higher[e];
                    const float shrink = exp2f(best[e] - safe);
                    best[e] = higher[e];
                    higher[e] = safe;
                    mass[e] *= shrink;
#pragma unroll
                    for (int j = 0; j < HEAD / 8; j++) o[j][2 * e] *= shrink, o[j][2 * e + 1] *= shrink;
                }
#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        s[j][e] = exp2f(s[j][e] - higher[e / 2]);
                        mass[e / 2] += s[j][e];
                    }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    W* const none = nullptr;
                    const uint32_t w[4] = {pair(s[2 * j][0], s[2 * j][1], none), pair(s[2 * j][2], s[2 * j][3], none),
                                           pair(s[2 * j + 1][0], s[2 * j + 1][1], none), pair(s[2 * j + 1][2], s[2 * j + 1][3], none)};
#pragma unroll
                    for (int d = 0; d < HEAD / 16; d++) {
                        uint32_t y[4];
                        fragments_turned(y, &vs[j * 16 + lane % 16][d * 16 + lane / 16 * 8]);
                        multiply(o[2 * d], w, y[0], y[1], none);
                        multiply(o[2 * d + 1], w, y[2], y[3], none);
                    }
                }
            }
            __syncthreads();
        }
        copies_but<0>();
        admit_next();
        // The second group hands over what it gathered.
        constexpr int HELD = HEAD / 2 + 4;
        float* held = reinterpret_cast<float*>(memory.kv) + tid;
        static_assert(HELD * GROUP * 4 <= sizeof(memory.kv), "it fits where keys were");
#pragma unroll
        for (int e = 0; e < 2; e++) {
            mass[e] += __shfl_xor_sync(~0u, mass[e], 1);
            mass[e] += __shfl_xor_sync(~0u, mass[e], 2);
        }
        __syncthreads();
        if (group == 1) {
#pragma unroll
            for (int j = 0; j < HEAD / 2; j++) held[j * GROUP] = o[j / 4][j % 4];
#pragma unroll
            for (int e = 0; e < 2; e++) held[(HEAD / 2 + e) * GROUP] = best[e], held[(HEAD / 2 + 2 + e) * GROUP] = mass[e];
        }
        __syncthreads();
        if (group == 1) return;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = row + e * 8;
            if (i >= p.queries) continue;
            const float other = held[(HEAD / 2 + e) * GROUP], highest = fmaxf(best[e], other);
            const float mine = exp2f(best[e] - highest), theirs = exp2f(other - highest);
            const float inverse = 1.0f / (mass[e] * mine + held[(HEAD / 2 + 2 + e) * GROUP] * theirs);
            OUT* out = static_cast<OUT*>(p.out) + b * p.out_batch + (size_t)i * p.out_pitch + head;
#pragma unroll
            for (int j = 0; j < HEAD / 8; j++) {
                const int column = j * 8 + lane % 4 * 2;
                if (column >= p.width) continue;
                const float v0 = o[j][2 * e] * mine + held[(j * 4 + 2 * e) * GROUP] * theirs;
                const float v1 = o[j][2 * e + 1] * mine + held[(j * 4 + 2 * e + 1) * GROUP] * theirs;
                *reinterpret_cast<uint32_t*>(out + column) = pair(v0 * inverse, v1 * inverse, (OUT*)nullptr);
            }
        }
    }
};

/// In f32: 128 threads for 32 queries of one head, four to each. Grid (queries / 32, heads, batch).
__device__ __forceinline__ void attend_exactly(const Attend& p) {
    admit_next();
    await_previous();
    constexpr int KEYS = 32, PITCH = 64 + 4;
    __shared__ __align__(16) float ks[KEYS][PITCH], vs[KEYS][PITCH];
    const int part = threadIdx.x % 4, first = blockIdx.x * 32, i = min(first + (int)threadIdx.x / 4, p.queries - 1);
    const int head = blockIdx.y * p.width, b = blockIdx.z;
    const float* q = static_cast<const float*>(p.q) + b * p.q_batch + (size_t)i * p.q_pitch + head;
    const float* k = static_cast<const float*>(p.k) + b * p.k_batch + blockIdx.y * p.k_head;
    const float* v = static_cast<const float*>(p.v) + b * p.k_batch + blockIdx.y * p.k_head;
    const float* bias = p.bias ? p.bias + blockIdx.y * p.bias_head + (size_t)i * p.bias_pitch + p.queries - 1 - i : nullptr;
    float x[16], o[16] = {}, best = -INFINITY, mass = 0;
#pragma unroll
    for (int d = 0; d < 16; d++) {
        const int column = d / 4 * 16 + part * 4 + d % 4;
        x[d] = column < p.width ? q[column] : 0.0f;
    }
    const int2 span = seen_by(p, first, min(first + 32, p.queries) - 1), mine = seen_by(p, i, i);
    for (int base = span.x; base < span.y; base += KEYS) {
        __syncthreads();
        for (int at = threadIdx.x; at < KEYS * 64; at += 128) {
            const int r = at / 64, column = at % 64;
            const bool ok = base + r < p.keys && column < p.width;
            ks[r][column] = ok ? k[(size_t)(base + r) * p.k_pitch + column] : 0.0f;
            vs[r][column] = ok ? v[(size_t)(base + r) * p.k_pitch + column] : 0.0f;
        }
        __syncthreads();
        for (int r = 0; r < min(KEYS, span.y - base); r++) {
            float s = 0;
#pragma unroll
            for (int d = 0; d < 16; d++) s = fmaf(x[d], ks[r][d / 4 * 16 + part * 4 + d % 4], s);
            s += __shfl_xor_sync(~0u, s, 1);
            s += __shfl_xor_sync(~0u, s, 2);
            if (base + r < mine.x || base + r >= mine.y) continue;
            if (bias) s += bias[base + r];
            s *= p.scale;
            const float higher = fmaxf(best, s), shrink = expf(best - higher), w = expf(s - higher);
            best = higher;
            mass = mass * shrink + w;
#pragma unroll
            for (int d = 0; d < 16; d++) o[d] = fmaf(w, vs[r][d / 4 * 16 + part * 4 + d % 4], o[d] * shrink);
        }
    }
    if (first + (int)threadIdx.x / 4 >= p.queries) return;
    float* out = static_cast<float*>(p.out) + b * p.out_batch + (size_t)i * p.out_pitch + head;
#pragma unroll
    for (int d = 0; d < 16; d++) {
        const int column = d / 4 * 16 + part * 4 + d % 4;
        if (column < p.width) out[column] = o[d] / mass;
    }
}
