// A router's choice, as experts.py defines it, and a block of quantised experts in one call.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "mass.h"
#include "panels_products.h"

#include "mass.inl"

namespace {

constexpr int64_t MOST_EXPERTS = 1024;  // as in experts.py
// Of a piece of logits.
constexpr int64_t ROUTED_TOKENS = 32;
constexpr int64_t ROUTED_EXPERTS = 8;
// Pieces for each thread.
constexpr int64_t PROJECT_PIECES = 8;
constexpr int64_t CONTRACT_PIECES = 4;
// So many tokens at most are computed by slices (see Slices), if the slices' sums take no more bytes.
constexpr int64_t SLICED_TOKENS = 32;
constexpr int64_t SLICES_BYTES = 4 << 20;
// Reading a panel takes as long as multiplying it with so many rows.
constexpr int64_t READING = 4;
// A batch's rows take so many bytes: quantised inputs, products of gate and up, and quantised inputs of down. A batch has
// whole experts, unless an expert has more than MOST_ROWS or more than fit.
constexpr int64_t BATCH_BYTES = 8 << 20;
constexpr int64_t LEAST_ROWS = 64;
constexpr int64_t MOST_ROWS = 256;
// A panel's sums of MOST_ROWS rows, which are kept on the stack until they are added to the tokens' sums.
constexpr int64_t PARTS = MOST_ROWS * PANEL;
constexpr int64_t LEAST_TILE = 2;  // rows of any instruction set's tile
// Squares of MOST_ROWS parts of each unit are added up in f32. With so many units the error stays below a hundredth
// (squares_within).
constexpr int64_t MOST_UNITS = 600;

// The experts of one token, ascending, and their weights. Adds the bias to the logits.
void choose(float *logits, const Router &router, int64_t *ids, float *weights) {
    const int64_t experts = router.experts, chosen = router.chosen;
    int64_t order[MOST_EXPERTS], masses[MOST_EXPERTS];
    bool finite = true;
    for (int64_t e = 0; e < experts; e++) {
        order[e] = e;
        if (router.bias) logits[e] += router.bias[e];
        finite &= logits[e] - logits[e] == 0.0f;
    }
    if (!finite) {
        std::copy_n(order, chosen, ids);
        std::fill_n(weights, chosen, __builtin_nanf(""));
        return;
    }
    std::partial_sort(order, order + chosen, order + experts, [&](int64_t a, int64_t b) {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    const float best = logits[order[0]];
    std::sort(order, order + chosen);
    MassOf<Two>::all(logits, experts, best, 1.0, tpiedge::mass_bits(experts), masses);
    int64_t total = 0;
    for (int64_t i = 0; i < (router.normalised ? chosen : experts); i++) total += masses[router.normalised ? order[i] : i];
    for (int64_t i = 0; i < chosen; i++) {
        ids[i] = order[i];
        weights[i] = static_cast<float>(static_cast<double>(masses[order[i]]) / static_cast<double>(total));
        if (router.scale) weights[i] *= router.scale[order[i]];
    }
}

void route(Context &context, const Router &router, const float *x, int64_t tokens, int64_t width, float *logits, int64_t *ids,
           float *weights) {
    const tpiedge::Logits l{x, router.weights, logits, router.experts, width};
    const int64_t of_experts = (l.experts + ROUTED_EXPERTS - 1) / ROUTED_EXPERTS;
    const int64_t of_tokens = (tokens + ROUTED_TOKENS - 1) / ROUTED_TOKENS;
    const int64_t some = std::min(tokens, ROUTED_TOKENS) * ROUTED_EXPERTS * l.width;
    tpiedge::share_rows(context.pool, of_tokens * of_experts, some, [&](int64_t first, int64_t last) {
        for (int64_t piece = first; piece < last; piece++) {
            const int64_t token = piece / of_experts * ROUTED_TOKENS, expert = piece % of_experts * ROUTED_EXPERTS;
            context.kernels->logits(l, token, std::min(token + ROUTED_TOKENS, tokens), expert,
                                    std::min(expert + ROUTED_EXPERTS, l.experts));
        }
    });
    tpiedge::share_rows(context.pool, tokens, 16 * l.experts, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; t++)
            choose(l.y + t * l.experts, router, ids + t * router.chosen, weights + t * router.chosen);
    });
}

// Rows of one expert, of the list of all experts' rows.
struct Group {
    int64_t expert;
    int64_t first;
    int64_t count;
};

// Of one group.
struct Tile {
    const Group *group;
    int64_t first;
    int64_t count;
};

// The panels of gate or up of one group.
struct Part {
    PanelWeight weight;
    const Group *group;
    int64_t panels;
    int64_t piece;
    int64_t first_piece;
};

struct Mixture {
    Context &context;
    const PanelExperts &block;
    const Width width;
    const int64_t tokens;
    void *const y;
    const Inputs inputs, columns;  // of gate and up, of down
    const int64_t input_nbytes, column_nbytes;  // of a row, quantised
    int64_t most;  // rows of a batch

