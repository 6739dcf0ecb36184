// The network as a decode kernel sees it, and the products of one position with its weights.
//
// Each thread runs its own stream of weights through shared memory with asynchronous copies, in the order in which they
// will be needed: on through the layers, the head and the next token, as far ahead as there is room. A thread reads only
// what it has copied itself, so the stream needs no barrier.
#pragma once
#include "common.cuh"
#include "sampler.cuh"

/// Pieces of 16 bytes of weights that a thread has under way: what shared memory holds beside the activations.
constexpr int PIECES = MUCH_SHARED_MEMORY ? 14 : 6;
extern "C" __constant__ const int stream_pieces = PIECES;

/// Rows multiplied before their sums are put together.
constexpr int BATCH = 4;

/// The four matrices of a layer, in the order in which they are used.
enum Kind { QKV = 0, OUT = 1, INNER = 2, DOWN = 3, KINDS = 4, HEAD_MATRIX = 4 };

/// A model on the device. Matrices are (rows, columns padded to slices); `INNER` has gate and up rows in turns (Llama).
struct Net {
    const void* layers;           // all matrices of layer 0, then of layer 1, ...
    const void* head;             // (vocab, dim)
    const float* vectors;         // all vectors of layer 0, then of layer 1, ...
    const float* final_norm;      // (dim), then (dim) of shifts
    const float* head_bias;       // (vocab)
    const float* head_scale;      // (vocab)
    const float* embedding;       // (vocab, dim)
    const float* positions;       // learned positions of speech (Llama) or of the sequence (GPT-2), (.., dim)
    const float* cosines;         // (positions, HEAD / 2)
    const float* sines;
    unsigned long long layer_size;         // values of a layer's matrices
    unsigned long long offset[KINDS];      // where in them each begins
    int vector_size;              // values of a layer's vectors
    int norm1, qkv_bias, out_bias, norm2, inner_bias, down_bias;  // where in them each begins
    int scale[KINDS];             // likewise what the rows of each matrix are measured in, with 8 bits
    int dim, dim_padded, mlp, mlp_padded, heads, count, vocab;
};

/// What one launch is to do.
struct Job {
    void* cache;                  // keys, then values, of each layer: (rows, heads, capacity, HEAD)
    unsigned long long* cells;    // room for the exchange
    const float* hidden;          // (rows, dim), `hidden_stride` apart: begin with these instead of a token
    float* logits;                // (steps, rows, vocab) raw logits, or nothing
    uint32_t* seen;               // a bit for each id that occurred
    const float* uniforms;        // (steps)
    const uint32_t* forced;       // (steps) tokens to take in place of those chosen, or nothing
    uint32_t* tokens;             // out: (steps)
    uint32_t* report;             // out: tokens sampled, then whether the logits were no numbers
    long long hidden_stride;
    Sampling sampling;
    float cfg_weight;
    int capacity, position, spoken, steps;
    uint32_t token, epoch, stop;
    int started;                  // whether a token was sampled before
    int sums_at;                  // where in shared memory the sums begin, in floats behind the stream
};

template <int N> __device__ __forceinline__ void await_pieces() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/// What a warp has to do with one matrix: it streams `rows` rows, `step` bytes apart, from `offset` bytes behind the layer
/// (or head) on, multiplies them with the columns from `column` on, and puts row i's sums at `sum + i * sum_step`.
struct __align__(16) Run {
    unsigned long long offset;
    uint32_t step, rows;
    int column, sum, sum_step, unused;
};

/// Rows [first, first + count) of `n` that this block makes.
struct Share {
    int first, count;
    Share() = default;
    __device__ __forceinline__ explicit Share(int n) {
        const int b = blockIdx.x, blocks = gridDim.x;
        first = n * b / blocks;
        count = n * (b + 1) / blocks - first;
    }
};

