// V floats moved by one load or store instruction (V = 1, 2 or 4; the address is a multiple of 4 * V bytes).
#pragma once

template <int V>
struct alignas(4 * V) Vec {
    float at[V];
};

template <int V>
__device__ __forceinline__ void load(float* registers, const float* memory) {
    const Vec<V> v = *reinterpret_cast<const Vec<V>*>(memory);
#pragma unroll
    for (int i = 0; i < V; ++i) registers[i] = v.at[i];
}

template <int V>
__device__ __forceinline__ void store(float* memory, const float* registers) {
    Vec<V> v;
#pragma unroll
    for (int i = 0; i < V; ++i) v.at[i] = registers[i];
    *reinterpret_cast<Vec<V>*>(memory) = v;
}
