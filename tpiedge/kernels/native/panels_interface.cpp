// The C interface of products with quantised matrices. Pointers and sizes were checked in Python.
#include <atomic>

#include "panels_products.h"

namespace {

// Pieces for each thread; slices of row-parallel matrices, for one tile of tokens. With four slices a thread, products of one
// token took longer on two Zen 4 cores: each adds sums of all outputs.
constexpr int64_t PROJECT_PIECES = 8;
constexpr int64_t CONTRACT_PIECES = 4;
constexpr int64_t SLICES = 2;
// Inputs of a row-parallel matrix, in whole units, whose sums stay in registers while tokens pass.
constexpr int64_t CHUNK_INPUTS = 1024;
// Quantised activations of the tokens that pass over a matrix together: what a core's own cache keeps beside a panel. Of
// row-parallel matrices only some inputs pass at a time; the sums of all their outputs are kept until the last has passed.
// So for these products Context's rooms take 4 MiB each at most, or what the least tiles take: more only for over 100,000
// inputs or 32,768 outputs. Contractions of f32 and bf16 keep sums in the same room, of 8 slices and up to 16 tokens: 512
// bytes for each output (interface.cpp).
constexpr int64_t PROJECT_BYTES = 768 << 10;
constexpr int64_t CONTRACT_BYTES = 4 << 20;
constexpr int64_t SUMS_BYTES = 4 << 20;
constexpr int64_t LEAST_TILES = 4;

// Where the rows come from that are quantised.
enum Source { PLAIN, NORMED, GATED };

struct Activations {
    const PanelKernels *panels;
    const tpiedge::Fetches *fetches;
    const tpiedge::Kernels *kernels;
    Source source;
    float factor;  // of every dx
    const float *x;  // [T, inputs]; the gates where GATED
    int64_t tokens;
    Inputs inputs;
    const float *weight;  // NORMED
    float eps;
    float *rows;      // NORMED: room for what it makes of the tokens that pass together
    const float *up;  // GATED: [T, inputs] in rows `up_stride` apart, or null
    int64_t up_stride;
    int64_t activation;
    uint8_t *to;