/// The stream of weights of a thread, and the products that consume it.
template <class W, int ROWS, bool GPT2> struct Products {
    static constexpr int ROW_PIECES = Weight<W>::PIECES, SLICE = Weight<W>::SLICE, VALUES = Weight<W>::VALUES;
    /// Rows under way.
    static constexpr int AHEAD = PIECES / ROW_PIECES;
    static constexpr int GROUP = AHEAD < BATCH || VALUES > 8 ? BATCH / 2 : BATCH;

    const Net& net;
    const Job& job;
    const Run* runs;              // of this warp, one for each matrix of a layer and one for the head
    uint32_t ring;                // this thread's first piece in shared memory; the next is 32 pieces on
    float* x;                     // (ROWS, width)
    float* sums;                  // (slices, rows, ROWS)
    int slot = 0;
    // The stream of weights: what is fetched next.
    const char* at = nullptr;
    uint32_t step_bytes = 0, left = 0;
    int kind = HEAD_MATRIX, stream_layer = 0;
    unsigned long long policy;    // weights pass through the second cache and leave it to the rest

    __device__ Products(const Net& net, const Job& job, char* shared, const Run (*runs)[KINDS + 1])
        : net(net), job(job), runs(runs[threadIdx.x / 32]) {
        ring = (uint32_t)__cvta_generic_to_shared(shared) + (threadIdx.x / 32 * 32 * PIECES + threadIdx.x % 32) * 16;
        x = reinterpret_cast<float*>(shared + (size_t)WARPS * 32 * PIECES * 16);
        sums = x + job.sums_at;
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    }

    __device__ __forceinline__ int padded(int k) const { return k == DOWN ? net.mlp_padded : net.dim_padded; }

    /// The rows of a matrix that this block makes.
    __device__ __forceinline__ Share share(int k) const {
        if (k == INNER && !GPT2) {
            Share s(net.mlp);
            s.first *= 2, s.count *= 2;
            return s;
        }
        return Share(k == QKV ? 3 * net.dim : k == INNER ? net.mlp : k == HEAD_MATRIX ? net.vocab : net.dim);
    }

    /// What warp `warp` has to do with a matrix. Its columns are dealt out first, then the rows to what warps are left.
    __device__ Run run_of(int warp, int k) const {
        const int width = padded(k), n = width / SLICE, groups = WARPS / n, group = warp / n, slice = warp % n;
        const Share s = share(k);
        Run run;
        run.rows = group < groups && group < s.count ? (s.count - group + groups - 1) / groups : 0;
        run.step = groups * width * sizeof(W);
        run.offset = ((size_t)(s.first + group) * width + (size_t)slice * SLICE) * sizeof(W);
        if (k != HEAD_MATRIX) run.offset += net.offset[k] * sizeof(W);
        run.column = slice * SLICE;
        run.sum = (slice * s.count + group) * ROWS;
        run.sum_step = groups * ROWS;
        return run;
    }

    /// Fetches the next row's piece of the stream into place `to`. Behind the head the next token begins.
    __device__ __forceinline__ void fetch(int to) {
        while (left == 0) {
            kind++;
            if (kind == KINDS && stream_layer + 1 < net.count) {
                kind = 0;
                stream_layer++;
            } else if (kind > HEAD_MATRIX) {
                kind = 0;
                stream_layer = 0;
            }
            left = runs[kind].rows;
            step_bytes = runs[kind].step;
            at = kind == HEAD_MATRIX ? static_cast<const char*>(net.head)
                                     : static_cast<const char*>(net.layers) + stream_layer * net.layer_size * sizeof(W);
            at += runs[kind].offset + threadIdx.x % 32 * 16;
        }
#pragma unroll
        for (int p = 0; p < ROW_PIECES; p++)
            asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                             ring + (to * ROW_PIECES + p) * 512),
                         "l"(at + p * 512), "l"(policy)
                         : "memory");
        at += step_bytes;
        left--;
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    /// Begins the stream, at the layers or at the head. A warp without rows has none.
    __device__ __forceinline__ void begin_stream(bool at_head) {
        uint32_t rows = 0;
        for (int k = 0; k <= HEAD_MATRIX; k++) rows += runs[k].rows;
        if (rows == 0) return;
        if (at_head) {
            stream_layer = net.count - 1;
            kind = KINDS - 1;
        }
#pragma unroll 1
        for (int i = 0; i < AHEAD; i++) fetch(i);
    }

    /// Multiplies this block's rows of the next matrix of the stream with `x`; the sums over each slice stand in `sums`.
    __device__ __forceinline__ void product(int k) {
        const Run& run = runs[k];
        const int count = run.rows, width = padded(k), lane = threadIdx.x % 32;
        float xs[ROWS][VALUES];
        if (count > 0) {
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int j = 0; j < VALUES; j += 4) {
                    const float4 f = *reinterpret_cast<const float4*>(x + r * width + run.column + column_of<W>(lane, j));
                    xs[r][j] = f.x, xs[r][j + 1] = f.y, xs[r][j + 2] = f.z, xs[r][j + 3] = f.w;
                }
        }
        float* to = sums + run.sum;