    // Of each token and one of its experts.
    int64_t *ids;
    float *weights;
    float *logits;
    uint8_t *quantised;  // tokens, each a tile
    float *squares;      // for each piece of a contraction and output of a panel, the sum of all parts' squares
    // Of the list of all experts' rows, ascending: the tokens, and their weights for the expert.
    int64_t *row_tokens;
    float *row_weights;
    Group *groups;
    int64_t group_count = 0;
    // Of a batch.
    Tile *tiles;
    Part *parts;
    uint8_t *gathered;
    float *inner;  // of each row, what gate gives, then up
    uint8_t *gated;

    Mixture(Context &context, const PanelExperts &block, Width width, int64_t tokens, void *y)
        : context(context), block(block), width(width), tokens(tokens), y(y), inputs(inputs_of(block.gate, false)),
          columns(inputs_of(block.down, true)), input_nbytes(quantised_nbytes(inputs)),
          column_nbytes(quantised_nbytes(columns)) {
        const int64_t row_nbytes = input_nbytes + column_nbytes + 2 * columns.count * static_cast<int64_t>(sizeof(float));
        most = std::min(std::max(BATCH_BYTES / row_nbytes, LEAST_ROWS), rows());
    }

    // Of each panel, or slice.
    int64_t squares_count() const {
        return std::max(filled_outputs(block.down.cols), PANEL * 2 * context.pool.threads());
    }
    // Of one sum.
    int64_t summed() const { return block.router.chosen * (units_of(columns) + (block.down_bias ? 1 : 0)); }
    // A sum has parts of all slices.
    void join_squares(int64_t slices) const {
        for (int64_t i = PANEL; i < slices * PANEL; i++) squares[i % PANEL] += std::exchange(squares[i], 0.0f);
    }
    // Of a piece of a batch.
    void add_squares(int64_t piece, const double *more) const {
        for (int64_t i = 0; i < PANEL; i++) squares[piece * PANEL + i] += static_cast<float>(more[i]);
    }
    int64_t rows() const { return tokens * block.router.chosen; }

    // Assigns room to the arrays; without memory returns the bytes they need.
    int64_t lay_out(uint8_t *memory) {
        int64_t at = 0;
        const auto take = [&](auto *&array, int64_t count) {
            using Element = std::remove_reference_t<decltype(*array)>;
            array = memory ? reinterpret_cast<Element *>(memory + at) : nullptr;
            at += tpiedge::whole_lines(count * static_cast<int64_t>(sizeof(Element)));
        };
        take(ids, rows());
        take(weights, rows());
        take(logits, tokens * block.router.experts);
        take(quantised, tokens * input_nbytes);
        take(squares, squares_count());
        take(row_tokens, rows());
        take(row_weights, rows());
        take(groups, rows());
        take(tiles, most);
        take(parts, 2 * most);
        take(gathered, most * input_nbytes);
        take(inner, 2 * most * columns.count);
        take(gated, most * column_nbytes);
        return at;
    }

    // Sorts the rows by experts.
    void group() {
        int64_t ends[MOST_EXPERTS + 1] = {};
        for (int64_t i = 0; i < rows(); i++) ends[ids[i] + 1]++;
        for (int64_t e = 0; e < block.router.experts; e++) {
            for (int64_t row = ends[e], end = ends[e] + ends[e + 1], some; row < end; row += some) {
                some = std::min({end - row, most, MOST_ROWS});
                groups[group_count++] = Group{e, row, some};
            }
            ends[e + 1] += ends[e];
        }
        for (int64_t i = 0; i < rows(); i++) {
            const int64_t row = ends[ids[i]]++;
            row_tokens[row] = i / block.router.chosen;
            row_weights[row] = weights[i];
        }
    }
};

// Groups that are computed together.
struct Batch {
    const Mixture &m;
    const Group *const first;
    const Group *last;
    int64_t rows = 0;
    int64_t tiles = 0;
    int64_t pieces = 0;  // of gate and up
    int64_t parts = 0;

