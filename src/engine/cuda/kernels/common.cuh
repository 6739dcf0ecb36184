// What the kernels of T3 share: number types, and the exchange between blocks.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// Cards with some 160 KB of shared memory for a block, or more; the others have 99.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
#define MUCH_SHARED_MEMORY 1
#else
#define MUCH_SHARED_MEMORY 0
#endif

/// Threads of a block of the decode kernel, and its warps.
constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
/// Width of an attention head.
constexpr int HEAD = 64;

// Kernels of a chain, each launched so that it may begin before the one in front of it has ended (from architecture 9.0 on;
// elsewhere, and where the launch did not ask for it, these do nothing).

/// Lets the next kernel begin as soon as all blocks of this one have.
__device__ __forceinline__ void admit_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until all that was launched before has ended. Before it a kernel touches nothing but weights; every thread calls it.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Two values beside the epoch they belong to. Eight bytes arrive together, so a reader that sees the epoch has the value.
struct __align__(16) Pair { float a; uint32_t epoch_a; float b; uint32_t epoch_b; };
struct __align__(8) Single { float a; uint32_t epoch_a; };

template <int ROWS> struct Cell;
template <> struct Cell<1> { using Type = Single; };
template <> struct Cell<2> { using Type = Pair; };

__device__ __forceinline__ void publish(Single* to, const float (&v)[1], uint32_t epoch) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(__float_as_uint(v[0])), "r"(epoch) : "memory");
}

__device__ __forceinline__ void publish(Pair* to, const float (&v)[2], uint32_t epoch) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(__float_as_uint(v[0])), "r"(epoch),
                 "r"(__float_as_uint(v[1])), "r"(epoch)
                 : "memory");
}

__device__ __forceinline__ bool arrived(const Single* from, float (&v)[1], uint32_t epoch) {
    uint32_t a, e;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(e) : "l"(from) : "memory");
    v[0] = __uint_as_float(a);
    return e == epoch;
}

__device__ __forceinline__ bool arrived(const Pair* from, float (&v)[2], uint32_t epoch) {
    uint32_t a, ea, b, eb;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(ea), "=r"(b), "=r"(eb)
                 : "l"(from)
                 : "memory");
    v[0] = __uint_as_float(a);
    v[1] = __uint_as_float(b);
    return ea == epoch && eb == epoch;
}

/// Waits for N cells `stride` apart, of which the first `count` exist.
template <int N, class C, int ROWS>
__device__ __forceinline__ void await(const C* from, int stride, int count, uint32_t epoch, float (&v)[N][ROWS]) {
    // One load at a time while nothing is there: many would be in the way of what is waited for.
    if (N > 2 && count > 0)
        while (!arrived(from, v[0], epoch)) {}
    bool all;
    do {
        all = true;
#pragma unroll
        for (int i = N > 2 ? 1 : 0; i < N; i++)
            if (i < count) all &= arrived(from + i * stride, v[i], epoch);
    } while (!all);
}

// Weights: VALUES neighbouring values of a row to a lane, in one or two pieces of 16 bytes. SLICE columns are what a warp
// multiplies at once; matrices are padded to a multiple of it.
template <class W> struct Weight;

template <> struct Weight<__nv_bfloat16> {
    static constexpr int PIECES = 1, VALUES = 8, SLICE = 32 * VALUES;
    static __device__ __forceinline__ void unpack(const uint4 (&p)[1], float (&w)[8]) {
        const uint32_t u[4] = {p[0].x, p[0].y, p[0].z, p[0].w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[2 * i] = __uint_as_float(u[i] << 16);
            w[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
        }
    }
};

template <> struct Weight<__half> {
    static constexpr int PIECES = 1, VALUES = 8, SLICE = 32 * VALUES;
    static __device__ __forceinline__ void unpack(const uint4 (&p)[1], float (&w)[8]) {
        const uint32_t u[4] = {p[0].x, p[0].y, p[0].z, p[0].w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&u[i]));
            w[2 * i] = f.x;
            w[2 * i + 1] = f.y;
        }
    }
};

template <> struct Weight<float> {
    static constexpr int PIECES = 2, VALUES = 8, SLICE = 32 * VALUES;
    static __device__ __forceinline__ void unpack(const uint4 (&p)[2], float (&w)[8]) {
        const uint32_t u[8] = {p[0].x, p[0].y, p[0].z, p[0].w, p[1].x, p[1].y, p[1].z, p[1].w};
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = __uint_as_float(u[i]);
    }
};

/// Whole numbers from -127 to 127, to be multiplied by what their row is measured in.
template <> struct Weight<int8_t> {
    static constexpr int PIECES = 1, VALUES = 16, SLICE = 32 * VALUES;
    static __device__ __forceinline__ void unpack(const uint4 (&p)[1], float (&w)[16]) {
        const uint32_t u[4] = {p[0].x, p[0].y, p[0].z, p[0].w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                // 2^23 + 128 + value: the lowest byte of such a float is the value with its sign turned.
                w[4 * i + j] = __uint_as_float(__byte_perm(u[i] ^ 0x80808080u, 0x4b000000u, 0x7440 | j)) - 8388736.0f;
    }
};

/// Column within a slice of value `j` of a lane: pieces of 16 bytes, a warp's side by side.
template <class W> __device__ __forceinline__ int column_of(int lane, int j) {
    return Weight<W>::PIECES == 1 ? lane * Weight<W>::VALUES + j : (j / 4) * 128 + lane * 4 + j % 4;
}

// Keys and values: f32 where the weights are, else 16-bit floats as on the CPU.
template <class W> struct CacheOf { using Type = __half; };
template <> struct CacheOf<float> { using Type = float; };

__device__ __forceinline__ void load8(const float* p, float (&v)[8]) {
    const float4 a = __ldcg(reinterpret_cast<const float4*>(p)), b = __ldcg(reinterpret_cast<const float4*>(p) + 1);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

__device__ __forceinline__ void load8(const __half* p, float (&v)[8]) {
    const uint4 u = __ldcg(reinterpret_cast<const uint4*>(p));
    const uint4 one[1] = {u};
    Weight<__half>::unpack(one, v);
}

/// Eight neighbouring values as they are stored.
template <class KV> struct Eight {
    uint4 pieces[sizeof(KV) / 2];
    __device__ __forceinline__ void load(const KV* p) {
#pragma unroll
        for (int i = 0; i < (int)sizeof(KV) / 2; i++) pieces[i] = __ldcg(reinterpret_cast<const uint4*>(p) + i);
    }
    __device__ __forceinline__ void unpack(float (&v)[8]) const { Weight<KV>::unpack(pieces, v); }
};

__device__ __forceinline__ void store8(float* p, const float (&v)[8]) {
    reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

__device__ __forceinline__ void store8(__half* p, const float (&v)[8]) {
    __half2 h[4];
#pragma unroll
    for (int i = 0; i < 4; i++) h[i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
    *reinterpret_cast<uint4*>(p) = *reinterpret_cast<uint4*>(h);
}

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + expf(-x)); }

/// GPT-2's form of GELU, with tanh.
__device__ __forceinline__ float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
