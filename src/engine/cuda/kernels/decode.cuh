// Many tokens in one launch: a block on every multiprocessor stays for the whole of it.
//
// A decode step at batch 1 is bound by reading the weights once. Separate launches would stop that reading at every
// dependency (five a layer); here each thread runs its own stream of weights through shared memory, far ahead of what is
// being multiplied and across layers and tokens, since weights depend on nothing. Blocks hand activations to each other
// through cells that carry the epoch they belong to: a reader waits for the very values it needs, and there is no
// barrier over the grid. A cell is written again only a layer later, by when its last reader has long published what
// came of it, because every block that publishes has read all of the step before (within attention: all of its head).
//
// Every block samples for itself, from the same logits by whole-number sums, and so knows the next token without asking.
#pragma once
#include "products.cuh"

/// Parts that the positions of a head are dealt out to.
constexpr int SPLITS = 4;

/// Channels of the residual stream that a thread looks after; bounds the width to 1024.
constexpr int CHANNELS = 2;

template <class W, int ROWS, bool GPT2> struct Decoder : Products<W, ROWS, GPT2> {
    using Base = Products<W, ROWS, GPT2>;
    using Base::job, Base::net, Base::sums, Base::x;
    using Cells = typename Cell<ROWS>::Type;
    using KV = typename CacheOf<W>::Type;

    float (*red)[WARPS];          // [2 * ROWS][WARPS]
    int turn = 0;

    __device__ Decoder(const Net& net, const Job& job, char* shared, float (*red)[WARPS], const Run (*runs)[KINDS + 1])
        : Base(net, job, shared, runs), red(red) {}

    /// Sums over the block of `v`, one for each row.
    __device__ __forceinline__ void block_sums(float (&v)[ROWS]) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) v[r] = warp_sum(v[r]);
        turn ^= 1;
        float (*mine)[WARPS] = red + turn * ROWS;
        if (threadIdx.x % 32 == 0) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) mine[r][threadIdx.x / 32] = v[r];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            v[r] = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w += 4) {
                const float4 f = *reinterpret_cast<const float4*>(&mine[r][w]);
                v[r] += f.x + f.y + (f.z + f.w);
            }
        }
    }

    struct NormWeights { float weight[CHANNELS], shift[CHANNELS]; };

    /// Fetched before the values it is for have arrived.
    __device__ __forceinline__ NormWeights norm_weights(const float* norm) const {
        NormWeights n;
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) {
            const int c = threadIdx.x + i * THREADS;
            n.weight[i] = c < net.dim ? norm[c] : 0.0f;
            n.shift[i] = GPT2 && c < net.dim ? norm[net.dim + c] : 0.0f;
        }
        return n;
    }

    /// Normalises the residual stream `v` and leaves it in `x`, for all threads to see.
    __device__ __forceinline__ void normalise(float (&v)[CHANNELS][ROWS], const NormWeights& n) {
        const float inverse = 1.0f / net.dim;
        float mean[ROWS], square[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) mean[r] = square[r] = 0;
        if (GPT2) {
#pragma unroll
            for (int i = 0; i < CHANNELS; i++)
#pragma unroll
                for (int r = 0; r < ROWS; r++) mean[r] += v[i][r];
            block_sums(mean);
#pragma unroll
            for (int r = 0; r < ROWS; r++) mean[r] *= inverse;
        }
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) {
            const bool mine = (int)threadIdx.x + i * THREADS < net.dim;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                v[i][r] = mine ? v[i][r] - mean[r] : 0.0f;
                square[r] += v[i][r] * v[i][r];
            }
        }
        block_sums(square);
