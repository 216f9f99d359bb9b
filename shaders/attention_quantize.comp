// attention_quantize: Q and K of a forward pass as elements of 8 bits (attention.Problem.Quant).
//
//     mean      = sum of K[j] / n                    over the n keys of a head that some row sees; 0 without SMOOTH
//     up        = a power of two of each channel of a head (attention.Problem)
//     k8[j]     = round((K[j] - mean) * up * H / k_scale[j])  one scale for the keys 64*b to 64*b+63
//     q8[i]     = round(Q[i] / up * H / scale)                one scale for each row
//     q_row[i]  = (scale / COLS, log2(e) * Scale * dot(Q[i], mean))
//
// H is the Hadamard matrix of the COLS columns of an invocation, of which each sum has all: H * Hᵀ is COLS.
//
//     x       Q (batch, num_heads, seq_q, head_dim) or K (batch, num_kv_heads, seq_kv, head_dim)  ELEM
//     y       q8 or k8: rows of COLS8 times 8 elements, zeros past head_dim; see SPREAD
//     values  q_row, or k_scale                                                                   f32
//     sums    (batch, num_kv_heads, chunks + 1, 3 * head_dim + 4): of a chunk of keys the sum, least and largest,
//             and how many; then mean and up
//
// Softmax does not see the mean: it adds the same number to all scores of a row. Keys that no row sees
// count nowhere, whatever they hold, and are 0. Q8 is negative where Scale is.
//
// In p (lib/params_fwd.glsl), q and o, or k and v, are x and y, y in bytes; lse are heads of sums, splits
// its chunks. Dispatch: (chunks, 1, blocks of 64 keys, or blocks of 64 rows; heads of x, for HEADS of K; batch).
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;  // a power of two
layout(constant_id = 1) const uint HEAD_DIM = 64;
layout(constant_id = 2) const uint STEP = 0;
layout(constant_id = 3) const bool SMOOTH = true;
layout(constant_id = 4) const uint COLS8 = 8;    // runs of 8 elements in a row of y
layout(constant_id = 5) const uint SPREAD = 1;   // a run takes this many times 8 bytes
layout(constant_id = 6) const uint FORMAT = 1;
layout(constant_id = 7) const bool ALIGNED = true;  // offsets and strides of x are multiples of 8
layout(local_size_x_id = 0) in;

const bool CAUSAL = false;  // whether there is a causal mask decides about no key of a plain problem

#define FEATURES_ID 8
#define FEATURES_BINDING 4
#include "lib/element.glsl"
#include "lib/params_fwd.glsl"
#include "lib/load8.glsl"
#include "lib/quant.glsl"

READ8(0, X, x)
layout(binding = 1, scalar) writeonly buffer Y { uvec2 y[]; };
layout(binding = 2, scalar) writeonly buffer Values { float values[]; };
layout(binding = 3, scalar) buffer Sums { float sums[]; };
layout(binding = 3, scalar) buffer Sums4 { vec4 sums4[]; };

#define LOGITS_IF_NEEDED
#include "lib/mask.glsl"
#include "lib/features.glsl"

const uint SUMS = 0;   // STEP: chunks of K
const uint HEADS = 1;  // their totals, and some rows of Q
const uint KEYS = 2;
const uint ROWS = 3;

const uint BLOCK = 64;  // rows of x for a workgroup, and keys that share a scale
const uint ROW_BYTES = COLS8 * 8 * SPREAD;
const uint SUM_LD = 3 * HEAD_DIM + 4;

// Of SUMS and HEADS, an invocation has one run of 8 columns.
const uint LANES = WORKGROUP_SIZE / COLS8;  // rows at a time

// Of KEYS and ROWS it has RUNS, TEAM apart.
const uint ROW_RUNS = HEAD_DIM / 8;
const uint RUNS = ROW_RUNS % 4 == 0 ? 4 : ROW_RUNS % 2 == 0 ? 2 : 1;
const uint COLS = RUNS * 8;
const uint TEAM = ROW_RUNS / RUNS;
const uint ABREAST = WORKGROUP_SIZE / TEAM;  // rows at a time
const uint ROUNDS = (BLOCK + ABREAST - 1) / ABREAST;