#pragma unroll 1
        for (int i = 0; i < count; i += GROUP) {
            await_pieces<AHEAD - GROUP>();
            float acc[GROUP * ROWS];
            int from = slot;
#pragma unroll
            for (int b = 0; b < GROUP; b++) {
                // Rows past the last are read too, from what is there, and not used.
                uint4 pieces[ROW_PIECES];
#pragma unroll
                for (int p = 0; p < ROW_PIECES; p++)
                    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(pieces[p].x), "=r"(pieces[p].y), "=r"(pieces[p].z), "=r"(pieces[p].w)
                                 : "r"(ring + (from * ROW_PIECES + p) * 512)
                                 : "memory");
                from = from + 1 == AHEAD ? 0 : from + 1;
                float w[VALUES];
                Weight<W>::unpack(pieces, w);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    acc[b * ROWS + r] = w[0] * xs[r][0];
#pragma unroll
                    for (int j = 1; j < VALUES; j++) acc[b * ROWS + r] = fmaf(w[j], xs[r][j], acc[b * ROWS + r]);
                }
            }
            const int rows = min(GROUP, count - i);
#pragma unroll 1
            for (int b = 0; b < rows; b++) {
                fetch(slot);
                slot = slot + 1 == AHEAD ? 0 : slot + 1;
            }
            put_sums(acc, to + i * run.sum_step, rows, run.sum_step);
        }
        __syncthreads();
    }

    /// Adds the lanes' parts of up to GROUP rows: at each of the first steps a lane hands half of its values over.
    __device__ __forceinline__ void put_sums(float (&acc)[GROUP * ROWS], float* to, int rows, int step) {
        constexpr int N = GROUP * ROWS;
        const int lane = threadIdx.x % 32;
        int o = 16, index = 0;
#pragma unroll
        for (int half = N / 2; half; half /= 2, o /= 2) {
            const bool upper = lane & o;
#pragma unroll
            for (int k = 0; k < half; k++) {
                const float give = upper ? acc[k] : acc[k + half];
                acc[k] = (upper ? acc[k + half] : acc[k]) + __shfl_xor_sync(~0u, give, o);
            }
            if (upper) index += half;
        }
        const int owners = 2 * o - 1;
#pragma unroll
        for (int p = 16; p; p /= 2)
            if (p <= o) acc[0] += __shfl_xor_sync(~0u, acc[0], p);
        if ((lane & owners) == 0 && index / ROWS < rows) to[index / ROWS * step + index % ROWS] = acc[0];
    }

    /// The finished product of row `row` of this block's `rows`, which is measured in `scale`.
    __device__ __forceinline__ void finished(int row, int rows, int slices, float scale, float (&v)[ROWS]) const {
#pragma unroll
        for (int r = 0; r < ROWS; r++) v[r] = 0;
        const float* from = sums + row * ROWS;
#pragma unroll 4
        for (int s = 0; s < slices; s++, from += rows * ROWS)
#pragma unroll
            for (int r = 0; r < ROWS; r++) v[r] += from[r];
        if (sizeof(W) == 1) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) v[r] *= scale;
        }
    }
};