#pragma unroll
        for (int r = 0; r < ROWS; r++) square[r] = rsqrtf(square[r] * inverse + 1e-5f);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) {
            const int c = threadIdx.x + i * THREADS;
            if (c < net.dim_padded) {
#pragma unroll
                for (int r = 0; r < ROWS; r++) x[r * net.dim_padded + c] = v[i][r] * square[r] * n.weight[i] + n.shift[i];
            }
        }
        __syncthreads();
    }

    /// Waits for the residual stream.
    __device__ __forceinline__ void receive(const Cells* cells, uint32_t epoch, float (&v)[CHANNELS][ROWS]) {
        const int mine = max(0, (net.dim - (int)threadIdx.x + THREADS - 1) / THREADS);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) v[i][r] = 0;
        await<CHANNELS>(cells + threadIdx.x, THREADS, mine, epoch, v);
    }

    /// Keys (and `plane` further on values) of this thread's row, of one head of one layer.
    __device__ __forceinline__ KV* keys_of(int layer, int row, int head) const {
        return static_cast<KV*>(job.cache) + ((size_t)(layer * 2 * ROWS + row) * net.heads + head) * job.capacity * HEAD;
    }

    /// Has the second cache fetch what the next layer's attention will read here.
    __device__ __forceinline__ void expect(int layer, int position) const {
        if (layer == net.count) layer = 0;
        const size_t plane = (size_t)ROWS * net.heads * job.capacity * HEAD;
        for (int unit = blockIdx.x; unit < net.heads * SPLITS; unit += gridDim.x) {
            const int head = unit / SPLITS, split = unit % SPLITS;
            const int lines = (position - split + SPLITS - 1) / SPLITS * 2 * ROWS;
#pragma unroll 1
            for (int i = threadIdx.x; i < lines; i += THREADS) {
                const int p = i / (2 * ROWS) * SPLITS + split, row = i % ROWS;
                const KV* line = keys_of(layer, row, head) + (size_t)p * HEAD + (i / ROWS % 2 ? plane : 0);
                asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
                if (sizeof(KV) == 4) asm volatile("prefetch.global.L2 [%0];" ::"l"(line + HEAD / 2));
            }
        }
    }

    /// Attention of the new position; `position` others came before.
    __device__ __forceinline__ void attend(const Cells* qkv, Cells* parts, Cells* weights, int layer, int position, uint32_t epoch) {
        constexpr int ROW_WARPS = WARPS / ROWS, LANES = ROW_WARPS * 4, TOGETHER = sizeof(KV) == 2 ? 4 : 2;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int row = warp % ROWS, d0 = lane % 8 * 8, place = warp / ROWS * 4 + lane / 8;
        const size_t plane = (size_t)ROWS * net.heads * job.capacity * HEAD;
#pragma unroll 1
        for (int unit = blockIdx.x; unit < net.heads * SPLITS; unit += gridDim.x) {
            const int head = unit / SPLITS, split = unit % SPLITS;
            KV* keys = keys_of(layer, row, head) + d0;
            Eight<KV> k[TOGETHER], v[TOGETHER];
            const auto load = [&](int base) {
#pragma unroll
                for (int e = 0; e < TOGETHER; e++) {
                    const int p = (base + place + e * LANES) * SPLITS + split;
                    if (p < position) {
                        k[e].load(keys + (size_t)p * HEAD);
                        v[e].load(keys + plane + (size_t)p * HEAD);
                    }
                }
            };
            load(0);
            const bool newest = position % SPLITS == split;
            // q, k, v: (3, ROWS, HEAD)
            if (threadIdx.x < (newest ? 3 * HEAD : HEAD)) {
                const int which = threadIdx.x / HEAD, d = threadIdx.x % HEAD;
                float c = 1, s = 0, own[1][ROWS], other[1][ROWS];
                if (!GPT2) {
                    const size_t table = (size_t)position * (HEAD / 2) + d % (HEAD / 2);
                    c = net.cosines[table], s = net.sines[table];
                    if (d < HEAD / 2) s = -s;
                }
                const Cells* from = qkv + which * net.dim + head * HEAD;
                bool both;
                do {
                    both = arrived(from + d, own[0], epoch);
                    if (!GPT2) both &= arrived(from + (d ^ (HEAD / 2)), other[0], epoch);
                } while (!both);
                if (!GPT2 && which < 2) {
#pragma unroll
                    for (int r = 0; r < ROWS; r++) own[0][r] = own[0][r] * c + other[0][r] * s;
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++) x[(which * ROWS + r) * HEAD + d] = own[0][r];
            }
            __syncthreads();
            float q[8], gathered[8], best = -INFINITY, mass = 0;
            const auto read = [&](int which, float (&to)[8]) {
                const float* from = x + (which * ROWS + row) * HEAD + d0;
#pragma unroll
                for (int j = 0; j < 8; j++) to[j] = from[j];
            };
            read(0, q);
#pragma unroll
            for (int j = 0; j < 8; j++) q[j] *= 0.125f, gathered[j] = 0;
            // What a key scores with the query; eight lanes share a position.
            const auto score = [&](const float (&k)[8]) {
                float s = 0;
#pragma unroll
                for (int j = 0; j < 8; j++) s = fmaf(q[j], k[j], s);
#pragma unroll
                for (int o = 4; o; o /= 2) s += __shfl_xor_sync(~0u, s, o);
                return s;
            };
            const auto raise = [&](float to) {
                const float shrink = best == -INFINITY ? 0.0f : expf(best - to);
                best = to;
                mass *= shrink;
#pragma unroll
                for (int j = 0; j < 8; j++) gathered[j] *= shrink;
            };
            const auto add = [&](float w, const float (&v)[8]) {
                mass += w;
#pragma unroll
                for (int j = 0; j < 8; j++) gathered[j] = fmaf(w, v[j], gathered[j]);
            };
#pragma unroll 1
            for (int base = 0; base * SPLITS + split < position; base += TOGETHER * LANES) {
                if (base > 0) load(base);
                float s[TOGETHER], higher = best;
#pragma unroll
                for (int e = 0; e < TOGETHER; e++) {
                    float key[8];
                    k[e].unpack(key);
                    const float value = score(key);
                    s[e] = (base + place + e * LANES) * SPLITS + split < position ? value : -INFINITY;
                    higher = fmaxf(higher, s[e]);
                }
                if (higher == -INFINITY) continue;
                raise(higher);
#pragma unroll
                for (int e = 0; e < TOGETHER; e++) {
                    float value[8];
                    v[e].unpack(value);
                    if (s[e] != -INFINITY) add(expf(s[e] - higher), value);
                }
            }
            if (newest) {
                float key[8], value[8];
                read(1, key);
                read(2, value);
                const float s = score(key);
                if (position / SPLITS % LANES == place) {
                    const float higher = fmaxf(best, s);
                    raise(higher);
                    add(expf(s - higher), value);
                    store8(keys + (size_t)position * HEAD, key);
                    store8(keys + plane + (size_t)position * HEAD, value);
                }
            }
            // The four places of a warp, then the warps.
#pragma unroll
            for (int o = 8; o < 32; o *= 2) {
                const float other = __shfl_xor_sync(~0u, best, o), higher = fmaxf(best, other);
                const float shrink = best == -INFINITY ? 0.0f : expf(best - higher);
                mass *= shrink;
                mass += __shfl_xor_sync(~0u, mass, o);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    gathered[j] *= shrink;
                    gathered[j] += __shfl_xor_sync(~0u, gathered[j], o);
                }
                best = higher;
            }
            constexpr int WIDTH = HEAD + 2;
            if (lane < 8) {
#pragma unroll
                for (int j = 0; j < 8; j++) sums[warp * WIDTH + d0 + j] = gathered[j];
                if (lane == 0) sums[warp * WIDTH + HEAD] = best, sums[warp * WIDTH + HEAD + 1] = mass;
            }
            __syncthreads();
            if (threadIdx.x < HEAD) {
                // A lane looks after each warp's part; those of a row lie ROWS lanes apart.
                const int from = lane % WARPS;
                float high = sums[from * WIDTH + HEAD], factor, total;
                const float own = high;
#pragma unroll
                for (int o = ROWS; o < WARPS; o *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, o));
                factor = own == -INFINITY ? 0.0f : expf(own - high);
                total = factor * sums[from * WIDTH + HEAD + 1];
#pragma unroll
                for (int o = ROWS; o < WARPS; o *= 2) total += __shfl_xor_sync(~0u, total, o);
                float out[ROWS], highs[ROWS], totals[ROWS];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    out[r] = 0;
#pragma unroll
                    for (int w = r; w < WARPS; w += ROWS)
                        out[r] = fmaf(__shfl_sync(~0u, factor, w), sums[w * WIDTH + threadIdx.x], out[r]);
                    highs[r] = __shfl_sync(~0u, high, r);
                    totals[r] = __shfl_sync(~0u, total, r);
                }
                publish(parts + split * net.dim + head * HEAD + threadIdx.x, out, epoch);
                if (threadIdx.x == 0) {
                    publish(weights + (head * SPLITS + split) * 2, highs, epoch);
                    publish(weights + (head * SPLITS + split) * 2 + 1, totals, epoch);
                }
            }
            __syncthreads();
        }
    }

    /// Puts the parts of all heads together in `x`: each warp those of one head.
    __device__ __forceinline__ void gather_heads(const Cells* parts, const Cells* weights, uint32_t epoch) {
        const int head = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (head < net.heads) {
            // The weights come first, and only a few lanes ask for them: 132 blocks that ask for everything until it is there
            // would be in the way of those that make it.
            float own[ROWS];
            while (!arrived(weights + head * SPLITS * 2 + lane % (2 * SPLITS), own, epoch)) {}
            __syncwarp();
            float v[2 * SPLITS][ROWS];
            const Cells* part = parts + head * HEAD + lane;
            bool all;
            do {
                all = true;
#pragma unroll
                for (int s = 0; s < SPLITS; s++) {
                    all &= arrived(part + s * net.dim, v[s], epoch);
                    all &= arrived(part + s * net.dim + 32, v[SPLITS + s], epoch);
                }
            } while (!all);
            __syncwarp();
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                // Even lanes hold the highest score of a part, odd ones its mass.
                float most = lane % 2 ? -INFINITY : own[r];
#pragma unroll
                for (int o = 2; o < 2 * SPLITS; o *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
                most = __shfl_sync(~0u, most, 0);
                const float factor = lane % 2 || own[r] == -INFINITY ? 0.0f : expf(own[r] - most);
                float mass = 0, a = 0, b = 0;
#pragma unroll
                for (int s = 0; s < SPLITS; s++) {
                    const float f = __shfl_sync(~0u, factor, 2 * s);
                    mass = fmaf(f, __shfl_sync(~0u, own[r], 2 * s + 1), mass);
                    a = fmaf(f, v[s][r], a);
                    b = fmaf(f, v[SPLITS + s][r], b);
                }
                const float inverse = __fdividef(1.0f, mass);
                float* to = x + r * net.dim_padded + head * HEAD + lane;
                to[0] = a * inverse;
                to[32] = b * inverse;
            }
        }
        for (int c = net.dim + threadIdx.x; c < net.dim_padded; c += THREADS)
#pragma unroll
            for (int r = 0; r < ROWS; r++) x[r * net.dim_padded + c] = 0;
        __syncthreads();
    }
};

