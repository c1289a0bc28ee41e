// Calls whatever the kernels' library exports, on every instruction set that the CPU has, and the transport's
// conversions and all-reduces, with random shapes, and compares with slow references. The arguments are the instruction sets' names in
// the order of their numbers. Prints a line for each operation and instruction set, with a checksum of all results;
// ends with 1 at the first wrong one. With the argument "beyond" it reads beyond an array instead, to see whether
// somebody notices; with "fused" it multiplies and adds numbers that it reads (fused.cpp).
#include <sys/resource.h>

#include "check.h"

namespace {

void check_crc32() {
    Random random(4);
    Check check("crc32", "any");
    for (int64_t size = 0; size < 300; size += random.between(1, 5)) {
        Array<uint8_t> data(size);
        uint32_t wanted = 0xffffffff;
        for (uint8_t &byte : data) {
            byte = static_cast<uint8_t>(random.bits());
            wanted ^= byte;
            for (int bit = 0; bit < 8; bit++) wanted = (wanted >> 1) ^ (wanted & 1 ? 0xedb88320 : 0);
        }
        wanted = ~wanted;
        const int64_t first = random.between(0, size);
        const uint32_t before = tpiedge_crc32(data.data(), first, 0);
        const uint32_t result = tpiedge_crc32(data.data() + first, size - first, before);
        check.shape(size, first);
        check.same_bytes(&result, &wanted, sizeof wanted);
    }
}

// What measures the processor: here only that it reads what it says, and does not crash.
void check_probes() {
    Random random(8);
    Check check("probes", "any");
    for (int64_t lines = 0; lines < 40; lines += 4) {
        Array<uint64_t> words(8 * lines);
        uint64_t wanted = 0;
        for (uint64_t &word : words) wanted += word = random.bits();
        const uint64_t result = tpiedge_probe_read(words.data(), 64 * lines);
        check.shape(lines);
        check.same_bytes(&result, &wanted, sizeof wanted);
    }
    for (const int int8 : {0, 1}) {
        tpiedge_probe_multiply(int8, 3);
        if (tpiedge_probe_operations(int8) <= 0) check.same(0, 1);
    }
}

// More threads than one: the sanitizers see the hand-over, too.
void check_isa(int isa, const char *name) {
    void *handle = tpiedge_open(3, isa);
    if (!handle) {
        fprintf(stderr, "cannot start threads\n");
        exit(1);
    }
    check_products(handle, name);
    check_panels(handle, name);
    check_formats(handle, name);
    check_experts(handle, name);
    check_rooms(handle);
    check_elementwise(handle, name);
    check_attention(handle, name);
    check_kv(handle, name);
    check_attention_block(handle, name);
    check_golden_stack(handle, name);
    check_quantise(name);
    check_draw(name);
    tpiedge_close(handle);
}

void read_beyond() {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);  // it dies of this
    const Floats gate(63), up(64);
    Floats y(64);
    void *handle = tpiedge_open(1, tpiedge_best_isa());
    tpiedge_activate(handle, gate.data(), up.data(), y.data(), 64, tpiedge::SILU);
    tpiedge_close(handle);
}

}  // namespace

int main(int count, char **names) {
    if (count == 2 && !strcmp(names[1], "beyond")) {
        read_beyond();
        return 0;
    }
    if (count == 2 && !strcmp(names[1], "fused")) {
        print_fused();
        return 0;
    }
    check_crc32();
    check_probes();
    check_wire();
    check_reducer();
    for (int isa = 0; isa + 1 < count; isa++)
        if (tpiedge_has_isa(isa)) check_isa(isa, names[isa + 1]);
    // A number without a name would not have been checked.
    if (tpiedge_has_isa(count - 1) || tpiedge_best_isa() >= count - 1) {
        fprintf(stderr, "the library has more instruction sets than were named\n");
        return 1;
    }
    return 0;
}