    Batch(const Mixture &m, const Group *group) : m(m), first(group), last(group) {
        const int64_t tile = m.context.panels->tile_tokens;
        for (; last < m.groups + m.group_count && rows + last->count <= m.most; last++) {
            for (int64_t row = 0; row < last->count; row += tile)
                m.tiles[tiles++] = Tile{last, last->first + row, std::min(tile, last->count - row)};
            rows += last->count;
        }
        add_parts();
    }

    // Where in the batch's arrays a row of the list is.
    int64_t at(int64_t row) const { return row - first->first; }

    void add_parts() {
        const PanelWeight *const matrices[] = {&m.block.gate, &m.block.up};
        const int64_t panels = panels_of(m.block.gate, false, unit_panels());
        const int64_t work = 2 * panels * (rows + (last - first) * READING);
        const int64_t of_piece = work / (m.context.pool.threads() * PROJECT_PIECES);
        for (const Group *group = first; group < last; group++)
            for (int64_t i = 0; i < 2; i++) {
                Part &part = m.parts[parts++] = Part{*matrices[i], group, panels, 1, pieces};
                part.weight.data += group->expert * m.block.expert_nbytes;
                part.weight.y = m.inner + (2 * at(group->first) + i) * m.columns.count;
                part.piece = std::clamp(of_piece / (group->count + READING), int64_t{1}, panels);
                pieces += (panels + part.piece - 1) / part.piece;
            }
    }