template <class W, int ROWS, bool GPT2>
__device__ __forceinline__ void decode(const Net& net, const Job& job) {
    using D = Decoder<W, ROWS, GPT2>;
    using Cells = typename D::Cells;
    extern __shared__ __align__(16) char dynamic_memory[];
    __shared__ __align__(16) float red[2 * ROWS][WARPS];
    __shared__ uint32_t seen[(IDS * THREADS + 31) / 32];
    __shared__ Run runs[WARPS][KINDS + 1];
    __shared__ Share shares[KINDS + 1];
    D d(net, job, dynamic_memory, red, runs);
    const int t = threadIdx.x;
    if (t < WARPS * (KINDS + 1)) {
        const int warp = t / (KINDS + 1), kind = t % (KINDS + 1);
        runs[warp][kind] = d.run_of(warp, kind);
        if (warp == 0) shares[kind] = d.share(kind);
    }
    __syncthreads();
    Cells* const from_out = reinterpret_cast<Cells*>(job.cells);
    Cells* const from_down = from_out + net.dim;
    Cells* const from_qkv = from_down + net.dim;
    Cells* const from_heads = from_qkv + 3 * net.dim;
    Cells* const head_weights = from_heads + SPLITS * net.dim;
    Cells* const from_inner = head_weights + SPLITS * net.heads * 2;
    Single* const from_logits = reinterpret_cast<Single*>(from_inner + net.mlp);

    bool given = job.hidden != nullptr;
    d.begin_stream(given);
    for (int i = t; i < (net.vocab + 31) / 32; i += THREADS) seen[i] = job.seen[i];
    uint32_t token = job.token, sampled = 0, fault = 0;
    int position = job.position, spoken = job.spoken;
    bool started = job.started;
#pragma unroll 1
    for (int step = 0; step < job.steps; step++) {
        const uint32_t first_epoch = job.epoch + (uint32_t)step * (net.count + 1);
        float v[CHANNELS][ROWS], residual[ROWS];
        const int own = shares[OUT].first + t;
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) {
            const int c = t + i * THREADS;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                v[i][r] = 0;
                if (c < net.dim)
                    v[i][r] = given ? job.hidden[r * job.hidden_stride + c]
                                    : net.embedding[(size_t)token * net.dim + c] +
                                          net.positions[(size_t)(GPT2 ? position : spoken + 1) * net.dim + c];
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            residual[r] = !given && t < shares[OUT].count
                              ? net.embedding[(size_t)token * net.dim + own] +
                                    net.positions[(size_t)(GPT2 ? position : spoken + 1) * net.dim + own]
                              : 0.0f;
        int layer = given ? net.count : 0, kind = given ? HEAD_MATRIX : QKV;
        bool fresh = true;        // whether v holds the residual stream already
        // One product after the other: there is one copy of each part of the code, which the instruction cache can hold.
#pragma unroll 1
        for (;;) {
            const uint32_t epoch = first_epoch + layer + 1;
            const float* vectors = net.vectors + (size_t)layer * net.vector_size;
            const int count = shares[kind].count;
            if (kind == OUT) {
                d.attend(from_qkv, from_heads, head_weights, layer, position, epoch);
                d.gather_heads(from_heads, head_weights, epoch);
            } else if (kind == DOWN) {
#pragma unroll 1
                for (int base = 0; base < net.mlp_padded; base += 4 * THREADS) {
                    float g[4][ROWS];
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int r = 0; r < ROWS; r++) g[i][r] = 0;
                    const int mine = min(4, max(0, (net.mlp - base - t + THREADS - 1) / THREADS));
                    await<4>(from_inner + base + t, THREADS, mine, epoch, g);
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int c = base + t + i * THREADS;
                        if (c < net.mlp_padded) {
#pragma unroll
                            for (int r = 0; r < ROWS; r++) d.x[r * net.mlp_padded + c] = g[i][r];
                        }
                    }
                }
                __syncthreads();
            } else {
                const float* norm = kind == HEAD_MATRIX ? net.final_norm : vectors + (kind == QKV ? net.norm1 : net.norm2);
                const typename D::NormWeights weights = d.norm_weights(norm);
                if (!fresh) d.receive(kind == INNER ? from_out : from_down, kind == INNER ? epoch : epoch - 1, v);
                fresh = false;
                d.normalise(v, weights);
            }
            const int bias_at = kind == QKV ? net.qkv_bias : kind == OUT ? net.out_bias : kind == INNER ? net.inner_bias : net.down_bias;
            const float bias = GPT2 && kind != HEAD_MATRIX && t < count ? vectors[bias_at + shares[kind].first + t] : 0.0f;
            float scale = 1, up_scale = 1;
            if (sizeof(W) == 1 && kind != HEAD_MATRIX) {
                const bool pairs = kind == INNER && !GPT2;
                const float* scales = vectors + net.scale[kind] + shares[kind].first + (pairs ? 2 * t : t);
                if (t < (pairs ? count / 2 : count)) {
                    scale = scales[0];
                    if (pairs) up_scale = scales[1];
                }
            }
            d.product(kind);
            if (kind == HEAD_MATRIX) break;
            const int slices = d.padded(kind) / D::SLICE;
            float y[ROWS];
            if (kind == INNER && !GPT2) {
                if (t < count / 2) {
                    float up[ROWS];
                    d.finished(2 * t, count, slices, scale, y);
                    d.finished(2 * t + 1, count, slices, up_scale, up);
#pragma unroll
                    for (int r = 0; r < ROWS; r++) y[r] = silu(y[r]) * up[r];
                    publish(from_inner + shares[INNER].first / 2 + t, y, epoch);
                }
            } else if (t < count) {
                d.finished(t, count, slices, scale, y);
#pragma unroll
                for (int r = 0; r < ROWS; r++) y[r] += bias;
                if (kind == QKV) {
                    publish(from_qkv + shares[QKV].first + t, y, epoch);
                } else if (kind == INNER) {
#pragma unroll
                    for (int r = 0; r < ROWS; r++) y[r] = gelu_tanh(y[r]);
                    publish(from_inner + shares[INNER].first + t, y, epoch);
                } else {
#pragma unroll
                    for (int r = 0; r < ROWS; r++) residual[r] += y[r];
                    publish((kind == OUT ? from_out : from_down) + own, residual, epoch);
                }
            }
            if (kind == QKV) __syncthreads();
            if (kind == OUT) d.expect(layer + 1, position);
            if (++kind == KINDS) {
                layer++;
                if (layer < net.count) kind = QKV;
            }
        }
        if (!given) {
            position++;
            spoken++;
        }
        given = false;
        const uint32_t epoch = first_epoch + net.count + 1;
        const int slices = net.dim_padded / D::SLICE, count = shares[HEAD_MATRIX].count, first = shares[HEAD_MATRIX].first;
