// From logits to a token on one block; the same rules and order as the CPU's sampler.
//
// Masses are summed as whole numbers (weights times 2^32), so that no order of adding changes a choice: every block of
// the decode kernel chooses for itself, and all choose the same.
#pragma once
#include "common.cuh"

/// Most ids that one thread looks after; with THREADS threads this bounds the vocabulary.
constexpr int IDS = 17;
/// What `choose` returns when no logit is a number.
constexpr uint32_t NO_TOKEN = 0xffffffffu;

struct Sampling {
    float temperature, top_p, log_min_p, penalty;
    int top_k, vocab;
    /// Order of the processors: 1 that of GPT-2, 0 that of Llama.
    int gpt2;
};

// Sums over a block use their room in turns, so that one barrier each is enough.

__device__ __forceinline__ unsigned long long block_sum(unsigned long long v, unsigned long long (*room)[WARPS], int& turn) {
#pragma unroll
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    turn ^= 1;
    if (threadIdx.x % 32 == 0) room[turn][threadIdx.x / 32] = v;
    __syncthreads();
    unsigned long long sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum += room[turn][i];
    return sum;
}

__device__ __forceinline__ uint32_t block_count(uint32_t v, unsigned long long (*room)[WARPS], int& turn) {
    v = __reduce_add_sync(~0u, v);
    turn ^= 1;
    uint32_t* mine = reinterpret_cast<uint32_t*>(room[turn]);
    if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = v;
    __syncthreads();
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum += mine[i];
    return sum;
}

__device__ __forceinline__ uint32_t block_max(uint32_t v, unsigned long long (*room)[WARPS], int& turn) {
    v = __reduce_max_sync(~0u, v);
    turn ^= 1;
    uint32_t* mine = reinterpret_cast<uint32_t*>(room[turn]);
    if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = v;
    __syncthreads();
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) most = max(most, mine[i]);
    return most;
}