const uint FEW = WORKGROUP_SIZE < 16 ? WORKGROUP_SIZE : 16;  // invocations that read what all of a workgroup have written

shared vec4 part[2 * WORKGROUP_SIZE];

struct Run { vec4 lo, hi; };  // eight elements of a row

Run load_run(const uint at, const bool there) {
    const uvec4 v = there ? load_x(at) : uvec4(0);
    return Run(widen(v.xy), widen(v.zw));
}

float largest(const vec4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }
float largest(const Run r) { return largest(max(abs(r.lo), abs(r.hi))); }

float largest(const Run r[4]) {
    float most = 0.0;
    [[unroll]] for (uint j = 0; j < RUNS; j++) {
        most = max(most, largest(r[j]));
    }
    return most;
}

#include "lib/hadamard.glsl"

// bytes returns four elements as bytes. Here amax / scale is 127 but for its rounding: a number of that size
// and 3 * 2^22 add up to a float whose last bits are the whole number next to it.
uint bytes(const vec4 x, const float inverse) {
    if (FORMAT == E4M3) {
        return narrowed(x, inverse);
    }
    const uvec4 y = floatBitsToUint(x * inverse + 12582912.0);
    return bitfieldInsert(bitfieldInsert(y.x, y.y, 8, 8), bitfieldInsert(y.z, y.w, 8, 8), 16, 16);
}

// put_row writes sign * r as a row of y that begins at byte `at`, of which column `first` is the invocation's first.
void put_row(const uint at, const uint first, const Run r[4], const float scale, const float sign) {
    const float inverse = scale > 0.0 ? sign / scale : 0.0;
    [[unroll]] for (uint j = 0; j < RUNS; j++) {
        y[(at + (first + j * TEAM * 8) * SPREAD) / 8] = uvec2(bytes(r[j].lo, inverse), bytes(r[j].hi, inverse));
    }
    for (uint col = HEAD_DIM + first; col < COLS8 * 8; col += TEAM * 8) {
        y[(at + col * SPREAD) / 8] = uvec2(0);
    }
}

// seen reports whether some row sees a key of the sequence.
bool seen(const uint batch, const uint kv_head, const uint key) {
    if (key >= p.seq_kv) {
        return false;
    }
#ifdef FEATURES
    if (p.seq_q == 0 || int(key) < visible_from(0) || int(key) >= visible_keys(int(p.seq_q) - 1)) {
        return false;
    }
    bool any = false;
    for (uint h = 0; h < (BIAS && args.features.bias_stride_s == 0 ? p.heads_per_kv : 1); h++) {
        any = any || has_value(new_block(batch, kv_head * p.heads_per_kv + h, 0), key);
    }
    return any;
#endif
    return true;
}

#include "lib/quant_totals.glsl"

// put_keys writes a block of keys and their scale.
void put_keys(const uint batch, const uint kv_head, const uint lane, const uint first) {
    const uint sums = sums_at(batch, kv_head, p.splits) + first;
    Run held[ROUNDS][4];
    float most = 0.0;
    [[unroll]] for (uint i = 0; i < ROUNDS; i++) {
        const uint row = i * ABREAST + lane;
        const uint key = gl_WorkGroupID.x * BLOCK + row;
        const bool counts = lane < ABREAST && row < BLOCK && seen(batch, kv_head, key);
        [[unroll]] for (uint j = 0; j < RUNS; j++) {
            const uint col = j * TEAM * 8;
            const Run r = load_run(HEAD_AT(k, batch, kv_head) + key * p.k_stride_s + first + col, counts);
            const Run mean = load_sums(sums + col, counts);
            const Run up = load_sums(sums + col + HEAD_DIM, counts);
            held[i][j] = Run((r.lo - mean.lo) * up.lo, (r.hi - mean.hi) * up.hi);
        }
        held[i] = mixed(held[i]);
        most = max(most, largest(held[i]));
    }
    part[gl_LocalInvocationIndex].x = most;
    barrier();  // part written before it is read
    if (gl_LocalInvocationIndex < FEW) {
        for (uint i = gl_LocalInvocationIndex + FEW; i < WORKGROUP_SIZE; i += FEW) {
            most = max(most, part[i].x);
        }
        part[WORKGROUP_SIZE + gl_LocalInvocationIndex].x = most;
    }
    barrier();  // likewise
    for (uint i = 0; i < FEW; i++) {
        most = max(most, part[WORKGROUP_SIZE + i].x);
    }
    const float scale = scale_of(most);
    [[unroll]] for (uint i = 0; i < ROUNDS; i++) {
        const uint row = i * ABREAST + lane;
        const uint at = HEAD_AT(v, batch, kv_head) + (gl_WorkGroupID.x * BLOCK + row) * p.v_stride_s;
        if (lane < ABREAST && row < BLOCK && gl_WorkGroupID.x * BLOCK + row < p.seq_kv) {
            put_row(at, first, held[i], scale, 1.0);
            if (first == 0) {
                values[at / ROW_BYTES] = scale;
            }
        }
    }
}

