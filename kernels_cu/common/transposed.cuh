// Reductions of several values at once over the lanes of a warp.
#pragma once

// Join the values of Lanes neighbouring lanes for each of Rows rows, both powers of 2, Rows at most Lanes.  Two lanes exchange half of the
// rows that they have and join the other half, until lane t has row t % Rows alone; then all lanes of a row meet, to the same bits.
template <int Lanes, int Rows, typename Join, typename Value, int Held>
__device__ __forceinline__ Value reduce_rows(Value (&values)[Held], Join join) {
    static_assert(Held <= Lanes && Rows <= Held && (Rows & (Rows - 1)) == 0, "rows are a power of 2, at most as many as lanes");
    if constexpr (Rows == 1) {
        Value value = values[0];
#pragma unroll
        for (int distance = Held; distance < Lanes; distance *= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
        return value;
    } else {
        constexpr int Half = Rows / 2;
        const bool upper = threadIdx.x & Half;
#pragma unroll
        for (int r = 0; r < Half; ++r) {
            const Value given = upper ? values[r] : values[r + Half], kept = upper ? values[r + Half] : values[r];
            values[r] = join(kept, __shfl_xor_sync(0xffffffffu, given, Half));
        }
        return reduce_rows<Lanes, Half>(values, join);
    }
}