    int64_t unit_panels() const { return (m.block.gate.rows_per_unit + PANEL - 1) / PANEL; }
    // A single row is used where it is.
    const uint8_t *activations(const Group &group) const {
        return group.count == 1 ? m.quantised + m.row_tokens[group.first] * m.input_nbytes
                                : m.gathered + at(group.first) * m.input_nbytes;
    }
};

// Of a group's rows; the caller says the rest.
PanelRun run_of(const Batch &batch, const Group &group, int64_t format, const uint8_t *activations, int64_t row_nbytes) {
    PanelRun run{};
    run.format = format;
    run.units = 1;
    run.activations = activations;
    run.tile_nbytes = row_nbytes * batch.m.context.panels->tile_tokens;
    run.tokens = group.count;
    run.ahead = batch.m.context.fetches.ahead(format, group.count);
    return run;
}

// A tile of tokens that are tiles themselves. With STEP inputs of one token side by side.
template <int STEP>
void gather(const Mixture &m, const Tile &tile, uint8_t *to) {
    const int64_t *const rows = m.row_tokens + tile.first;
    const int64_t tokens = tile.count;
    const uint8_t *from = m.quantised;
    // Two numbers of four bytes, then `inputs` codes.
    const auto group = [&](int64_t inputs) {
        for (int64_t t = 0; t < tokens; t++) {
            const uint8_t *const x = from + rows[t] * m.input_nbytes;
            memcpy(to + 4 * t, x, 4);
            memcpy(to + 4 * (tokens + t), x + 4, 4);
            uint8_t *const q = to + 8 * tokens + STEP * t;
            for (int64_t i = 0; i < inputs; i += STEP) memcpy(q + i * tokens, x + 8 + i, STEP);
        }
        to += (8 + inputs) * tokens;
        from += 8 + inputs;
    };
    int64_t left = m.inputs.count;
    for (; left >= tpiedge::GROUP; left -= tpiedge::GROUP) group(tpiedge::GROUP);
    if (left) group(filled(left));
    for (int64_t g = 0; g < groups_of(m.inputs.count); g++) group(0);
}

void gather_tile(const void *context, int64_t index) {
    const Batch &batch = *static_cast<const Batch *>(context);
    const Tile &tile = batch.m.tiles[index];
    if (tile.group->count == 1) return;
    uint8_t *const to = batch.m.gathered + batch.at(tile.first) * batch.m.input_nbytes;
    (batch.m.context.panels->step == 4 ? gather<4> : gather<8>)(batch.m, tile, to);
}

void project_piece(const void *context, int64_t index) {
    const Batch &batch = *static_cast<const Batch *>(context);
    const Part *const parts = batch.m.parts;
    const Part &part = *(std::upper_bound(parts, parts + batch.parts, index,
                                          [](int64_t piece, const Part &one) { return piece < one.first_piece; }) - 1);
    const int64_t first = (index - part.first_piece) * part.piece;
    PanelRun run =
        run_of(batch, *part.group, part.weight.format, batch.activations(*part.group), batch.m.input_nbytes);
    run.y_stride = 2 * batch.m.columns.count;
    run.y_panel_stride = PANEL;
    project_piece(*batch.m.context.panels, part.weight, batch.unit_panels(), run, first,
                  std::min(first + part.piece, part.panels));
}

// Biases, activation, weights and codes of what enters down, of some units of a tile: `columns` from `first` on.
void gate(const Batch &batch, const Tile &tile, int64_t first, const Inputs &columns) {
    const Mixture &m = batch.m;
    const int64_t width = m.columns.count, units_before = first / m.columns.per_unit;
    float *const rows = m.inner + 2 * batch.at(tile.first) * width + first;
    for (int64_t t = 0; t < tile.count; t++) {
        float *const row = rows + 2 * t * width;
        if (m.block.gate_bias) {
            const int64_t biases = tile.group->expert * width + first;
            for (int64_t i = 0; i < columns.count; i++) row[i] += m.block.gate_bias[biases + i];
            for (int64_t i = 0; i < columns.count; i++) row[width + i] += m.block.up_bias[biases + i];
        }
        m.context.kernels->activate(row, row + width, row, columns.count, m.block.activation);
        const float weight = m.row_weights[tile.first + t];
        for (int64_t i = 0; i < columns.count; i++) row[i] *= weight;
    }
    uint8_t *const to = m.gated + batch.at(tile.first) * m.column_nbytes;
    m.context.panels->quantise(rows, 2 * width, tile.count, columns, factor_of(m.block.down),
                               to + units_before * quantised_nbytes(m.columns.per_unit) * tile.count);
}

void gate_tile(const void *context, int64_t index) {
    const Batch &batch = *static_cast<const Batch *>(context);
    gate(batch, batch.m.tiles[index], 0, batch.m.columns);
}

void add_part(int32_t &sum, int32_t part) {  // around, as kernels add: `squares` say whether that happened
    sum = static_cast<int32_t>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(part));
}
void add_part(int64_t &sum, int64_t part) {
    sum = sum == NOT_A_NUMBER || part == NOT_A_NUMBER ? NOT_A_NUMBER : sum + part;
}
void add_part(int64_t &sum, float part) { add_part(sum, rounded(part)); }

// Parts of a group's rows, of the panels from `panel` on, added to the sums `y` [T, O].
template <class Sum, class Number>
void add_parts(const Mixture &m, const Group &group, const Number *parts, int64_t panel, int64_t outputs, void *y) {
    for (int64_t r = 0; r < group.count; r++) {
        Sum *const row = static_cast<Sum *>(y) + m.row_tokens[group.first + r] * m.block.down.cols + panel * PANEL;
        for (int64_t o = 0; o < outputs; o += PANEL) {
            const Number *const from = parts + (o * group.count + r * PANEL);
            const int64_t some = std::min(outputs - o, PANEL);
            for (int64_t i = 0; i < some; i++) add_part(row[o + i], from[i]);
        }
    }
}

// One more part of each row: its weight times the bias of down, of the outputs from `panel` on.
template <class Sum>
void add_bias(const Mixture &m, const Group &group, int64_t panel, int64_t outputs, double *squares, void *y) {
    const PanelWeight &down = m.block.down;
    const float *const bias = m.block.down_bias + group.expert * down.cols + panel * PANEL;
    const float factor = factor_of(down);
    for (int64_t r = group.first; r < group.first + group.count; r++) {
        Sum *const row = static_cast<Sum *>(y) + m.row_tokens[r] * down.cols + panel * PANEL;
        for (int64_t o = 0; o < outputs; o++) {
            const float part = m.row_weights[r] * bias[o] * factor;
            add_part(row[o], static_cast<Sum>(rounded(part)));
            squares[o % PANEL] += static_cast<double>(part) * part;
        }
    }
}

