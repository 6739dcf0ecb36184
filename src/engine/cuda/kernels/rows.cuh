// Products of many rows, and with them all convolutions: with channels last, the input rows that an output row needs lie
// equally far apart, so a tap is a stretch of columns.
#pragma once
#include "cores.cuh"

enum Act { IDENTITY = 0, SILU = 1, GELU_ERF = 2, LEAKY = 3, SNAKE = 4, ELU = 5, ABS = 6, GELU_TANH = 7, GATE = 8 };

/// `first(conv(a, w) + bias) + residual + add`. GATE takes columns in turns: `silu` of the even ones times the odd ones, which
/// leaves half as many in `second`. All widths and pitches in values; those of results are multiples of four,
/// and so is n where `add` is given.
struct Rows {
    const void* a;                // (batch, in_rows, pitch), of which `channels` columns are read
    const void* w;                // (n, w_pitch), of which k = taps * channels columns are read
    const float* bias;            // (n) or none
    const float* residual;        // (batch * rows, n) or none
    const float* add;             // likewise
    const float* alpha;           // of a snake: factors, then their reciprocals, (2, n)
    const float* norm_sums;       // or none; else the rows of `a` are layer-normed first: see below
    float* out;                   // (batch * rows, out_pitch) or none
    void* second;                 // `then` of the same in the numbers of the product, (batch * rows, second_pitch), or none
    long long a_batch;            // from one batch row to the next
    long long a_head, w_head, out_head; // from one product of the grid's third dimension to the next
    long long offset, limit;      // added to a place in `out`; places outside of 0 .. limit are left out
    int batch, rows, in_rows, n, k, channels, pitch, w_pitch, out_pitch, second_pitch;
    int stride, dilation, left;   // row t and tap i read row t * stride + i * dilation - left; outside there are zeros
    int twice;                    // 1: every input row stands for two
    int made;                     // 1: `w` was made by a kernel before this one
    int first, then;
    float slope, eps;
};

// A layer norm in front of a product: with weights g and shifts b, `norm(x) w = ((x - mean) / deviation · g + b) w`. g lies
// within `w` and `b w` within `bias` already, so that what is left of it is `(x w - mean · sum(w)) / deviation`, with the sums
// over the rows of `w` in `norm_sums (n)`; mean and deviation are those of the rows of `a` as the product sees them.

/// Up to three products of the same size in one launch.
struct RowsSet {
    Rows each[3];
    int count;
};

template <int KIND, class V> __device__ __forceinline__ V act(V v, float slope, float alpha, float reciprocal) {
    switch (KIND) {
        case SILU: return v / (V(1) + exp(-v));
        case GELU_ERF: return V(0.5) * v * (V(1) + erf(v * V(0.70710678118654752)));
        case LEAKY: return v > V(0) ? v : v * V(slope);
        case SNAKE: {
            const V s = sin(v * V(alpha));
            return v + s * s * V(reciprocal);
        }
        case ELU: return v > V(0) ? v : expm1(v);
        case ABS: return fabs(v);
        case GELU_TANH: return gelu_tanh(v);
        default: return v;
    }
}

__device__ __forceinline__ void put4(float* to, const float (&v)[4]) { *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]); }
__device__ __forceinline__ void put4(double* to, const double (&v)[4]) {
    reinterpret_cast<double2*>(to)[0] = make_double2(v[0], v[1]);
    reinterpret_cast<double2*>(to)[1] = make_double2(v[2], v[3]);
}
template <class W> __device__ __forceinline__ void put4(W* to, const float (&v)[4]) {
    W w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) put(w + i, v[i]);
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<uint2*>(w);
}
__device__ __forceinline__ void put(double* to, double v) { *to = v; }

__device__ __forceinline__ void load4(const float* from, float (&v)[4]) {
    const float4 f = *reinterpret_cast<const float4*>(from);
    v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
}
__device__ __forceinline__ void load4(const double* from, double (&v)[4]) {
    const double2 f = reinterpret_cast<const double2*>(from)[0], g = reinterpret_cast<const double2*>(from)[1];
    v[0] = f.x, v[1] = f.y, v[2] = g.x, v[3] = g.y;
}