#pragma unroll 1
        for (int i = t; i < count; i += THREADS) {
            float y[ROWS];
            const float bias = GPT2 ? net.head_bias[first + i] : 0.0f;
            d.finished(i, count, slices, sizeof(W) == 1 ? net.head_scale[first + i] : 1.0f, y);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                y[r] += bias;
                if (job.logits) job.logits[((size_t)step * ROWS + r) * net.vocab + first + i] = y[r];
            }
            float one[1] = {y[0]};
            if (ROWS == 2) one[0] = __fadd_rn(y[0], __fmul_rn(job.cfg_weight, __fsub_rn(y[0], y[ROWS - 1])));
            publish(from_logits + first + i, one, epoch);
        }
        const float uniform = job.uniforms[step];
#pragma unroll 1
        for (int base = 0; base < net.vocab; base += 6 * THREADS) {
            float l[6][1];
            const int mine = min(6, max(0, (net.vocab - base - t + THREADS - 1) / THREADS));
            await<6>(from_logits + base + t, THREADS, mine, epoch, l);
#pragma unroll
            for (int i = 0; i < 6; i++)
                if (i < mine) d.x[base + t + i * THREADS] = l[i][0];
        }
        token = choose(job.sampling, d.x, seen, uniform);
        if (job.forced && token != NO_TOKEN) token = job.forced[step];
        __syncthreads();
        if (token == NO_TOKEN) {
            fault = 1;
            break;
        }
        if (blockIdx.x == 0 && t == 0) job.tokens[step] = token;
        sampled++;
        if (token == job.stop && !job.forced && !(GPT2 && !started)) break;
        if (GPT2 && !started) {
            for (int i = t; i < (net.vocab + 31) / 32; i += THREADS) seen[i] = 0;
            __syncthreads();
        }
        started = true;
        if (t == 0) seen[token / 32] |= 1u << (token % 32);
        __syncthreads();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (blockIdx.x == 0) {
        for (int i = t; i < (net.vocab + 31) / 32; i += THREADS) job.seen[i] = seen[i];
        if (t == 0) {
            job.report[0] = sampled;
            job.report[1] = fault;
        }
    }
}
