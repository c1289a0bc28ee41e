// What the driver's parts share: random numbers that are the same on every machine, arrays with nothing behind their
// last element (what reads or writes there does not stay unseen), and the comparison with a reference.
#ifndef TPIEDGE_TESTS_CHECK_H
#define TPIEDGE_TESTS_CHECK_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "../../tpiedge/kernels/native/interface.h"

// splitmix64. One call for each expression: the order of others is the compiler's choice.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t bits() {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    // Both ends included.
    int64_t between(int64_t low, int64_t high) {
        return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
    }
    bool coin() { return bits() & 1; }
    // 0, or from 0 to `high`.
    int64_t sometimes(int64_t high) { return coin() ? between(0, high) : 0; }
    // From [-2, 2).
    float value() { return static_cast<float>(static_cast<int64_t>(bits() >> 40) - (1 << 23)) / (1 << 22); }

private:
    uint64_t state_;
};

// Memory for an array. With a sanitizer it comes from the heap, and begins at a multiple of 64 bytes; otherwise it ends
// where memory ends that may be touched.
#if defined(__SANITIZE_ADDRESS__)
inline void *take(size_t nbytes) {
    void *data = nullptr;
    if (posix_memalign(&data, 64, nbytes ? nbytes : 1)) abort();
    return data;
}
inline void release(void *data, size_t) { free(data); }
#else
inline size_t pages_nbytes(size_t nbytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return (nbytes + page - 1) / page * page;
}
inline void *take(size_t nbytes) {
    const size_t usable = pages_nbytes(nbytes), all = usable + pages_nbytes(1);
    void *pages = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || (usable && mprotect(pages, usable, PROT_READ | PROT_WRITE))) abort();
    return static_cast<char *>(pages) + (usable - nbytes);
}
inline void release(void *data, size_t nbytes) {
    const size_t usable = pages_nbytes(nbytes);
    munmap(static_cast<char *>(data) - (usable - nbytes), usable + pages_nbytes(1));
}
#endif

template <class T>
class Array {
public:
    explicit Array(int64_t size) : data_(static_cast<T *>(take(size * sizeof(T)))), size_(size) {
        memset(data_, 0xa5, size * sizeof(T));  // so that what is never written is no plausible number
    }
    Array(Array &&other) : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
    ~Array() {
        if (data_) release(data_, size_ * sizeof(T));
    }

    int64_t size() const { return size_; }
    T *data() { return data_; }
    const T *data() const { return data_; }
    T &operator[](int64_t at) { return data_[at]; }
    const T &operator[](int64_t at) const { return data_[at]; }
    T *begin() { return data_; }
    T *end() { return data_ + size_; }
    const T *begin() const { return data_; }
    const T *end() const { return data_ + size_; }

private:
    T *data_;
    int64_t size_;
};

using Floats = Array<float>;

inline Floats random_floats(Random &random, int64_t size) {
    Floats made(size);
    for (float &value : made) value = random.value();
    return made;
}

// Rows [T, width] at a stride; nothing lies behind the last one.
struct Strided {
    int64_t width;
    int64_t stride;
    Floats data;

    Strided(Random &random, int64_t tokens, int64_t width_)
        : width(width_), stride(width_ + random.sometimes(9)),
          data(random_floats(random, (tokens - 1) * stride + width_)) {}
    void copy(int64_t tokens, Floats &to) const {
        for (int64_t t = 0; t < tokens; t++)
            memcpy(to.data() + t * width, data.data() + t * stride, static_cast<size_t>(width) * sizeof(float));
    }
};

// f32 or bf16 elements.
struct Stored {
    Array<float> f32;
    Array<uint16_t> bf16;
    bool is_bf16;

    Stored(Random &random, int64_t size, bool half)
        : f32(random_floats(random, half ? 0 : size)), bf16(half ? size : 0), is_bf16(half) {
        for (uint16_t &bits : bf16) {
            const float value = random.value();
            memcpy(&bits, reinterpret_cast<const char *>(&value) + 2, 2);
        }
    }
    const void *data() const { return is_bf16 ? static_cast<const void *>(bf16.data()) : f32.data(); }
    double operator[](int64_t at) const {
        if (!is_bf16) return f32[at];
        const uint32_t bits = static_cast<uint32_t>(bf16[at]) << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
};

// One operation on one instruction set, over all its cases. The first result that is wrong ends the program.
class Check {
public:
    Check(const char *operation, const char *isa) : operation_(operation), isa_(isa) {}
    ~Check() { printf("%s %s %016llx\n", operation_, isa_, static_cast<unsigned long long>(hash_)); }

    void close(float result, double wanted, double tolerance) {
        add(result);
        if (!(fabs(result - wanted) <= tolerance)) fail(result, wanted);
    }
    // NaNs are all the same.
    void same(float result, float wanted) {
        add(result);
        if (bits_of(result) != bits_of(wanted)) fail(result, wanted);
    }
    void equal(int64_t result, int64_t wanted) {
        mix(static_cast<uint32_t>(result));
        mix(static_cast<uint32_t>(result >> 32));
        agree(result, wanted);
    }
    // Of what only some instruction sets may compute: no part of the checksum.
    void agree(int64_t result, int64_t wanted) {
        if (result != wanted) fail(static_cast<double>(result), static_cast<double>(wanted));
    }
    void same_bytes(const void *result, const void *wanted, int64_t size) {
        for (int64_t i = 0; i < size; i++) {
            const int got = static_cast<const uint8_t *>(result)[i];
            mix(static_cast<uint32_t>(got));
            if (got != static_cast<const uint8_t *>(wanted)[i]) fail(got, static_cast<const uint8_t *>(wanted)[i]);
        }
    }
    // Of the case that is being computed, for the message.
    void shape(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) {
        shape_[0] = a, shape_[1] = b, shape_[2] = c, shape_[3] = d;
    }

private:
    static uint32_t bits_of(float value) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        return value == value ? bits : 0x7fc00000;
    }
    void mix(uint32_t bits) { hash_ = (hash_ ^ bits) * 0x100000001b3; }
    void add(float value) { mix(bits_of(value)); }
    [[noreturn]] void fail(double result, double wanted) const {
        fprintf(stderr, "%s on %s, case %lld %lld %lld %lld: %.9g, not %.9g\n", operation_, isa_,
                static_cast<long long>(shape_[0]), static_cast<long long>(shape_[1]),
                static_cast<long long>(shape_[2]), static_cast<long long>(shape_[3]), result, wanted);
        exit(1);
    }

    const char *operation_;
    const char *isa_;
    uint64_t hash_ = 0xcbf29ce484222325;
    int64_t shape_[4] = {};
};

// Of a call that says whether it did all that it was to.
inline void complete(int status) {
    if (!status) return;
    fprintf(stderr, "a product ended with %d\n", status);
    exit(1);
}

// The end of a block that only adds.
inline BlockEnd plain_end() { return BlockEnd{nullptr, nullptr, 0, 1, 1, {}}; }

// The parts. `handle` computes with the instruction set `isa`.
void check_products(void *handle, const char *isa);
void check_panels(void *handle, const char *isa);
void check_formats(void *handle, const char *isa);
void check_rooms(void *handle);  // after check_panels and check_experts
void check_experts(void *handle, const char *isa);
void check_elementwise(void *handle, const char *isa);
void check_attention(void *handle, const char *isa);
void check_attention_block(void *handle, const char *isa);
void check_golden_stack(void *handle, const char *isa);
void print_fused();
void check_kv(void *handle, const char *isa);
void check_quantise(const char *isa);
void check_draw(const char *isa);
void check_wire();
void check_reducer();

#endif
