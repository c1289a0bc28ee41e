// The C interface of products with quantised matrices. Pointers and sizes were checked in Python.
#include <stdint.h>
#include <string.h>

#include "context.h"

namespace {

using tpiedge::Context;
using tpiedge::Inputs;
using tpiedge::PANEL;
using tpiedge::PanelKernels;
using tpiedge::PanelRun;
using tpiedge::Rows;

// Pieces for each thread. Those of row-parallel matrices read a run of each unit; where the time goes into reading, that
// is to be long, because the processor begins anew to fetch ahead with every run. They are so few then that a thread that
// lost its core holds up the others for up to half its share (see piece_of): the longer runs gain more.
constexpr int64_t PROJECT_PIECES = 8;
constexpr int64_t CONTRACT_PIECES = 4;
constexpr int64_t READING_PIECES = 2;
// Inputs of a row-parallel matrix, in whole units, whose sums stay in registers while tokens pass. One tile of tokens takes
// unit by unit, because its time goes into reading, and then a piece reads the longest runs.
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
    const tpiedge::Kernels *kernels;
    Source source;
    const float *x;  // [T, inputs]; the gates where GATED
    int64_t tokens;
    Inputs inputs;
    const float *weight;  // NORMED
    float eps;
    float *rows;      // NORMED: room for what it makes of the tokens that pass together
    const float *up;  // GATED: [T, inputs]
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
            a.kernels->swiglu(rows + t * width, a.up + (first + t) * width, rows + t * width, width);
    }
    a.panels->quantise(x, width, tokens, a.inputs, a.to + tile * a.tile_nbytes());
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
    float *sums;  // row-parallel: of each panel and token
    int64_t piece = 1;
    int64_t pieces = 0;
};

// `outputs` from `panel` on of one unit at `unit`.
void run_panels(const Job &job, const PanelWeight &w, PanelRun run, const uint8_t *unit, int64_t panel,
                int64_t outputs) {
    run.data = unit + panel * panel_nbytes(run.inputs, w.bits);
    run.outputs = outputs;
    const PanelKernels &kernels = *job.activations->panels;
    (w.bits == 4 ? kernels.q4 : kernels.q8)(run);
}

// The panels [first, last) of a column-parallel matrix, unit by unit.
void project_piece(const Job &job, const Job::Part &part, PanelRun run, int64_t first, int64_t last) {
    const PanelWeight &w = part.weight;
    run.inputs = w.cols;
    while (first < last) {
        const int64_t unit = first / part.unit_panels, panel = first % part.unit_panels;
        const int64_t begin = unit * w.rows_per_unit + panel * PANEL;
        const int64_t some = last - first < part.unit_panels - panel ? last - first : part.unit_panels - panel;
        int64_t end = begin + some * PANEL;
        if (end > (unit + 1) * w.rows_per_unit) end = (unit + 1) * w.rows_per_unit;
        if (end > w.rows) end = w.rows;
        run.y = w.y + begin;
        const uint8_t *at = w.data + unit * w.unit_nbytes;
        run_panels(job, w, run, at, panel, end - begin);
        first += some;
    }
}

// The panels [first, last) of every unit of a row-parallel matrix, into the same outputs. They are summed where they lie
// side by side: rows of y are often so far apart that the CPU's caches keep only a few of them.
void contract_piece(const Job &job, const Job::Part &part, PanelRun run, int64_t first, int64_t last) {
    const PanelWeight &w = part.weight;
    const Activations &a = *job.activations;
    const int64_t begin = first * PANEL, outputs = (last * PANEL < w.cols ? last * PANEL : w.cols) - begin;
    const int64_t units = units_of(a.inputs), whole = w.rows / w.rows_per_unit;
    run.y_stride = PANEL;
    run.y_panel_stride = PANEL * a.tokens;
    run.y = job.sums + first * run.y_panel_stride;
    const int64_t chunk = a.tiles() == 1 || w.rows_per_unit >= CHUNK_INPUTS ? 1 : CHUNK_INPUTS / w.rows_per_unit;
    run.data_stride = w.unit_nbytes;
    for (int64_t unit = 0; unit < units; unit += run.units) {
        const uint8_t *at = w.data + unit * w.unit_nbytes;
        run.inputs = inputs_of_unit(a.inputs, unit);
        run.units = run.inputs < w.rows_per_unit ? 1 : whole - unit < chunk ? whole - unit : chunk;
        run_panels(job, w, run, at, first, outputs);
        run.unit_nbytes += run.units * quantised_nbytes(run.inputs);
        run.adds = true;
    }
    for (int64_t t = 0; t < a.tokens; t++)
        for (int64_t o = 0; o < outputs; o += PANEL) {
            const int64_t count = outputs - o < PANEL ? outputs - o : PANEL;
            memcpy(w.y + t * w.cols + begin + o, run.y + o * a.tokens + t * PANEL, count * sizeof(float));
        }
}