    int64_t tile_nbytes() const { return quantised_nbytes(inputs) * panels->tile_tokens; }
    int64_t tiles() const { return (tokens + panels->tile_tokens - 1) / panels->tile_tokens; }
};

void quantise_tile(const void *context, int64_t tile) {
    const Activations &a = *static_cast<const Activations *>(context);
    const int64_t first = tile * a.panels->tile_tokens, width = a.inputs.count;
    const int64_t left = a.tokens - first;
    const int64_t tokens = left < a.panels->tile_tokens ? left : a.panels->tile_tokens;
    const float *x = a.x + first * width;
    if (a.source == NORMED) {
        float *rows = a.rows + first * width;
        a.kernels->rms_norm(Rows{x, rows, width, 0, tokens, 1, width}, a.weight, a.eps);
        x = rows;
    } else if (a.source == GATED) {
        float *rows = const_cast<float *>(x);  // they are the caller's room
        for (int64_t t = 0; t < tokens; t++)
            a.kernels->activate(rows + t * width, a.up ? a.up + (first + t) * a.up_stride : nullptr, rows + t * width, width,
                                a.activation);
    }
    a.panels->quantise(x, width, tokens, a.inputs, a.factor, a.to + tile * a.tile_nbytes());
}

// Products that share activations. A part's pieces are panels; of row-parallel matrices each goes through all units.
struct Job {
    struct Part {
        PanelWeight weight;
        bool transposed;
        int64_t unit_panels;  // of a whole unit; all, where transposed
        int64_t panels;
        int64_t first_piece;
    } parts[tpiedge::MAX_PRODUCTS];
    int count = 0;
    const Activations *activations;
    // Row-parallel, of each panel and token: the sums of the units' parts, and of each panel and tile those of squares; or,
    // where 32 bits are too few, of each panel and token a unit's part (in place of squares) and the sums.
    int32_t *sums = nullptr;
    float *squares = nullptr;
    int64_t *wide_sums = nullptr;
    int64_t slices = 0;      // of a row-parallel matrix for one tile of tokens, each with own sums and squares
    float most_squares = 0;  // with which sums are known to fit
    mutable std::atomic<bool> fits{true};
    int64_t piece = 1;
    int64_t pieces = 0;
};

// The panels [first, last) of every unit of a row-parallel matrix, into the same outputs.
void contract_piece(const Job &job, const Job::Part &part, PanelRun run, int64_t first, int64_t last) {
    const PanelWeight &w = part.weight;
    const Activations &a = *job.activations;
    const Outputs outputs(w, a.tokens, first, last);
    const int64_t units = units_of(a.inputs), whole = w.rows / w.rows_per_unit;
    run.y_panel_stride = outputs.stride;
    run.sums = job.sums + first * outputs.stride;
    run.squares_panel_stride = PANEL * a.tiles();
    run.squares = job.squares + first * run.squares_panel_stride;
    const int64_t chunk = w.rows_per_unit >= CHUNK_INPUTS ? 1 : CHUNK_INPUTS / w.rows_per_unit;
    run.data_stride = w.unit_nbytes;
    for (int64_t unit = 0; unit < units; unit += run.units) {
        const uint8_t *at = w.data + unit * w.unit_nbytes;
        run.inputs = inputs_of_unit(a.inputs, unit);
        run.units = run.inputs < w.rows_per_unit ? 1 : whole - unit < chunk ? whole - unit : chunk;
        run_panels(*a.panels, w, run, at, first, outputs.count);
        run.unit_nbytes += run.units * quantised_nbytes(run.inputs);
        run.adds = true;
    }
    if (!all_within(run.squares, (last - first) * run.squares_panel_stride, job.most_squares)) job.fits = false;
    outputs.copy(run.sums, a.tokens, static_cast<int32_t *>(w.y));
}

// A slice's part of the panels of all units, as they lie in memory: the time of one tile of tokens goes into reading, and
// processors fetch long runs ahead best. Its sums have the room of all outputs, squares behind them.
void contract_slice(const Job &job, const Job::Part &part, PanelRun run, int64_t slice, int64_t panels) {
    const PanelWeight &w = part.weight;
    const Activations &a = *job.activations;
    const int64_t end = (slice + 1) * panels / job.slices;
    run.y_panel_stride = PANEL * a.tokens;
    run.squares_panel_stride = PANEL;
    run.adds = true;
    int32_t *const sums = job.sums + slice * part.panels * PANEL * (a.tokens + 1);
    float *const squares = reinterpret_cast<float *>(sums + part.panels * run.y_panel_stride);
    memset(sums, 0, part.panels * PANEL * (a.tokens + 1) * sizeof *sums);
    for (int64_t at = slice * panels / job.slices, some; at < end; at += some) {
        const int64_t unit = at / part.panels, panel = at % part.panels, left = part.panels - panel;
        some = end - at < left ? end - at : left;
        run.inputs = inputs_of_unit(a.inputs, unit);
        run.unit_nbytes = unit * quantised_nbytes(w.rows_per_unit);
        run.sums = sums + panel * run.y_panel_stride;
        run.squares = squares + panel * PANEL;
        run_panels(*a.panels, w, run, w.data + unit * w.unit_nbytes, panel, some * PANEL);
    }
}

// The sums of all slices, for the panels [first, last).
void add_slices(const Job &job, int64_t first, int64_t last) {
    const Job::Part &part = job.parts[0];
    const Activations &a = *job.activations;
    const Outputs outputs(part.weight, a.tokens, first, last);
    const int64_t slice = part.panels * PANEL * (a.tokens + 1), count = (last - first) * outputs.stride;
    int32_t *const sums = job.sums + first * outputs.stride;
    float *const squares = reinterpret_cast<float *>(job.sums + part.panels * outputs.stride) + first * PANEL;
    for (int64_t i = 1; i < job.slices; i++) {
        for (int64_t j = 0; j < count; j++)  // around, as kernels add: `fits` says whether that happened
            sums[j] = static_cast<int32_t>(static_cast<uint32_t>(sums[j]) + static_cast<uint32_t>(sums[i * slice + j]));
        for (int64_t j = 0; j < (last - first) * PANEL; j++) squares[j] += squares[i * slice + j];
    }
    if (!all_within(squares, (last - first) * PANEL, job.most_squares)) job.fits = false;
    outputs.copy(sums, a.tokens, static_cast<int32_t *>(part.weight.y));
}

// As contract_piece, unit by unit in 64 bits.
void contract_wide_piece(const Job &job, const Job::Part &part, PanelRun run, int64_t first, int64_t last) {
    const PanelWeight &w = part.weight;
    const Activations &a = *job.activations;
    const Outputs outputs(w, a.tokens, first, last);
    const int64_t units = units_of(a.inputs), count = (last - first) * outputs.stride;
    float *parts = job.squares + first * outputs.stride;
    int64_t *sums = job.wide_sums + first * outputs.stride;
    run.y_stride = PANEL;
    run.y_panel_stride = outputs.stride;
    run.y = parts;
    memset(sums, 0, count * sizeof *sums);
    memset(parts, 0, count * sizeof *parts);  // those of outputs that fill up a panel stay so
    for (int64_t unit = 0; unit < units; unit++) {
        run.inputs = inputs_of_unit(a.inputs, unit);
        run_panels(*a.panels, w, run, w.data + unit * w.unit_nbytes, first, outputs.count);
        run.unit_nbytes += quantised_nbytes(run.inputs);
        for (int64_t i = 0; i < count; i++) {
            const int64_t more = rounded(parts[i]);
            sums[i] = sums[i] == NOT_A_NUMBER || more == NOT_A_NUMBER ? NOT_A_NUMBER : sums[i] + more;
        }
    }
    outputs.copy(sums, a.tokens, static_cast<int64_t *>(w.y));
}

void compute_panels(const void *context, int64_t index) {
    const Job &job = *static_cast<const Job *>(context);
    int at = job.count - 1;
    while (index < job.parts[at].first_piece) at--;
    const Job::Part &part = job.parts[at];
    const int64_t first = (index - part.first_piece) * job.piece;
    const int64_t last = first + job.piece < part.panels ? first + job.piece : part.panels;
    const Activations &a = *job.activations;
    const int64_t stride = part.weight.y_stride;
    const PanelRun run{part.weight.format, nullptr, 1,     0,       0,       0, a.to, a.tile_nbytes(), 0, a.tokens, nullptr,
                       stride,  PANEL, nullptr, nullptr, 0, false,
                       a.fetches->ahead(part.weight.format, a.tokens)};
    if (job.slices) return contract_slice(job, part, run, index, part.panels * units_of(a.inputs));
    if (!part.transposed) return project_piece(*a.panels, part.weight, part.unit_panels, run, first, last);
    (job.wide_sums ? contract_wide_piece : contract_piece)(job, part, run, first, last);
}

// Rooms for what a row-parallel product sums up.
TPIEDGE_STATUS make_room(Context &context, Job &job, const Activations &a, const PanelWeight &w, Width width) {
    const int64_t count = a.tokens * filled_outputs(w.cols);
    if (width == WIDE) {
        job.wide_sums = context.wide_sums.of<int64_t>(count);
        job.squares = context.sums.of<float>(count);
        return job.wide_sums && job.squares ? DONE : NO_MEMORY;
    }
    const int64_t numbers = count + a.tiles() * filled_outputs(w.cols), threads = context.pool.threads();
    const int64_t slices = a.tiles() > 1 ? 0 : threads > 1 ? threads * SLICES : 1;
    if (slices * numbers * static_cast<int64_t>(sizeof(int32_t)) <= SUMS_BYTES) job.slices = slices;
    job.sums = context.sums.of<int32_t>(numbers * (job.slices ? job.slices : 1));
    job.squares = reinterpret_cast<float *>(job.sums + count);
    job.most_squares = squares_within(w.most, units_of(a.inputs));
    return job.sums ? DONE : NO_MEMORY;
}

// Of a column-parallel product.
void add_bias(Context &context, const PanelWeight &w, int64_t tokens) {
    if (!w.bias) return;
    float *y = static_cast<float *>(w.y);
    tpiedge::share_rows(context.pool, tokens, w.rows, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; t++)
            for (int64_t o = 0; o < w.rows; o++) y[t * w.y_stride + o] += w.bias[o];
    });
}