void add_bias(const Mixture &m, const Group &group, int64_t panel, int64_t outputs, double *squares, void *y) {
    if (m.block.down_bias)
        (m.width == WIDE ? add_bias<int64_t> : add_bias<int32_t>)(m, group, panel, outputs, squares, y);
}

// The units [unit, end) of a group times down, of the outputs from `panel` on. NARROW: their sums are added to `parts`, the
// squares of all outputs to `squares`. WIDE: they are added to y, and `parts` is room.
void contract(const Batch &batch, const Group &group, int64_t unit, int64_t end, int64_t panel, int64_t outputs, void *parts,
              double *squares, void *y) {
    const Mixture &m = batch.m;
    const PanelKernels &panels = *m.context.panels;
    const PanelWeight &w = m.block.down;
    const uint8_t *const data = w.data + group.expert * m.block.expert_nbytes;
    const int64_t tiles = (group.count + panels.tile_tokens - 1) / panels.tile_tokens;
    const bool narrow = m.width == NARROW;
    float of_tiles[MOST_ROWS * PANEL / LEAST_TILE];
    memset(of_tiles, 0, tiles * PANEL * sizeof(float));
    PanelRun run = run_of(batch, group, w.format, m.gated + batch.at(group.first) * m.column_nbytes, m.column_nbytes);
    run.y_panel_stride = PANEL * group.count;
    if (narrow) {
        run.sums = static_cast<int32_t *>(parts);
        run.squares = of_tiles;
        run.adds = true;
    } else {
        run.y = static_cast<float *>(parts);
        run.y_stride = PANEL;
    }
    run.data_stride = w.unit_nbytes;
    run.unit_nbytes = unit * quantised_nbytes(w.rows_per_unit);
    // The sums of many rows stay in registers. For few, memory is read in its order.
    const bool many = narrow && group.count > panels.tile_tokens;
    const int64_t whole = w.rows / w.rows_per_unit;
    for (; unit < end; unit += run.units) {
        run.inputs = inputs_of_unit(m.columns, unit);
        run.units = many && unit < whole ? std::min(whole, end) - unit : 1;
        run_panels(panels, w, run, data + unit * w.unit_nbytes, panel, outputs);
        run.unit_nbytes += run.units * quantised_nbytes(run.inputs);
        if (!narrow) add_parts<int64_t>(m, group, run.y, panel, outputs, y);
    }
    for (int64_t i = 0; i < tiles * PANEL; i++) squares[i % PANEL] += of_tiles[i];
}

// Some panels of all groups of a batch.
struct Contraction {
    const Batch &batch;
    const int64_t panels;
    const int64_t piece;

    explicit Contraction(const Batch &batch)
        : batch(batch), panels(filled_outputs(batch.m.block.down.cols) / PANEL),
          piece(tpiedge::piece_of(panels, 1, batch.m.context.pool.threads() * CONTRACT_PIECES)) {}

    static void compute(const void *context, int64_t index) {
        const Contraction &job = *static_cast<const Contraction *>(context);
        const Mixture &m = job.batch.m;
        const int64_t last = std::min((index + 1) * job.piece, job.panels);
        double squares[PANEL] = {};
        for (const Group *group = job.batch.first; group < job.batch.last; group++) {
            const int64_t some = PARTS / PANEL / group->count;
            for (int64_t panel = index * job.piece; panel < last; panel += some) {
                const int64_t end = std::min(std::min(panel + some, last) * PANEL, m.block.down.cols);
                job.contract_panels(*group, panel, end - panel * PANEL, squares);
            }
        }
        m.add_squares(index, squares);
    }
    void contract_panels(const Group &group, int64_t panel, int64_t outputs, double *squares) const {
        const Mixture &m = batch.m;
        alignas(64) uint8_t parts[PARTS * sizeof(int32_t)];
        memset(parts, 0, filled_outputs(outputs) * group.count * sizeof(int32_t));
        contract(batch, group, 0, units_of(m.columns), panel, outputs, parts, squares, m.y);
        if (m.width == NARROW)
            add_parts<int32_t>(m, group, reinterpret_cast<const int32_t *>(parts), panel, outputs, m.y);
        add_bias(m, group, panel, outputs, squares, m.y);
    }
};