void compute_panels(const void *context, int64_t index) {
    const Job &job = *static_cast<const Job *>(context);
    int at = job.count - 1;
    while (index < job.parts[at].first_piece) at--;
    const Job::Part &part = job.parts[at];
    const int64_t first = (index - part.first_piece) * job.piece;
    const int64_t last = first + job.piece < part.panels ? first + job.piece : part.panels;
    const Activations &a = *job.activations;
    const int64_t stride = part.weight.rows;
    const PanelRun run{nullptr, 1, 0, 0, 0, a.to, a.tile_nbytes(), 0, a.tokens, nullptr, stride, PANEL, false};
    (part.transposed ? contract_piece : project_piece)(job, part, run, first, last);
}

int64_t panels_of(const PanelWeight &w, bool transposed, int64_t unit_panels) {
    if (transposed || w.rows == 0) return transposed ? unit_panels : 0;
    const int64_t units = (w.rows + w.rows_per_unit - 1) / w.rows_per_unit;
    const int64_t last = w.rows - (units - 1) * w.rows_per_unit;
    return (units - 1) * unit_panels + (last + PANEL - 1) / PANEL;
}

// Into which a product is cut for so many threads.
int64_t pieces_for(int64_t threads, int64_t tiles, bool transposed) {
    if (!transposed) return threads * PROJECT_PIECES;
    if (tiles > 1) return threads * CONTRACT_PIECES;
    return threads > 1 ? threads * READING_PIECES : 1;
}

int64_t filled_outputs(int64_t outputs) { return (outputs + PANEL - 1) / PANEL * PANEL; }

// Quantises a.tokens rows, then multiplies them. Without memory for either it does nothing.
TPIEDGE_STATUS multiply(Context &context, Activations &a, const PanelWeight *weights, int64_t count, bool transposed) {
    Job job;
    job.activations = &a;
    job.sums = transposed ? context.sums.of<float>(a.tokens * filled_outputs(weights[0].cols)) : nullptr;
    a.to = context.activations.of<uint8_t>(a.tiles() * a.tile_nbytes());
    if (!a.to || (transposed && !job.sums)) return 1;
    context.pool.run(quantise_tile, &a, a.tiles());
    int64_t panels = 0;
    for (int64_t i = 0; i < count; i++) {
        const PanelWeight &w = weights[i];
        const int64_t per_unit = ((transposed ? w.cols : w.rows_per_unit) + PANEL - 1) / PANEL;
        job.parts[job.count++] = Job::Part{w, transposed, per_unit, panels_of(w, transposed, per_unit), 0};
        panels += job.parts[i].panels;
    }
    job.piece = tpiedge::piece_of(panels, 1, pieces_for(context.pool.threads(), a.tiles(), transposed));
    for (int i = 0; i < job.count; i++) {
        job.parts[i].first_piece = job.pieces;
        job.pieces += (job.parts[i].panels + job.piece - 1) / job.piece;
    }
    context.pool.run(compute_panels, &job, job.pieces);
    return 0;
}

Inputs inputs_of(const PanelWeight &w, bool transposed) {
    return transposed ? Inputs{w.rows, w.rows_per_unit} : Inputs{w.cols, w.cols > 0 ? w.cols : 1};
}