// Quantises a.tokens rows, then multiplies them. Without memory for either it does nothing.
TPIEDGE_STATUS multiply(Context &context, Activations &a, const PanelWeight *weights, int64_t count, bool transposed,
                        Width width) {
    Job job;
    job.activations = &a;
    a.to = context.activations.of<uint8_t>(a.tiles() * a.tile_nbytes());
    if (!a.to || (transposed && make_room(context, job, a, weights[0], width))) return NO_MEMORY;
    context.pool.run(quantise_tile, &a, a.tiles());
    int64_t panels = 0;
    for (int64_t i = 0; i < count; i++) {
        const PanelWeight &w = weights[i];
        const int64_t per_unit = ((transposed ? w.cols : w.rows_per_unit) + PANEL - 1) / PANEL;
        job.parts[job.count++] = Job::Part{w, transposed, per_unit, panels_of(w, transposed, per_unit), 0};
        panels += job.parts[i].panels;
    }
    job.piece = tpiedge::piece_of(panels, 1, context.pool.threads() * (transposed ? CONTRACT_PIECES : PROJECT_PIECES));
    for (int i = 0; i < job.count; i++) {
        job.parts[i].first_piece = job.pieces;
        job.pieces += (job.parts[i].panels + job.piece - 1) / job.piece;
    }
    context.pool.run(compute_panels, &job, job.slices ? job.slices : job.pieces);
    if (job.slices)
        tpiedge::share_rows(context.pool, panels, job.slices * PANEL * (a.tokens + 1),
                            [&](int64_t first, int64_t last) { add_slices(job, first, last); });
    for (int i = 0; i < job.count; i++) add_bias(context, job.parts[i].weight, a.tokens);
    return job.fits ? DONE : TOO_LARGE;
}

