// Many positions at once: voice and text, before the first token.
//
// With 16-bit weights products run on the tensor cores, which take activations of the same kind; sums, norms, attention
// and the residual stream are f32.
#pragma once
#include "cores.cuh"

/// What becomes of a product.
enum Finish { STORE = 0, ADD = 1, GATE = 2, GELU = 3 };

/// `a (m, k) · w (n, k)ᵀ + bias`.
struct Product {
    const void* a;                // activations, (m, k)
    const void* w;
    const float* bias;            // (n)
    float* out;                   // STORE, ADD: (m, n)
    void* inner;                  // GATE: (m, inner_width) of n / 2 values; GELU: of n values
    int m, n, k, inner_width, finish;
};

/// Takes the columns n and n + 1 of row m, n being even.
template <class W> __device__ __forceinline__ void finish(const Product& p, int m, int n, float v0, float v1) {
    if (m >= p.m || n >= p.n) return;
    v0 += p.bias[n];
    v1 += p.bias[n + 1];
    W* inner = static_cast<W*>(p.inner);
    float* out = p.out + (size_t)m * p.n + n;
    switch (p.finish) {
        case STORE: out[0] = v0, out[1] = v1; break;
        case ADD: out[0] += v0, out[1] += v1; break;
        case GATE: put(inner + (size_t)m * p.inner_width + n / 2, silu(v0) * v1); break;
        default:
            put(inner + (size_t)m * p.inner_width + n, gelu_tanh(v0));
            put(inner + (size_t)m * p.inner_width + n + 1, gelu_tanh(v1));
    }
}

constexpr int TILE = 64;

/// A block makes 64 by 64 values. Two groups of four warps share the columns of the factors, since most products have too
/// few tiles to fill a card otherwise; each warp makes a quarter of the tile.
template <class W> struct Tile {
    static constexpr int DEPTH = 32, PITCH = DEPTH + 8, STAGES = 3, GROUP = 128, THREADS = 2 * GROUP;
    using Buffer = W[STAGES][2][TILE][PITCH];

    static __device__ __forceinline__ void run(const Product& p) {
        extern __shared__ __align__(16) char product_memory[];
        const int tid = threadIdx.x % GROUP, group = threadIdx.x / GROUP, lane = tid % 32, warp = tid / 32;
        Buffer& tiles = reinterpret_cast<Buffer*>(product_memory)[group];
        const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE, steps = p.k / DEPTH / 2;
        const int wm = warp / 2 * 32, wn = warp % 2 * 32;
        // Rows past the end repeat the last; what comes of them is not kept.
        const W *a[2], *w[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int piece = tid + i * GROUP, row = piece / 4;
            const size_t column = (size_t)group * steps * DEPTH + piece % 4 * 8;
            a[i] = static_cast<const W*>(p.a) + (size_t)min(m0 + row, p.m - 1) * p.k + column;
            w[i] = static_cast<const W*>(p.w) + (size_t)min(n0 + row, p.n - 1) * p.k + column;
        }
        const auto load = [&](int stage, int step) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int piece = tid + i * GROUP, row = piece / 4, column = piece % 4 * 8;
                copy16(&tiles[stage][0][row][column], a[i] + step * DEPTH);
                copy16(&tiles[stage][1][row][column], w[i] + step * DEPTH);
            }
        };
        float c[2][4][4] = {};
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) {
            if (s < steps) load(s, s);
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        int stage = 0;
        for (int step = 0; step < steps; step++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads();
            const int next = step + STAGES - 1;
            if (next < steps) load(stage == 0 ? STAGES - 1 : stage - 1, next);
            asm volatile("cp.async.commit_group;" ::: "memory");
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
                uint32_t x[2][4], b[2][4];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    fragments(x[i], &tiles[stage][0][wm + i * 16 + lane % 16][k + lane / 16 * 8]);
                    fragments(b[i], &tiles[stage][1][wn + i * 16 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
                }
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        multiply(c[i][j], x[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], (W*)nullptr);
            }
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        __syncthreads();
        float* other = reinterpret_cast<float*>(product_memory) + tid;
        if (group == 1) {
#pragma unroll
            for (int i = 0; i < 32; i++) other[i * GROUP] = c[i / 16][i / 4 % 4][i % 4];
        }
        __syncthreads();
        if (group == 1) return;
#pragma unroll
        for (int i = 0; i < 32; i++) c[i / 16][i / 4 % 4][i % 4] += other[i * GROUP];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int m = m0 + wm + i * 16 + lane / 4, n = n0 + wn + j * 8 + lane % 4 * 2;
                finish<W>(p, m, n, c[i][j][0], c[i][j][1]);
                finish<W>(p, m + 8, n, c[i][j][2], c[i][j][3]);
            }
    }
};

