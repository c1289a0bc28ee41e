// Measures the most that this processor can do: bytes read from memory, products of f32 and of 8-bit numbers. One
// thread each; the caller starts as many at once as it wants to know of. For `tpiedge bench kernels` alone
// (kernels/probes.py).
//
// The fastest instructions that the processor has are used, whichever the kernels use.
#include <stdint.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "compiler.h"
#include "interface.h"
#include "x86_features.h"

namespace {

constexpr int64_t LINE = 64;
// Chains of results that do not wait for each other: an instruction's latency times how many start at once.
constexpr int CHAINS = 12;

using Words = uint64_t __attribute__((vector_size(LINE)));

// Four lines at a time: more than one read is under way, as in the kernels.
template <int AHEAD>
TPIEDGE_INLINE uint64_t sum_lines(const char *data, int64_t lines) {
    Words sums[4] = {};
    int64_t line = 0;
    for (; line + 4 <= lines; line += 4)
        for (int i = 0; i < 4; i++) {
            const char *from = data + (line + i) * LINE;
            __builtin_prefetch(from + AHEAD);
            Words words;
            memcpy(&words, from, sizeof words);
            sums[i] += words;
        }
    const Words all = sums[0] + sums[1] + sums[2] + sums[3];
    uint64_t sum = 0;
    for (int i = 0; i < 8; i++) sum += all[i];
    return sum;
}

constexpr int AHEAD = 4096;

uint64_t read_portable(const char *data, int64_t lines) { return sum_lines<AHEAD>(data, lines); }

// Products and sums of `rounds` times CHAINS vectors, through the compiler's own vectors. The result keeps it honest.
template <typename Vector>
TPIEDGE_INLINE float multiply_add(int64_t rounds) {
    Vector sums[CHAINS] = {};
    Vector a = {}, b = {};
    a += 0.999f;
    b += 0.001f;
    for (int64_t round = 0; round < rounds; round++)
        for (int i = 0; i < CHAINS; i++) sums[i] = sums[i] * a + b;
    Vector all = sums[0];
    for (int i = 1; i < CHAINS; i++) all += sums[i];
    return all[0];
}

struct Peak {
    int64_t (*run)(int64_t rounds);  // returns something that depends on every product
    int64_t operations;              // of a round
};

using Four = float __attribute__((vector_size(16)));

int64_t f32_portable(int64_t rounds) { return static_cast<int64_t>(multiply_add<Four>(rounds)); }

int64_t int8_portable(int64_t rounds) {
    uint32_t sums[CHAINS][4] = {};
    volatile int8_t seed = 3;
    int8_t a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = static_cast<int8_t>(seed + i), b[i] = static_cast<int8_t>(seed - i);
    for (int64_t round = 0; round < rounds; round++)
        for (int chain = 0; chain < CHAINS; chain++)
            for (int i = 0; i < 16; i++) sums[chain][i / 4] += static_cast<uint32_t>(a[i] * b[(i + chain) & 15]);
    int64_t all = 0;
    for (const auto &chain : sums)
        for (const uint32_t sum : chain) all += sum;
    return all;
}

// The instructions themselves: a compiler would move products out of the loop, join two, or keep sums in memory. Sums
// are registers 0 to 11; whatever the numbers are, they take the same time, so all are zero.
#define TPIEDGE_TWELVE(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

#if defined(__x86_64__)

__attribute__((target("avx512f"))) uint64_t read_avx512(const char *data, int64_t lines) {
    return sum_lines<AHEAD>(data, lines);
}

__attribute__((target("avx2"))) uint64_t read_avx2(const char *data, int64_t lines) {
    return sum_lines<AHEAD>(data, lines);
}

#define TPIEDGE_CLEAR(N) "vxorps %%xmm" #N ", %%xmm" #N ", %%xmm" #N "\n"
#define TPIEDGE_LOOP(DO)                                                                                             \
    int64_t result = 0;                                                                                              \
    if (rounds > 0)                                                                                                  \
        asm volatile(TPIEDGE_TWELVE(TPIEDGE_CLEAR) TPIEDGE_CLEAR(12) TPIEDGE_CLEAR(15) "1:\n" TPIEDGE_TWELVE(DO)     \
                     "dec %0\njnz 1b\nvmovq %%xmm0, %1\nvzeroupper\n"                                                \
                     : "+r"(rounds), "+r"(result)                                                                    \
                     :                                                                                               \
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                       "xmm11", "xmm12", "xmm15");                                                                   \
    return result

#define TPIEDGE_F32_512(N) "vfmadd231ps %%zmm15, %%zmm15, %%zmm" #N "\n"
#define TPIEDGE_F32_256(N) "vfmadd231ps %%ymm15, %%ymm15, %%ymm" #N "\n"
#define TPIEDGE_INT8_512(N) "vpdpbusd %%zmm15, %%zmm15, %%zmm" #N "\n"
#define TPIEDGE_INT8_VEX(N) "%{vex%} vpdpbusd %%ymm15, %%ymm15, %%ymm" #N "\n"
// Without an instruction for it: pairs of products, pairs of pairs, then the sum.
#define TPIEDGE_INT8_256(N)                    \
    "vpmaddubsw %%ymm15, %%ymm15, %%ymm12\n"   \
    "vpmaddwd %%ymm15, %%ymm12, %%ymm12\n"     \
    "vpaddd %%ymm12, %%ymm" #N ", %%ymm" #N "\n"

int64_t f32_avx512(int64_t rounds) { TPIEDGE_LOOP(TPIEDGE_F32_512); }
int64_t f32_fma(int64_t rounds) { TPIEDGE_LOOP(TPIEDGE_F32_256); }
int64_t int8_avx512(int64_t rounds) { TPIEDGE_LOOP(TPIEDGE_INT8_512); }
#if defined(TPIEDGE_AVX_VNNI)
int64_t int8_avx_vnni(int64_t rounds) { TPIEDGE_LOOP(TPIEDGE_INT8_VEX); }
#endif
int64_t int8_avx2(int64_t rounds) { TPIEDGE_LOOP(TPIEDGE_INT8_256); }

#elif defined(__aarch64__)

#define TPIEDGE_CLEAR(N) "movi v" #N ".16b, #0\n"
#define TPIEDGE_LOOP(BEFORE, DO)                                                                                     \
    int64_t result = 0;                                                                                              \
    if (rounds > 0)                                                                                                  \
        asm volatile(BEFORE TPIEDGE_TWELVE(TPIEDGE_CLEAR) TPIEDGE_CLEAR(16) "1:\n" TPIEDGE_TWELVE(DO)                \
                     "subs %0, %0, #1\nb.ne 1b\nfmov %1, d0\n"                                                       \
                     : "+r"(rounds), "+r"(result)                                                                    \
                     :                                                                                               \
                     : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v16");       \
    return result

#define TPIEDGE_F32_NEON(N) "fmla v" #N ".4s, v16.4s, v16.4s\n"
#define TPIEDGE_INT8_DOT(N) "sdot v" #N ".4s, v16.16b, v16.16b\n"

int64_t f32_neon(int64_t rounds) { TPIEDGE_LOOP("", TPIEDGE_F32_NEON); }
int64_t int8_dotprod(int64_t rounds) { TPIEDGE_LOOP(".arch armv8.2-a+dotprod\n", TPIEDGE_INT8_DOT); }

#endif

Peak f32_peak() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return {f32_avx512, 2 * 16 * CHAINS};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {f32_fma, 2 * 8 * CHAINS};
#elif defined(__aarch64__)
    return {f32_neon, 2 * 4 * CHAINS};
#endif
    return {f32_portable, 2 * 4 * CHAINS};
}

Peak int8_peak() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni"))
        return {int8_avx512, 2 * 64 * CHAINS};
#if defined(TPIEDGE_AVX_VNNI)
    if (__builtin_cpu_supports("avx2") && has_avx_vnni()) return {int8_avx_vnni, 2 * 32 * CHAINS};
#endif
    if (__builtin_cpu_supports("avx2")) return {int8_avx2, 2 * 32 * CHAINS};
#elif defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP) & (1 << 20)) return {int8_dotprod, 2 * 16 * CHAINS};
#endif
    return {int8_portable, 2 * 16 * CHAINS};
}

}  // namespace

// Reads `nbytes`, a multiple of four lines of 64, once and in order.
TPIEDGE_EXPORT uint64_t tpiedge_probe_read(const void *data, int64_t nbytes) {
    const char *bytes = static_cast<const char *>(data);
    const int64_t lines = nbytes / LINE;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return read_avx512(bytes, lines);
    if (__builtin_cpu_supports("avx2")) return read_avx2(bytes, lines);
#endif
    return read_portable(bytes, lines);
}

// Multiplications and additions of a round of tpiedge_probe_multiply; `int8`: of 8-bit numbers into 32-bit sums.
TPIEDGE_EXPORT int64_t tpiedge_probe_operations(int int8) { return (int8 ? int8_peak() : f32_peak()).operations; }

TPIEDGE_EXPORT int64_t tpiedge_probe_multiply(int int8, int64_t rounds) {
    return (int8 ? int8_peak() : f32_peak()).run(rounds);
}
