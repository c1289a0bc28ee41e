// Rows of the KV cache as tpiedge/kernels/kv_format.py says, slowly, and the pages that they lie in.
#ifndef TPIEDGE_TESTS_KV_H
#define TPIEDGE_TESTS_KV_H

#include <vector>

#include "check.h"

enum Format { F32, BF16, Q8, Q4, FORMATS };

// The bytes of a row of `width` numbers.
std::vector<uint8_t> encode(int format, const float *x, int64_t width);
// What they stand for.
std::vector<float> decode(int format, const uint8_t *row, int64_t width);

// One sequence's pages, each of them memory of its own that ends with the last part of the layer.
class Pages {
public:
    // For `count` positions, and more to fill the last page; `last`: the layer that lies behind the others.
    Pages(const PageLayout &last, int64_t count) {
        const int64_t heads_nbytes = (last.kv_heads - 1) * last.head_bytes;
        const int64_t part_nbytes = last.value_bytes + last.positions * last.row_bytes;
        for (int64_t at = 0; at < count; at += last.positions) {
            pages_.emplace_back(last.layer_offset + heads_nbytes + part_nbytes);
            table_.push_back(reinterpret_cast<int64_t>(pages_.back().data()));
        }
    }
    uint8_t *key(const PageLayout &layout, int64_t head, int64_t at) {
        return pages_[static_cast<size_t>(at / layout.positions)].data() + layout.layer_offset +
               head * layout.head_bytes + at % layout.positions * layout.row_bytes;
    }
    uint8_t *value(const PageLayout &layout, int64_t head, int64_t at) {
        return key(layout, head, at) + layout.value_bytes;
    }
    Span span(int64_t tokens, int64_t start, int64_t row) const { return Span{tokens, start, table_.data(), row}; }
    // Every byte of the pages.
    void same(Check &check, const Pages &wanted) const {
        for (size_t at = 0; at < pages_.size(); at++)
            check.same_bytes(pages_[at].data(), wanted.pages_[at].data(), pages_[at].size());
    }

private:
    std::vector<Array<uint8_t>> pages_;
    std::vector<int64_t> table_;
};

// Of pages of 64 or 128 positions, with room between and before their parts.
PageLayout random_layout(Random &random, int format, int64_t kv_heads, int64_t width);

#endif