// put_rows writes rows of Q, and their scales and shifts.
void put_rows(const uint batch, const uint head, const uint lane, const uint first) {
    const uint sums = sums_at(batch, head / p.heads_per_kv, p.splits) + first;
    const uvec4 one = uvec4(254u << 23);  // the bits of 1/x of a power of two are these less its own
    const float sign = p.q_sign != 0 ? -1.0 : 1.0;
    [[unroll]] for (uint i = 0; i < ROUNDS; i++) {
        const uint row = gl_WorkGroupID.x * BLOCK + i * ABREAST + lane;
        const bool exists = lane < ABREAST && i * ABREAST + lane < BLOCK && row < p.seq_q;
        Run r[4];
        float shift = 0.0;
        [[unroll]] for (uint j = 0; j < RUNS; j++) {
            const uint col = j * TEAM * 8;
            const Run x = load_run(HEAD_AT(q, batch, head) + row * p.q_stride_s + first + col, exists);
            const Run mean = load_sums(sums + col, exists);
            const Run up = load_sums(sums + col + HEAD_DIM, exists);
            shift += dot(x.lo, mean.lo) + dot(x.hi, mean.hi);
            r[j] = Run(x.lo * uintBitsToFloat(one - floatBitsToUint(up.lo)), x.hi * uintBitsToFloat(one - floatBitsToUint(up.hi)));
        }
        r = mixed(r);
        barrier();  // part is read before it is written
        part[gl_LocalInvocationIndex].xy = vec2(largest(r), shift);
        barrier();  // part written before it is read
        vec2 all = vec2(0.0);
        for (uint c = 0; c < TEAM; c++) {
            const vec2 x = part[min(lane, ABREAST - 1) * TEAM + c].xy;
            all = vec2(max(all.x, x.x), all.y + x.y);
        }
        if (exists) {
            const float scale = scale_of(all.x);
            const uint at = HEAD_AT(o, batch, head) + row * p.o_stride_s;
            put_row(at, first, r, scale, sign);
            if (first == 0) {
                values[at / ROW_BYTES * 2] = scale / float(COLS);
                values[at / ROW_BYTES * 2 + 1] = all.y * sign * PLAIN.scale_log2;
            }
        }
    }
}

void main() {
    const uint head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
#ifdef FEATURES
    enter_sequence(batch);
#endif
    if (STEP < KEYS) {
        const uint lane = gl_LocalInvocationIndex / COLS8;
        const uint col = gl_LocalInvocationIndex % COLS8 * 8;
        const bool there = HEAD_DIM == COLS8 * 8 || col < HEAD_DIM;
        if (STEP == SUMS) {
            add_keys(batch, head, lane, col, there);
        } else {
            add_chunks(batch, head, lane, col, there);
        }
        return;
    }
    const uint lane = gl_LocalInvocationIndex / TEAM;
    const uint first = gl_LocalInvocationIndex % TEAM * 8;
    if (STEP == KEYS) {
        put_keys(batch, head, lane, first);
    } else {
        put_rows(batch, head, lane, first);
    }
}