/// In f32, without tensor cores: 256 threads, each with four by four values.
template <> struct Tile<float> {
    static constexpr int DEPTH = 16, THREADS = 256;

    static __device__ __forceinline__ void run(const Product& p) {
        __shared__ __align__(16) float as[2][DEPTH][TILE + 4], ws[2][DEPTH][TILE + 4];
        const int tid = threadIdx.x, m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
        const int row = tid / 4, column = tid % 4 * 4;
        const float* a = static_cast<const float*>(p.a) + (size_t)min(m0 + row, p.m - 1) * p.k + column;
        const float* w = static_cast<const float*>(p.w) + (size_t)min(n0 + row, p.n - 1) * p.k + column;
        const int tm = tid / 16 * 4, tn = tid % 16 * 4;
        float c[4][4] = {};
        float4 fa = *reinterpret_cast<const float4*>(a), fw = *reinterpret_cast<const float4*>(w);
        const int steps = p.k / DEPTH;
        for (int step = 0; step < steps; step++) {
            const int s = step % 2;
            as[s][column][row] = fa.x, as[s][column + 1][row] = fa.y, as[s][column + 2][row] = fa.z, as[s][column + 3][row] = fa.w;
            ws[s][column][row] = fw.x, ws[s][column + 1][row] = fw.y, ws[s][column + 2][row] = fw.z, ws[s][column + 3][row] = fw.w;
            __syncthreads();
            if (step + 1 < steps) {
                fa = *reinterpret_cast<const float4*>(a + (step + 1) * DEPTH);
                fw = *reinterpret_cast<const float4*>(w + (step + 1) * DEPTH);
            }
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                const float4 x = *reinterpret_cast<const float4*>(&as[s][k][tm]), y = *reinterpret_cast<const float4*>(&ws[s][k][tn]);
                const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) c[i][j] = fmaf(xs[i], ys[j], c[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            finish<float>(p, m0 + tm + i, n0 + tn, c[i][0], c[i][1]);
            finish<float>(p, m0 + tm + i, n0 + tn + 2, c[i][2], c[i][3]);
        }
    }
};

/// A norm of each of the rows `x (rows, dim)` into `out (rows, width)`; one block of 128 threads for each row.
struct Norm {
    const float* x;
    const float* norm;            // weights, then shifts (GPT-2)
    void* out;
    int dim, width, gpt2;
};

template <class W> __device__ __forceinline__ void normalise_row(const Norm& n) {
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

/// Attention over the positions in the cache.
struct Heads {
    float* qkv;                   // (batch, length, 3 * heads * HEAD); `turn` rotates the queries in place
    void* cache;                  // of this layer: keys, then values, (rows, heads, capacity, HEAD)
    void* out;                    // (batch * length, width)
    const float* cosines;
    const float* sines;
    int length, start, batch, rows, heads, capacity, width, gpt2;
};

/// Rotates queries and keys and puts keys and values into the cache; a batch of one fills all rows. Grid (length, batch).
template <class KV> __device__ __forceinline__ void turn(const Heads& h) {
    const int t = blockIdx.x, b = blockIdx.y, position = h.start + t, dim = h.heads * HEAD;
    float* q = h.qkv + ((size_t)b * h.length + t) * 3 * dim;
    const size_t plane = (size_t)h.rows * h.heads * h.capacity * HEAD;
    for (int i = threadIdx.x; i < dim / 2; i += blockDim.x) {
        const int head = i / (HEAD / 2), d = i % (HEAD / 2), at = head * HEAD + d;
        float c = 1, s = 0;
        if (!h.gpt2) c = h.cosines[(size_t)position * (HEAD / 2) + d], s = h.sines[(size_t)position * (HEAD / 2) + d];
        const float q0 = q[at], q1 = q[at + HEAD / 2], k0 = q[dim + at], k1 = q[dim + at + HEAD / 2];
        q[at] = q0 * c - q1 * s;
        q[at + HEAD / 2] = q1 * c + q0 * s;
        for (int row = h.batch == 1 ? 0 : b; row < (h.batch == 1 ? h.rows : b + 1); row++) {
            KV* key = static_cast<KV*>(h.cache) + ((size_t)(row * h.heads + head) * h.capacity + position) * HEAD + d;
            key[0] = KV(k0 * c - k1 * s);
            key[HEAD / 2] = KV(k1 * c + k0 * s);
            key[plane] = KV(q[2 * dim + at]);
            key[plane + HEAD / 2] = KV(q[2 * dim + at + HEAD / 2]);
        }
    }
}

/// 128 threads for 32 queries of one head, four to each. Grid (length / 32, heads, batch).
template <class W, class KV> __device__ __forceinline__ void attend_causally(const Heads& h) {
    constexpr int KEYS = 32, PITCH = HEAD + 4;
    __shared__ __align__(16) float ks[KEYS][PITCH], vs[KEYS][PITCH];
    const int part = threadIdx.x % 4, first = blockIdx.x * 32, t = first + threadIdx.x / 4;
    const int head = blockIdx.y, b = blockIdx.z, dim = h.heads * HEAD;
    const KV* keys = static_cast<const KV*>(h.cache) + (size_t)(b * h.heads + head) * h.capacity * HEAD;
    const KV* values = keys + (size_t)h.rows * h.heads * h.capacity * HEAD;
    const float* from = h.qkv + ((size_t)b * h.length + min(t, h.length - 1)) * 3 * dim + head * HEAD + part * 4;
    float q[16], gathered[16];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 f = *reinterpret_cast<const float4*>(from + i * 16);
        q[4 * i] = f.x * 0.125f, q[4 * i + 1] = f.y * 0.125f, q[4 * i + 2] = f.z * 0.125f, q[4 * i + 3] = f.w * 0.125f;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) gathered[i] = 0;
    float best = -INFINITY, mass = 0;
    const int seen = h.start + t, end = min(h.start + first + 32, h.start + h.length);
    for (int base = 0; base < end; base += KEYS) {
        __syncthreads();
        for (int i = threadIdx.x; i < KEYS * 8; i += 128) {
            const int p = i / 8, d = i % 8 * 8;
            float k[8] = {}, v[8] = {};
            if (base + p < end) {
                load8(keys + (size_t)(base + p) * HEAD + d, k);
                load8(values + (size_t)(base + p) * HEAD + d, v);
            }
            store8(&ks[p][d], k);
            store8(&vs[p][d], v);
        }
        __syncthreads();
        constexpr int TOGETHER = 4;
#pragma unroll 1
        for (int p = 0; p < min(KEYS, end - base); p += TOGETHER) {
            float s[TOGETHER], higher = best;
#pragma unroll
            for (int e = 0; e < TOGETHER; e++) {
                s[e] = 0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float4 k = *reinterpret_cast<const float4*>(&ks[p + e][i * 16 + part * 4]);
                    s[e] = fmaf(q[4 * i], k.x, s[e]), s[e] = fmaf(q[4 * i + 1], k.y, s[e]);
                    s[e] = fmaf(q[4 * i + 2], k.z, s[e]), s[e] = fmaf(q[4 * i + 3], k.w, s[e]);
                }
                s[e] += __shfl_xor_sync(~0u, s[e], 1);
                s[e] += __shfl_xor_sync(~0u, s[e], 2);
                if (base + p + e > seen) s[e] = -INFINITY;
                higher = fmaxf(higher, s[e]);
            }
            // The first key is seen by all, so that `higher` is a number.
            const float shrink = expf(best - higher);
            best = higher;
            mass *= shrink;
#pragma unroll
            for (int i = 0; i < 16; i++) gathered[i] *= shrink;
#pragma unroll
            for (int e = 0; e < TOGETHER; e++) {
                const float w = expf(s[e] - higher);
                mass += w;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float4 v = *reinterpret_cast<const float4*>(&vs[p + e][i * 16 + part * 4]);
                    gathered[4 * i] = fmaf(w, v.x, gathered[4 * i]);
                    gathered[4 * i + 1] = fmaf(w, v.y, gathered[4 * i + 1]);
                    gathered[4 * i + 2] = fmaf(w, v.z, gathered[4 * i + 2]);
                    gathered[4 * i + 3] = fmaf(w, v.w, gathered[4 * i + 3]);
                }
            }
        }
    }
    if (t >= h.length) return;
    W* to = static_cast<W*>(h.out) + ((size_t)b * h.length + t) * h.width + head * HEAD + part * 4;
#pragma unroll
    for (int i = 0; i < 16; i++) put(to + i / 4 * 16 + i % 4, gathered[i] / mass);
}

#define PREFILL(name, W)                                                                                            \
    extern "C" __global__ void __launch_bounds__(Tile<W>::THREADS) product_##name(const __grid_constant__ Product p) { \
        Tile<W>::run(p);                                                                                            \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(128) normalise_##name(const __grid_constant__ Norm n) {            \
        normalise_row<W>(n);                                                                                        \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(256) turn_##name(const __grid_constant__ Heads h) {                \
        turn<CacheOf<W>::Type>(h);                                                                                  \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(128) attend_##name(const __grid_constant__ Heads h) {              \
        attend_causally<W, CacheOf<W>::Type>(h);                                                                    \
    }
