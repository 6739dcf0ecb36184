// The ends of HiFT: between samples and spectra, and between its residual blocks. All in f32.
#pragma once
#include "rows.cuh"

constexpr int FFT = 16, HOP = 4, BINS = FFT / 2 + 1;
/// Of the spectrum's rows: parts, and zeros so that they can be read four at a time.
constexpr int PARTS = 2 * BINS, SPECTRUM = 20;

/// samples -> (samples / HOP + 1, SPECTRUM), centred, mirrored at the ends. A thread for each value; basis (PARTS, FFT).
__device__ __forceinline__ void stft(const float* wav, const float* basis, float* out, int samples) {
    admit_next();
    await_previous();
    const int i = blockIdx.x * blockDim.x + threadIdx.x, frame = i / SPECTRUM, part = i % SPECTRUM;
    if (frame > samples / HOP) return;
    float sum = 0;
    if (part < PARTS)
        for (int n = 0; n < FFT; n++) {
            int at = frame * HOP + n - FFT / 2;
            at = at < 0 ? -at : at >= samples ? 2 * (samples - 1) - at : at;
            sum = fmaf(basis[part * FFT + n], wav[at], sum);
        }
    out[i] = sum;
}

/// Logarithms of magnitudes and sines of phases, (rows, SPECTRUM), to HOP * (rows - 1) samples; basis (PARTS, FFT) with the
/// window, window (FFT) squared. Blocks of 256 samples.
__device__ __forceinline__ void istft(const float* xs, const float* basis, const float* window, float* wav, int rows, float limit) {
    admit_next();
    await_previous();
    constexpr int SPAN = 256 / HOP + FFT / HOP;
    __shared__ float parts[SPAN][PARTS + 1];
    const int first = blockIdx.x * (256 / HOP) - 1;
    for (int i = threadIdx.x; i < SPAN * BINS; i += blockDim.x) {
        const int r = i / BINS, bin = i % BINS, row = first + r;
        float re = 0, im = 0;
        if (row >= 0 && row < rows) {
            const float magnitude = fminf(expf(xs[(size_t)row * SPECTRUM + bin]), 100.0f);
            float s, c;
            sincosf(sinf(xs[(size_t)row * SPECTRUM + BINS + bin]), &s, &c);
            re = magnitude * c, im = magnitude * s;
        }
        parts[r][bin] = re, parts[r][BINS + bin] = im;
    }
    __syncthreads();
    const int sample = blockIdx.x * 256 + threadIdx.x;
    if (sample >= HOP * (rows - 1)) return;
    // Frame f covers the samples from f * HOP - FFT / 2 on.
    const int last = (sample + FFT / 2) / HOP;
    float sum = 0, mass = 0;
    for (int f = last - FFT / HOP + 1; f <= last; f++) {
        if (f < 0 || f >= rows) continue;
        const int n = sample + FFT / 2 - f * HOP;
        mass += window[n];
        for (int part = 0; part < PARTS; part++) sum = fmaf(parts[f - first][part], basis[part * FFT + n], sum);
    }
    wav[sample] = fminf(fmaxf(sum / mass, -limit), limit);
}

/// The same rows through up to three snakes, each with its factors and their reciprocals, (2, channels).
struct Snakes {
    const float* x;
    const float* alpha[3];
    float* out[3];
    int size, channels;
};

__device__ __forceinline__ void snakes(const Snakes& p) {
    admit_next();
    await_previous();
    const int i = blockIdx.x * blockDim.x + threadIdx.x, k = blockIdx.y;
    if (i >= p.size) return;
    const int c = i % p.channels;
    const float x = p.x[i], s = sinf(x * p.alpha[k][c]);
    p.out[k][i] = x + s * s * p.alpha[k][p.channels + c];
}

/// The mean of three, and the leaky rectifier of it.
__device__ __forceinline__ void mean3(const float* a, const float* b, const float* c, float* out, int size, float slope) {
    admit_next();
    await_previous();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    const float x = (a[i] + b[i] + c[i]) / 3.0f;
    out[i] = x > 0 ? x : x * slope;
}