// Of one output and a tile of tokens, in the larger room: sums and a square, or wide sums.
int64_t sums_nbytes_of(int64_t tile_tokens, Width width) {
    if (width == WIDE) return tile_tokens * static_cast<int64_t>(sizeof(int64_t));
    return tile_tokens * static_cast<int64_t>(sizeof(int32_t)) + static_cast<int64_t>(sizeof(float));
}

// Tokens that pass together: whole tiles.
int64_t block_of(const Activations &a, const PanelWeight &w, bool transposed, Width width) {
    int64_t tiles = (transposed ? CONTRACT_BYTES : PROJECT_BYTES) / (a.tile_nbytes() + 1);
    if (transposed) {
        const int64_t sums_nbytes = filled_outputs(w.cols) * sums_nbytes_of(a.panels->tile_tokens, width);
        if (tiles > SUMS_BYTES / (sums_nbytes + 1)) tiles = SUMS_BYTES / (sums_nbytes + 1);
    }
    return a.panels->tile_tokens * (tiles > LEAST_TILES ? tiles : LEAST_TILES);
}

// `y` from row `tokens` on, of rows `stride` numbers apart.
void *moved(void *y, int64_t tokens, int64_t stride, int64_t nbytes) {
    return static_cast<uint8_t *>(y) + tokens * stride * nbytes;
}

