// Elements of a matrix as the bits that matrix instructions take, whatever their type.
#pragma once

// An unsigned integer of as many bytes as an element has.
template <int BYTES> struct Bits;
template <> struct Bits<1> { using type = unsigned char; };
template <> struct Bits<2> { using type = unsigned short; };
template <> struct Bits<4> { using type = unsigned; };

// Four bytes of row `row` of a matrix of `rows` x `columns` elements of type T, from element `column` on; zeros where they lie outside.
template <class T>
__device__ __forceinline__ unsigned word_of_row(const void* matrix, int rows, int columns, int row, int column) {
    using bits = typename Bits<T::bytes>::type;
    const bits* from = static_cast<const bits*>(matrix) + static_cast<long long>(row) * columns;
    unsigned word = 0;
#pragma unroll
    for (int i = 0; i < 4 / T::bytes; ++i)
        if (row < rows && column + i < columns) word |= static_cast<unsigned>(from[column + i]) << 8 * T::bytes * i;
    return word;
}
