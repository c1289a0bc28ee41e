// Turning 16-bit numbers over with AVX2 (quantise.inl).

namespace {

inline __m256i sixteen(const uint16_t *from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)); }

// Of eight outputs sixteen inputs each: of inputs i and i + 8, in the halves of to[i].
inline void turn_over(const uint16_t *from, int64_t stride, __m256i *to) {
    __m256i pairs[8], fours[8];
    for (int r = 0; r < 4; r++) {
        const __m256i even = sixteen(from + 2 * r * stride), odd = sixteen(from + (2 * r + 1) * stride);
        pairs[2 * r] = _mm256_unpacklo_epi16(even, odd);
        pairs[2 * r + 1] = _mm256_unpackhi_epi16(even, odd);
    }
    for (int r = 0; r < 8; r += 4) {
        for (int half = 0; half < 2; half++) {
            fours[r + 2 * half] = _mm256_unpacklo_epi32(pairs[r + half], pairs[r + 2 + half]);
            fours[r + 2 * half + 1] = _mm256_unpackhi_epi32(pairs[r + half], pairs[r + 2 + half]);
        }
    }
    for (int i = 0; i < 4; i++) {
        to[2 * i] = _mm256_unpacklo_epi64(fours[i], fours[i + 4]);
        to[2 * i + 1] = _mm256_unpackhi_epi64(fours[i], fours[i + 4]);
    }
}

}  // namespace