/// Adds four neighbouring values, or as many as there are.
template <class V> __device__ __forceinline__ void add4(V (&v)[4], const float* from, int count) {
    if (count == 4) {
        const float4 f = *reinterpret_cast<const float4*>(from);
        v[0] += f.x, v[1] += f.y, v[2] += f.z, v[3] += f.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (j < count) v[j] += from[j];
}

/// Takes the sums of a block, BM by BN in shared memory; each thread the same four columns of some rows. Short code: it is
/// run through once by every block.
template <class S, class V, int BM, int BN, int THREADS, int FIRST, int THEN>
__device__ __forceinline__ void finish_as(const Rows& p, int head, const V (*tile)[BN + 4], const float2* norms, int m0, int n0) {
    constexpr int QUADS = BN / 4, STEP = THREADS / QUADS;
    static_assert(STEP * QUADS == THREADS && BM % STEP == 0, "a tile is dealt out evenly");
    const int n = n0 + threadIdx.x % QUADS * 4, all = p.batch * p.rows, left = p.n - n;
    if (left <= 0) return;
    // Rows of a width that is no multiple of four are not aligned.
    const int count = min(4, left), apart = p.n % 4 ? min(3, left) : count;
    V bias[4] = {};
    float alpha[4] = {}, reciprocal[4] = {}, sums[4] = {};
    for (int j = 0; j < count; j++) {
        if (p.bias) bias[j] = p.bias[n + j];
        if (norms) sums[j] = p.norm_sums[n + j];
        if (THEN == SNAKE) alpha[j] = p.alpha[n + j], reciprocal[j] = p.alpha[p.n + n + j];
    }
#pragma unroll 2
    for (int r = threadIdx.x / QUADS; r < BM; r += STEP) {
        const int m = m0 + r;
        if (m >= all) break;
        V v[4];
        float more[4] = {};
        load4(&tile[r][n - n0], v);
        if (norms) {
            const float2 norm = norms[r];
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = (v[j] - norm.x * sums[j]) * norm.y;
        }
        if (p.residual) add4(more, p.residual + (size_t)m * p.n + n, apart);
        if (p.residual && apart < count) more[3] += p.residual[(size_t)m * p.n + n + 3];
        if (p.add) add4(more, p.add + (size_t)m * p.n + n, count);
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = act<FIRST>(v[j] + bias[j], p.slope, alpha[j], reciprocal[j]) + more[j];
        const long long to = (long long)m * p.out_pitch + n + p.offset;
        if (p.out && to >= 0 && to < p.limit) {
            float* out = p.out + to + head * p.out_head;
            if (count == 4) put4(out, {float(v[0]), float(v[1]), float(v[2]), float(v[3])});
            else
#pragma unroll
                for (int j = 0; j < 3; j++)
                    if (j < count) out[j] = float(v[j]);
        }
        if constexpr (FIRST == GATE) {
            S* second = static_cast<S*>(p.second) + (size_t)m * p.second_pitch + n / 2;
            put(second, silu(float(v[0])) * float(v[1]));
            if (count > 2) put(second + 1, silu(float(v[2])) * float(v[3]));
        } else if (p.second) {
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = act<THEN>(v[j], p.slope, alpha[j], reciprocal[j]);
            S* second = static_cast<S*>(p.second) + (size_t)m * p.second_pitch + n;
            if (count == 4) put4(second, v);
            else
#pragma unroll
                for (int j = 0; j < 3; j++)
                    if (j < count) put(second + j, v[j]);
        }
    }
}

/// The activations of the flow and of T3 come first, those of the vocoder upon the second result; the pitch has two of its own.
template <class S, class V, int BM, int BN, int THREADS>
__device__ __forceinline__ void finish_tile(const Rows& p, int head, const V (*tile)[BN + 4], const float2* norms, int m0, int n0) {
#define FINISH(FIRST, THEN) return finish_as<S, V, BM, BN, THREADS, FIRST, THEN>(p, head, tile, norms, m0, n0)
    if constexpr (sizeof(S) == 8) {
        if (p.then == ELU) FINISH(IDENTITY, ELU);
        if (p.first == ABS) FINISH(ABS, IDENTITY);
    } else {
        if (p.first == SILU) FINISH(SILU, IDENTITY);
        if (p.first == GELU_ERF) FINISH(GELU_ERF, IDENTITY);
        if (p.first == LEAKY) FINISH(LEAKY, IDENTITY);
        if (p.first == GELU_TANH) FINISH(GELU_TANH, IDENTITY);
        if (p.first == GATE) FINISH(GATE, IDENTITY);
        if constexpr (sizeof(S) == 4) {
            if (p.then == SNAKE) FINISH(IDENTITY, SNAKE);
            if (p.then == LEAKY) FINISH(IDENTITY, LEAKY);
        }
    }
    FINISH(IDENTITY, IDENTITY);
#undef FINISH
}

extern "C" __constant__ const int much_shared_memory = MUCH_SHARED_MEMORY;

/// A block makes BM by BN values, a warp WM by WN of them. GROUPS groups of warps share the columns of the factors: most
/// products have too few tiles to fill a card otherwise.
template <class W, int BM, int BN, int WM, int WN, int GROUPS> struct RowTile {
    static constexpr int DEPTH = 64, PITCH = DEPTH + 8, ACROSS = BN / WN;
    static constexpr int STAGES = MUCH_SHARED_MEMORY ? 4 : GROUPS * (BM + BN) > 192 ? 2 : 3;
    static constexpr int GROUP = BM / WM * ACROSS * 32, THREADS = GROUPS * GROUP;
    /// Fragments of a warp, and pieces of eight values and the rows between them that a thread copies.
    static constexpr int MI = WM / 16, NI = WN / 8, A = BM * 8 / GROUP, B = BN * 8 / GROUP, APART = GROUP / 8;
    static constexpr int BYTES = GROUPS * STAGES * (BM + BN) * PITCH * 2;
    /// Threads that look after a row's mean and deviation.
    static constexpr int SHARERS = GROUP / BM;
    static_assert(A * GROUP == BM * 8 && B * GROUP == BN * 8 && NI % 2 == 0, "a tile is dealt out evenly");

    static __device__ __forceinline__ void run(const RowsSet& set) {
        extern __shared__ __align__(16) char row_memory[];
        __shared__ float2 norms[BM];
        const Rows& p = set.each[blockIdx.z % set.count];
        const int head = blockIdx.z / set.count;
        const int tid = threadIdx.x % GROUP, group = threadIdx.x / GROUP, lane = tid % 32, warp = tid / 32;
        W(*tiles)[BM + BN][PITCH] = reinterpret_cast<W(*)[BM + BN][PITCH]>(row_memory) + group * STAGES;
        const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, all = p.batch * p.rows;
        if (n0 >= p.n || m0 >= all) return;
        const int turns = (p.k + DEPTH * GROUPS - 1) / (DEPTH * GROUPS);
        const int wm = warp / ACROSS * WM, wn = warp % ACROSS * WN;
        // Each thread copies eight columns of some rows; rows past the end repeat the last, and nothing comes of them.
        const W *a[A], *w[B];
        int from[A];
        int k = group * DEPTH + tid % 8 * 8, tap = k / p.channels, channel = k % p.channels;
#pragma unroll
        for (int i = 0; i < A; i++) {
            const int m = min(m0 + tid / 8 + i * APART, all - 1), b = m / p.rows;
            a[i] = static_cast<const W*>(p.a) + b * p.a_batch + head * p.a_head;
            from[i] = (m - b * p.rows) * p.stride - p.left;
        }
#pragma unroll
        for (int i = 0; i < B; i++)
            w[i] = static_cast<const W*>(p.w) + (size_t)min(n0 + tid / 8 + i * APART, p.n - 1) * p.w_pitch + head * p.w_head;
        const int there = p.in_rows << p.twice;
        const auto load_weights = [&](int stage, int k) {
            const bool inside = k < p.k;
#pragma unroll
            for (int i = 0; i < B; i++)
                copy16_or_zeros(&tiles[stage][BM + tid / 8 + i * APART][tid % 8 * 8], inside ? w[i] + k : w[i], inside);
        };
        const auto load = [&](int stage) {
            const bool inside = k < p.k;
#pragma unroll
            for (int i = 0; i < A; i++) {
                const int row = from[i] + tap * p.dilation;
                const bool ok = inside && (unsigned)row < (unsigned)there;
                const W* source = ok ? a[i] + (size_t)(row >> p.twice) * p.pitch + channel : a[i];
                copy16_or_zeros(&tiles[stage][tid / 8 + i * APART][tid % 8 * 8], source, ok);
            }
            k += DEPTH * GROUPS;
            channel += DEPTH * GROUPS;
            while (channel >= p.channels) channel -= p.channels, tap++;
        };
        // The first weights are fetched while the kernel before this one ends.
        if (p.made) await_previous();
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++)
            if (s < turns) load_weights(s, k + s * DEPTH * GROUPS);
        if (!p.made) await_previous();
        float c[MI][NI][4] = {}, mean = 0, square = 0;
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) {
            if (s < turns) load(s);
            copies_end();
        }
        int stage = 0;
        for (int turn = 0; turn < turns; turn++) {
            copies_but<STAGES - 2>();
            __syncthreads();
            if (p.norm_sums) {
#pragma unroll
                for (int i = 0; i < 8 / SHARERS; i++) {
                    const uint4 eight = *reinterpret_cast<const uint4*>(&tiles[stage][tid / SHARERS][(tid % SHARERS + i * SHARERS) * 8]);
                    const uint4 one[1] = {eight};
                    float v[8];
                    Weight<W>::unpack(one, v);
#pragma unroll
                    for (int j = 0; j < 8; j++) mean += v[j], square = fmaf(v[j], v[j], square);
                }
            }
            if (turn + STAGES - 1 < turns) {
                const int free = stage == 0 ? STAGES - 1 : stage - 1;
                load_weights(free, k);
                load(free);
            }
            copies_end();
#pragma unroll
            for (int d = 0; d < DEPTH; d += 16) {
                uint32_t x[MI][4], y[NI / 2][4];
#pragma unroll
                for (int i = 0; i < MI; i++) fragments(x[i], &tiles[stage][wm + i * 16 + lane % 16][d + lane / 16 * 8]);
#pragma unroll
                for (int j = 0; j < NI / 2; j++)
                    fragments(y[j], &tiles[stage][BM + wn + j * 16 + lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8]);
#pragma unroll
                for (int i = 0; i < MI; i++)
#pragma unroll
                    for (int j = 0; j < NI; j++)
                        multiply(c[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1], (W*)nullptr);
            }
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        copies_but<0>();
        admit_next();
        __syncthreads();
        float(*tile)[BN + 4] = reinterpret_cast<float(*)[BN + 4]>(row_memory);
        if (p.norm_sums) {
#pragma unroll
            for (int o = 1; o < SHARERS; o *= 2) mean += __shfl_xor_sync(~0u, mean, o), square += __shfl_xor_sync(~0u, square, o);
        }
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (group == g) {
#pragma unroll
                for (int i = 0; i < MI; i++)
#pragma unroll
                    for (int j = 0; j < NI; j++)
#pragma unroll
                        for (int e = 0; e < 4; e += 2) {
                            float2* to = reinterpret_cast<float2*>(&tile[wm + i * 16 + lane / 4 + e * 4][wn + j * 8 + lane % 4 * 2]);
                            const float2 before = g == 0 ? make_float2(0, 0) : *to;
                            *to = make_float2(before.x + c[i][j][e], before.y + c[i][j][e + 1]);
                        }
                if (p.norm_sums && tid % SHARERS == 0) {
                    const float2 before = g == 0 ? make_float2(0, 0) : norms[tid / SHARERS];
                    const float2 sums = make_float2(before.x + mean, before.y + square);
                    const float middle = sums.x / p.k, deviation = sqrtf(fmaxf(sums.y / p.k - middle * middle, 0.0f) + p.eps);
                    norms[tid / SHARERS] = g + 1 < GROUPS ? sums : make_float2(middle, 1.0f / deviation);
                }
            }
            __syncthreads();
        }
        finish_tile<W, float, BM, BN, THREADS>(p, head, tile, p.norm_sums ? norms : nullptr, m0, n0);
    }
};