// The same for any number of tokens, so many at a time as pass together.
TPIEDGE_STATUS multiply_all(Context &context, Activations a, const PanelWeight *weights, int64_t count, bool transposed,
                            Width width) {
    PanelWeight some[tpiedge::MAX_PRODUCTS];
    memcpy(some, weights, count * sizeof *weights);
    const int64_t tokens = a.tokens, inputs = a.inputs.count, block = block_of(a, weights[0], transposed, width);
    for (int64_t first = 0; first < tokens; first += block) {
        a.tokens = tokens - first < block ? tokens - first : block;
        if (const int status = multiply(context, a, some, count, transposed, width)) return status;
        a.x += a.tokens * inputs;
        if (a.up) a.up += a.tokens * a.up_stride;
        for (int64_t i = 0; i < count; i++)
            some[i].y = transposed ? moved(some[i].y, a.tokens, some[i].cols, width == WIDE ? 8 : 4)
                                   : moved(some[i].y, a.tokens, some[i].y_stride, 4);
    }
    return DONE;
}

Activations activations(const Context &context, Source source, const float *x, int64_t tokens, const PanelWeight &w,
                        bool transposed) {
    Activations a{};
    a.panels = context.panels;
    a.fetches = &context.fetches;
    a.kernels = context.kernels;
    a.source = source;
    a.factor = transposed ? factor_of(w) : 1.0f;
    a.x = x;
    a.tokens = tokens;
    a.inputs = inputs_of(w, transposed);
    return a;
}

}  // namespace

// y = x @ w.T of each weight; all have the same inputs.
TPIEDGE_EXPORT int tpiedge_panels_project(void *handle, const float *x, int64_t tokens, const PanelWeight *weights,
                                          int64_t count) {
    if (count == 0) return DONE;
    Context &context = *static_cast<Context *>(handle);
    const std::lock_guard<std::mutex> one_caller(context.rooms);
    return multiply_all(context, activations(context, PLAIN, x, tokens, weights[0], false), weights, count, false, NARROW);
}

// y = x @ w in steps of the grid of w: int32, or int64 where WIDE.
TPIEDGE_EXPORT int tpiedge_panels_contract(void *handle, const float *x, int64_t tokens, const PanelWeight *weight,
                                           int wide) {
    Context &context = *static_cast<Context *>(handle);
    const Width width = wide ? WIDE : NARROW;
    if (weight->rows == 0) return contract_nothing(*weight, tokens, width);
    const std::lock_guard<std::mutex> one_caller(context.rooms);
    return multiply_all(context, activations(context, PLAIN, x, tokens, *weight, true), weight, 1, true, width);
}

// Norm, gate and up, activation, down, whose result is as that of tpiedge_panels_contract. `inputs` [T, F], in rows
// `input_stride` apart, take the place of up's products, where there is no up. `scratch`: T (H + 2 F) floats, or T (H + F)
// without gate or up.
TPIEDGE_EXPORT int tpiedge_panels_ffn(void *handle, const PanelFFN *ffn, const float *x, const float *inputs,
                                      int64_t input_stride, void *y, int64_t tokens, float *scratch, int wide) {
    Context &context = *static_cast<Context *>(handle);
    const Width width = wide ? WIDE : NARROW;
    const bool gate = ffn->gate.data, given = !ffn->up.data;
    PanelWeight inner[2] = {gate ? ffn->gate : ffn->up, ffn->up}, down = ffn->down;
    down.y = y;
    if (down.rows == 0) return contract_nothing(down, tokens, width);
    const std::lock_guard<std::mutex> one_caller(context.rooms);
    float *first = scratch + tokens * inner[0].cols, *up = first + tokens * down.rows;
    inner[0].y = first;
    inner[1].y = up;
    Activations normed = activations(context, ffn->norm ? NORMED : PLAIN, x, tokens, inner[0], false);
    normed.weight = ffn->norm;
    normed.eps = static_cast<float>(ffn->eps);
    normed.rows = scratch;
    Activations gated = activations(context, GATED, first, tokens, down, true);
    gated.up = given ? inputs : gate ? up : nullptr;
    gated.up_stride = given ? input_stride : down.rows;
    gated.activation = ffn->activation;
    if (const int status = multiply_all(context, normed, inner, gate && !given ? 2 : 1, false, NARROW)) return status;
    return multiply_all(context, gated, &down, 1, true, width);
}