// Tokens that pass together: whole tiles.
int64_t block_of(const Activations &a, const PanelWeight &w, bool transposed) {
    int64_t tiles = (transposed ? CONTRACT_BYTES : PROJECT_BYTES) / (a.tile_nbytes() + 1);
    if (transposed) {
        const int64_t sums_nbytes = a.panels->tile_tokens * filled_outputs(w.cols) * static_cast<int64_t>(sizeof(float));
        if (tiles > SUMS_BYTES / (sums_nbytes + 1)) tiles = SUMS_BYTES / (sums_nbytes + 1);
    }
    return a.panels->tile_tokens * (tiles > LEAST_TILES ? tiles : LEAST_TILES);
}

// The same for any number of tokens, so many at a time as pass together.
TPIEDGE_STATUS multiply_all(Context &context, Activations a, const PanelWeight *weights, int64_t count,
                            bool transposed) {
    PanelWeight moved[tpiedge::MAX_PRODUCTS];
    memcpy(moved, weights, count * sizeof *weights);
    const int64_t tokens = a.tokens, width = a.inputs.count, block = block_of(a, weights[0], transposed);
    for (int64_t first = 0; first < tokens; first += block) {
        a.tokens = tokens - first < block ? tokens - first : block;
        if (multiply(context, a, moved, count, transposed)) return 1;
        a.x += a.tokens * width;
        if (a.up) a.up += a.tokens * width;
        for (int64_t i = 0; i < count; i++)
            moved[i].y += a.tokens * (transposed ? weights[i].cols : weights[i].rows);
    }
    return 0;
}

}  // namespace

// y = x @ w.T of each weight; all have the same inputs.
TPIEDGE_EXPORT int tpiedge_panels_project(void *handle, const float *x, int64_t tokens, const PanelWeight *weights,
                                          int64_t count) {
    if (count == 0) return 0;
    Context &context = *static_cast<Context *>(handle);
    const std::lock_guard<std::mutex> one_caller(context.rooms);
    const Activations a{context.panels, context.kernels, PLAIN,   x,       tokens, inputs_of(weights[0], false),
                        nullptr,        0.0f,            nullptr, nullptr, nullptr};
    return multiply_all(context, a, weights, count, false);
}

// y = x @ w.
TPIEDGE_EXPORT int tpiedge_panels_contract(void *handle, const float *x, int64_t tokens, const PanelWeight *weight) {
    Context &context = *static_cast<Context *>(handle);
    if (weight->rows == 0) {
        memset(weight->y, 0, tokens * weight->cols * sizeof(float));
        return 0;
    }
    const std::lock_guard<std::mutex> one_caller(context.rooms);
    const Activations a{context.panels, context.kernels, PLAIN,   x,       tokens, inputs_of(*weight, true),
                        nullptr,        0.0f,            nullptr, nullptr, nullptr};
    return multiply_all(context, a, weight, 1, true);
}

// Norm, gate and up, SwiGLU, down (`weights` in this order, without y). `scratch`: T (H + 2 F) floats.
TPIEDGE_EXPORT int tpiedge_panels_ffn(void *handle, const PanelWeight *weights, const float *x, float *y, int64_t tokens,
                                      const float *norm, float eps, float *scratch) {
    Context &context = *static_cast<Context *>(handle);
    PanelWeight gate_up[2] = {weights[0], weights[1]}, down = weights[2];
    if (down.rows == 0) {
        memset(y, 0, tokens * down.cols * sizeof(float));
        return 0;
    }
    const std::lock_guard<std::mutex> one_caller(context.rooms);
    float *gate = gate_up[0].y = scratch + tokens * gate_up[0].cols;
    const float *up = gate_up[1].y = gate + tokens * down.rows;
    down.y = y;
    const Activations normed{context.panels, context.kernels, NORMED,  x,       tokens, inputs_of(gate_up[0], false),
                             norm,           eps,             scratch, nullptr, nullptr};
    const Activations gated{context.panels, context.kernels, GATED,   gate, tokens, inputs_of(down, true),
                            nullptr,        0.0f,            nullptr, up,   nullptr};
    if (multiply_all(context, normed, gate_up, 2, false)) return 1;
    return multiply_all(context, gated, &down, 1, true);
}