/// Without tensor cores, in the numbers of the factors: BM by 64 values, four by four to a thread.
template <class S, int BM> struct ExactTile {
    static constexpr int BN = 64, DEPTH = 32, PITCH = DEPTH + 16 / sizeof(S), THREADS = BM * BN / 16;
    static constexpr int STAGES = MUCH_SHARED_MEMORY ? 4 : 3;
    static constexpr int BYTES = STAGES * (BM + BN) * PITCH * sizeof(S);
    /// Pieces of four values that each thread copies.
    static constexpr int APART = THREADS / 8, A = BM / APART, B = BN / APART;

    static __device__ __forceinline__ void run(const RowsSet& set) {
        extern __shared__ __align__(16) char exact_memory[];
        await_previous();
        S(*tiles)[BM + BN][PITCH] = reinterpret_cast<S(*)[BM + BN][PITCH]>(exact_memory);
        const Rows& p = set.each[blockIdx.z % set.count];
        const int head = blockIdx.z / set.count, tid = threadIdx.x;
        const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, all = p.batch * p.rows;
        if (n0 >= p.n || m0 >= all) return;
        const int row = tid / 8, column = tid % 8 * 4;
        const S *a[A], *w[B];
        int from[A];
#pragma unroll
        for (int i = 0; i < A; i++) {
            const int m = min(m0 + row + i * APART, all - 1), b = m / p.rows;
            a[i] = static_cast<const S*>(p.a) + b * p.a_batch + head * p.a_head;
            from[i] = (m - b * p.rows) * p.stride - p.left;
        }
#pragma unroll
        for (int i = 0; i < B; i++)
            w[i] = static_cast<const S*>(p.w) + (size_t)min(n0 + row + i * APART, p.n - 1) * p.w_pitch + head * p.w_head;
        const int there = p.in_rows << p.twice, turns = (p.k + DEPTH - 1) / DEPTH;
        int k = column, tap = k / p.channels, channel = k % p.channels;
        const auto piece = [](S* to, const S* source, bool ok) {
#pragma unroll
            for (int i = 0; i < (int)sizeof(S) / 4; i++) copy16_or_zeros(to + i * (16 / sizeof(S)), source + i * (16 / sizeof(S)), ok);
        };
        const auto load = [&](int stage) {
            const bool inside = k < p.k;
#pragma unroll
            for (int i = 0; i < A; i++) {
                const int at = from[i] + tap * p.dilation;
                const bool ok = inside && (unsigned)at < (unsigned)there;
                piece(&tiles[stage][row + i * APART][column], ok ? a[i] + (size_t)(at >> p.twice) * p.pitch + channel : a[i], ok);
            }
#pragma unroll
            for (int i = 0; i < B; i++) piece(&tiles[stage][BM + row + i * APART][column], inside ? w[i] + k : w[i], inside);
            k += DEPTH;
            channel += DEPTH;
            while (channel >= p.channels) channel -= p.channels, tap++;
        };
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) {
            if (s < turns) load(s);
            copies_end();
        }
        // Of sixteen rows and columns each every one, so that neighbours read different banks.
        const int tm = tid / 16, tn = tid % 16;
        S c[4][4] = {};
        int stage = 0;
        for (int turn = 0; turn < turns; turn++) {
            copies_but<STAGES - 2>();
            __syncthreads();
            if (turn + STAGES - 1 < turns) load(stage == 0 ? STAGES - 1 : stage - 1);
            copies_end();
#pragma unroll
            for (int d = 0; d < DEPTH; d += 4) {
                S x[4][4], y[4][4];
#pragma unroll
                for (int i = 0; i < 4; i++) load4(&tiles[stage][tm + i * (BM / 4)][d], x[i]);
#pragma unroll
                for (int j = 0; j < 4; j++) load4(&tiles[stage][BM + tn + j * 16][d], y[j]);
#pragma unroll
                for (int e = 0; e < 4; e++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int j = 0; j < 4; j++) c[i][j] = fma(x[i][e], y[j][e], c[i][j]);
            }
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        copies_but<0>();
        admit_next();
        __syncthreads();
        S(*tile)[BN + 4] = reinterpret_cast<S(*)[BN + 4]>(exact_memory);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) tile[tm + i * (BM / 4)][tn + j * 16] = c[i][j];
        __syncthreads();
        finish_tile<S, S, BM, BN, THREADS>(p, head, tile, nullptr, m0, n0);
    }
};