// Few tokens: the time goes into reading, and processors fetch long runs ahead best. So each slice of the experts goes
// through gate, up and down as they lie in memory, unit by unit, and has sums of its own.
struct Slices {
    const Batch &batch;
    int64_t count;
    uint8_t *rooms = nullptr;

    explicit Slices(const Batch &batch) : batch(batch) {
        const Mixture &m = batch.m;
        count = m.context.pool.threads() * (2 * m.context.pool.threads() * nbytes() <= SLICES_BYTES ? 2 : 1);
        if (m.tokens > SLICED_TOKENS || count * nbytes() > SLICES_BYTES) count = 0;
    }
    int64_t sums() const { return batch.m.tokens * filled_outputs(batch.m.block.down.cols); }
    // Of one: sums, and parts of one group.
    int64_t nbytes() const { return sums() * ((batch.m.width == WIDE ? 8 : 4) + 4); }
    void *y(int64_t index) const { return rooms + index * nbytes(); }

    static void compute(const void *context, int64_t index) {
        const Slices &job = *static_cast<const Slices *>(context);
        const Mixture &m = job.batch.m;
        const int64_t units = units_of(m.columns), all = (job.batch.last - job.batch.first) * units;
        double squares[PANEL] = {};
        memset(job.y(index), 0, job.nbytes());
        for (int64_t at = index * all / job.count, end = (index + 1) * all / job.count, some; at < end; at += some) {
            some = std::min(units - at % units, end - at);
            job.add_units(job.batch.first[at / units], at % units, at % units + some, index, squares);
        }
        m.add_squares(index, squares);
    }
    void add_units(const Group &group, int64_t unit, int64_t end, int64_t index, double *squares) const {
        const Mixture &m = batch.m;
        const int64_t outputs = m.block.down.cols;
        uint8_t *const parts = static_cast<uint8_t *>(y(index + 1)) - sums() * 4;
        memset(parts, 0, filled_outputs(outputs) * group.count * sizeof(int32_t));
        if (unit == 0) add_bias(m, group, 0, outputs, squares, y(index));
        for (; unit < end; unit++) {
            project(group, unit);
            contract(batch, group, unit, unit + 1, 0, outputs, parts, squares, y(index));
        }
        if (m.width == NARROW)
            add_parts<int32_t>(m, group, reinterpret_cast<const int32_t *>(parts), 0, outputs, y(index));
    }
    // A unit of gate and up, and the codes of what enters down.
    void project(const Group &group, int64_t unit) const {
        const Mixture &m = batch.m;
        const int64_t first = unit * m.columns.per_unit, tile = m.context.panels->tile_tokens;
        const Inputs columns{inputs_of_unit(m.columns, unit), m.columns.per_unit};
        const PanelWeight *const matrices[] = {&m.block.gate, &m.block.up};
        for (int64_t i = 0; i < 2; i++) {
            const PanelWeight &w = *matrices[i];
            PanelRun run = run_of(batch, group, w.format, batch.activations(group), m.input_nbytes);
            run.inputs = w.cols;
            run.y = m.inner + (2 * batch.at(group.first) + i) * m.columns.count + first;
            run.y_stride = 2 * m.columns.count;
            run.y_panel_stride = PANEL;
            run_panels(*m.context.panels, w, run, w.data + group.expert * m.block.expert_nbytes + unit * w.unit_nbytes, 0,
                       columns.count);
        }
        for (int64_t row = 0; row < group.count; row += tile)
            gate(batch, Tile{&group, group.first + row, std::min(tile, group.count - row)}, first, columns);
    }
    template <class Sum>
    void add() const {
        const Mixture &m = batch.m;
        const int64_t width = m.block.down.cols;
        tpiedge::share_rows(m.context.pool, m.tokens * width, count, [&](int64_t first, int64_t last) {
            for (int64_t s = 0; s < count; s++)
                for (int64_t i = first; i < last; i++)
                    add_part(static_cast<Sum *>(m.y)[i], static_cast<const Sum *>(y(s))[i]);
        });
    }
};