/// A whole number that sorts as the float does; a NaN counts as the lowest.
__device__ __forceinline__ uint32_t ordered(float x) {
    if (isnan(x)) return 0;
    const uint32_t bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float from_ordered(uint32_t o) { return __uint_as_float(o >> 31 ? o & 0x7fffffffu : ~o); }

/// The penalty for a token that occurred.
__device__ __noinline__ float penalised(float logit, float penalty) {
    return logit < 0.0f ? __fmul_rn(logit, penalty) : __fdiv_rn(logit, penalty);
}

/// Chooses among `logits` (shared memory, overwritten), which all threads of the block can see. `seen` has a bit for each
/// id that counts for the penalty, `uniform` lies in [0, 1).
__device__ __forceinline__ uint32_t choose(const Sampling& s, float* logits, const uint32_t* seen, float uniform) {
    __shared__ unsigned long long room[2][WARPS];
    __shared__ uint32_t answer;
    int turn = 0;
    __syncthreads();
    uint32_t most = 0;
#pragma unroll 1
    for (int id = threadIdx.x; id < s.vocab; id += THREADS) {
        float l = logits[id];
        if (!s.gpt2 && (seen[id / 32] >> (id % 32) & 1)) l = penalised(l, s.penalty);
        if (s.temperature != 0.0f && s.temperature != 1.0f) l = __fdiv_rn(l, s.temperature);
        logits[id] = l;
        most = max(most, ordered(l));
    }
    const uint32_t best_key = block_max(most, room, turn);
    float best = from_ordered(best_key);
    if (!isfinite(best)) return NO_TOKEN;
    // Each thread's ids as numbers to sort by, 0 where nothing is kept. An odd number of them, so that threads read from
    // different banks.
    const int each = ((s.vocab + THREADS - 1) / THREADS) | 1, first = threadIdx.x * each;
    uint32_t key[IDS], weight[IDS];
#pragma unroll
    for (int j = 0; j < IDS; j++) key[j] = j < each && first + j < s.vocab ? ordered(logits[first + j]) : 0;
    const auto count_from = [&](uint32_t bound) {
        uint32_t count = 0;
#pragma unroll
        for (int j = 0; j < IDS; j++) count += key[j] >= bound;
        return block_count(count, room, turn);
    };
    const auto weigh = [&] {
#pragma unroll
        for (int j = 0; j < IDS; j++)
            weight[j] = key[j] ? __float2uint_rn(fminf(expf(from_ordered(key[j]) - best) * 4294967296.0f, 4294967040.0f)) : 0;
    };
    const auto mass_above = [&](uint32_t bound) {
        unsigned long long sum = 0;
#pragma unroll
        for (int j = 0; j < IDS; j++) sum += key[j] > bound ? weight[j] : 0;
        return block_sum(sum, room, turn);
    };
    uint32_t threshold = ordered(__fadd_rn(best, s.log_min_p));
    if (s.gpt2) {
        threshold = 0;
        if (s.top_k > 0 && s.top_k < s.vocab) {
            // The top_k-th highest, bit by bit.
#pragma unroll 1
            for (uint32_t bit = 0x80000000u; bit; bit >>= 1)
                if (count_from(threshold | bit) >= s.top_k) threshold |= bit;
        }
    }
    threshold = max(threshold, 0x00800000u);  // above minus infinity
#pragma unroll
    for (int j = 0; j < IDS; j++)
        if (key[j] < threshold) key[j] = 0;
    weigh();
    if (s.top_p < 1.0f) {
        const unsigned long long mass = mass_above(0);
        // At least 1, so that the best stays whatever top_p.
        const unsigned long long needed = max(1ull, (unsigned long long)((double)s.top_p * (double)mass));
        // The highest bound above which there is still enough: all up to it go. It agrees with the best and the threshold
        // in the bits that these have in common.
        const uint32_t differ = best_key ^ threshold;
        uint32_t bit = differ ? 0x80000000u >> __clz(differ) : 0, bound = differ ? best_key & ~(2 * bit - 1) : best_key;
#pragma unroll 1
        for (; bit; bit >>= 1)
            if (mass_above(bound | bit) >= needed) bound |= bit;
        if (mass_above(bound) >= needed) {
#pragma unroll
            for (int j = 0; j < IDS; j++)
                if (key[j] <= bound) key[j] = 0;
        }
        // Of equals at the edge those of the highest ids stay, as many as are needed.
        uint32_t low = 0, ties = 0, tied = 0;
#pragma unroll
        for (int j = 0; j < IDS; j++)
            if (key[j]) low = max(low, ~key[j]);
        low = ~block_max(low, room, turn);
#pragma unroll
        for (int j = 0; j < IDS; j++)
            if (key[j] == low) ties++, tied = weight[j];
        const uint32_t all = block_count(ties, room, turn);
        if (all > 1) {
            tied = block_max(tied, room, turn);
            const unsigned long long before = mass_above(low);
            const unsigned long long missing = needed > before ? needed - before : 1;
            const uint32_t wanted =
                tied == 0 ? all : (uint32_t)min((unsigned long long)all, max(1ull, (missing + tied - 1) / tied));
            int from = 0;
#pragma unroll 1
            for (int half = 1 << 14; half; half >>= 1) {
                uint32_t count = 0;
#pragma unroll
                for (int j = 0; j < IDS; j++) count += key[j] == low && first + j >= (from | half);
                if (block_count(count, room, turn) >= wanted) from |= half;
            }
#pragma unroll
            for (int j = 0; j < IDS; j++)
                if (key[j] == low && first + j < from) key[j] = 0;
        }
    }
    if (s.gpt2) {
        most = 0;
#pragma unroll
        for (int j = 0; j < IDS; j++) {
            const int id = first + j;
            if (key[j] && (seen[id / 32] >> (id % 32) & 1)) key[j] = ordered(penalised(from_ordered(key[j]), s.penalty));
            most = max(most, key[j]);
        }
        best = from_ordered(block_max(most, room, turn));
    }
    weigh();
    // The draw: ids in order, each thread's behind those of the threads before it.
    unsigned long long sum = 0;
#pragma unroll
    for (int j = 0; j < IDS; j++) sum += weight[j];
    unsigned long long upto = sum;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const unsigned long long below = __shfl_up_sync(~0u, upto, o);
        if (lane >= o) upto += below;
    }
    turn ^= 1;
    if (lane == 31) room[turn][warp] = upto;
    if (threadIdx.x == 0) answer = NO_TOKEN;
    __syncthreads();
    unsigned long long mass = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        if (i == warp) upto += mass;
        mass += room[turn][i];
    }
    if (s.temperature != 0.0f) {
        const unsigned long long target = (unsigned long long)((double)uniform * (double)mass);
        unsigned long long below = upto - sum;
        if (target >= below && target < upto) {
#pragma unroll
            for (int j = 0; j < IDS; j++) {
                if (target >= below && target < below + weight[j]) answer = first + j;
                below += weight[j];
            }
        }
        __syncthreads();
        if (answer != NO_TOKEN) return answer;
        __syncthreads();
    }
    // The best of what is left, the lowest id among equals.
    const uint32_t top = ordered(best);
#pragma unroll
    for (int j = 0; j < IDS; j++)
        if (key[j] == top) atomicMin(&answer, (uint32_t)(first + j));
    __syncthreads();
    return answer;
}