TPIEDGE_STATUS compute(const Batch &batch) {
    const Mixture &m = batch.m;
    tpiedge::Pool &pool = m.context.pool;
    if (batch.rows > batch.last - batch.first) pool.run(gather_tile, &batch, batch.tiles);
    Slices slices(batch);
    if (slices.count) {
        slices.rooms = m.context.sums.of<uint8_t>(slices.count * slices.nbytes());
        if (!slices.rooms) return NO_MEMORY;
        pool.run(Slices::compute, &slices, slices.count);
        m.join_squares(slices.count);
        m.width == WIDE ? slices.add<int64_t>() : slices.add<int32_t>();
        return DONE;
    }
    const Contraction contraction(batch);
    pool.run(project_piece, &batch, batch.pieces);
    pool.run(gate_tile, &batch, batch.tiles);
    pool.run(Contraction::compute, &contraction, (contraction.panels + contraction.piece - 1) / contraction.piece);
    return DONE;
}

// The norm of all rows, and their codes.
const float *quantise_rows(const Mixture &m, const float *x, float *scratch) {
    const int64_t width = m.inputs.count;
    const PanelExperts &block = m.block;
    float *const rows = block.norm ? scratch : const_cast<float *>(x);  // only read
    tpiedge::share_rows(m.context.pool, m.tokens, 4 * width, [&](int64_t first, int64_t last) {
        if (block.norm)
            m.context.kernels->rms_norm(Rows{x + first * width, rows + first * width, width, 0, last - first, 1, width},
                                        block.norm, static_cast<float>(block.eps));
        for (int64_t t = first; t < last; t++)
            m.context.panels->quantise(rows + t * width, width, 1, m.inputs, 1.0f, m.quantised + t * m.input_nbytes);
    });
    return rows;
}

}  // namespace

// The experts of each token [T, chosen], ascending, and their weights. `logits`: room for T * experts floats. The router's
// norm is not applied.
TPIEDGE_EXPORT void tpiedge_route(void *handle, const float *x, int64_t tokens, int64_t width, const Router *router,
                                  float *logits, int64_t *ids, float *weights) {
    route(*static_cast<Context *>(handle), *router, x, tokens, width, logits, ids, weights);
}

// Norm, router, and of each token's experts gate and up, activation times weight, down: their sum, as that of
// tpiedge_panels_contract. `chosen`: room for the experts of each token, or null. `scratch`: T H floats.
TPIEDGE_EXPORT int tpiedge_panels_experts(void *handle, const PanelExperts *block, const float *x, void *y, int64_t *chosen,
                                          int64_t tokens, float *scratch, int wide) {
    Context &context = *static_cast<Context *>(handle);
    const Width width = wide ? WIDE : NARROW;
    PanelWeight down = block->down;
    down.y = y;
    if (const int status = contract_nothing(down, tokens, width); down.rows == 0 || tokens == 0) return status;
    const std::lock_guard<std::mutex> one_caller(context.rooms);
    Mixture m(context, *block, width, tokens, y);
    uint8_t *const memory = context.experts.of<uint8_t>(m.lay_out(nullptr));
    if (!memory) return NO_MEMORY;
    m.lay_out(memory);
    const Router &router = block->router;
    const auto route_rows = [&](const float *rows) {
        route(context, router, rows, tokens, m.inputs.count, m.logits, m.ids, m.weights);
    };
    if (router.norm) {
        const int64_t width = m.inputs.count;
        tpiedge_rms_norm(handle, x, scratch, width, 0, tokens, 1, width, router.norm, static_cast<float>(block->eps));
        route_rows(scratch);
    }
    const float *const rows = quantise_rows(m, x, scratch);
    if (!router.norm) route_rows(rows);
    if (chosen) std::copy_n(m.ids, m.rows(), chosen);
    m.group();
    memset(m.squares, 0, m.squares_count() * sizeof(float));
    for (const Group *group = m.groups; group < m.groups + m.group_count;) {
        const Batch batch(m, group);
        if (const int status = compute(batch)) return status;
        group = batch.last;
    }
    if (width == WIDE) return DONE;
    const float most = units_of(m.columns) <= MOST_UNITS ? squares_within(down.most, m.summed()) : -1.0f;
    return all_within(m.squares, m.squares_count(), most) ? DONE : TOO_LARGE;
}
