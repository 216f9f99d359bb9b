// decode_combine: the sums of subgroups, and of workgroups, become O and LSE
// (attention_decode.comp).
//
// The includer has struct Sums, STRIPES subgroups whose keys differ, and PASS_ROWS; after it,
// share_rows and put_rows, and then DEFINE_COMBINE_SUBGROUPS.

const uint ROW_QUADS = VALUE_DIM / 4;
const uint PASS_QUADS = PASS_ROWS * ROW_QUADS;
const uint SUMS_QUADS = STRIPES * PASS_QUADS;

shared vec4 scratch[SUMS_QUADS > WORKGROUP_SIZE ? SUMS_QUADS : WORKGROUP_SIZE];
shared vec2 row_sums[WORKGROUP_SIZE > STRIPES * ROWS ? WORKGROUP_SIZE : STRIPES * ROWS];  // m and l
shared bool is_last;

// A place in parts holds m and l of ROWS rows, and then their O.
const uint PLACE4 = (ROWS + 1) / 2 + ROWS * ROW_QUADS;

// rows_of returns how many of the ROWS rows of a unit there are.
uint rows_of(const Part part) { return min(ROWS, p.group * p.seq_q - part.row0); }

// store_row writes four columns of a row, whose sums are o and l relative to m.
void store_row(const Part part, const uint r, const uint quad_col, float m, float l, const vec4 o) {
    const uint head = head_of(part.kv_head, part.row0 + r);
    const uint query = query_of(part.row0 + r);
    float alpha = 1.0;
    if (SINKS) {
        const float sink = sinks[p.sinks_offset + head] * LOG2_E;
        const float top = max(m, sink);
        alpha = exp2(m - top);
        l = fma(l, alpha, exp2(sink - top));
        m = top;
    }
    const vec4 x = o * VALUE_SCALED(part, inverse_sum(l) * alpha);
    const uint at = HEAD_AT(o, part.batch, head) + query * p.o_stride_s + quad_col * 4;
    [[unroll]] for (uint e = 0; e < 4; e++) {
        o1[at + e] = NARROW(x[e]);
    }
    if (WRITE_LSE && quad_col == 0) {
        lse_out[HEAD_AT(lse, part.batch, head) + query * p.lse_stride_s] = lse(m, l);
    }
}

// leave_row writes four columns of a row, whose sums in this workgroup are o and l relative to m:
// to O where no other workgroup has keys of the unit, else to the workgroup's place in parts.
void leave_row(const Part part, const uint r, const uint quad_col, const float m, const float l, const vec4 o) {
    if (part.shared_by == 1) {
        store_row(part, r, quad_col, m, l, o);
        return;
    }
    const uint place = part.place * PLACE4;
    parts4[place + (ROWS + 1) / 2 + r * ROW_QUADS + quad_col] = o;
    if (quad_col == 0) {
        parts[place * 4 + r * 2] = m;
        parts[place * 4 + r * 2 + 1] = l;
    }
}

// put_quad puts four columns of row number r of a pass, as this stripe has them, into shared memory.
void put_quad(const uint r, const uint quad_col, const vec4 o) {
    scratch[stripe() * PASS_QUADS + r * ROW_QUADS + quad_col] = o;
}

// add_stripes leaves the rows of a pass.
void add_stripes(const Part part, const uint r0) {
    const uint quads = min(PASS_ROWS, rows_of(part) - r0) * ROW_QUADS;
    for (uint at = gl_LocalInvocationIndex; at < quads; at += WORKGROUP_SIZE) {
        const uint r = r0 + at / ROW_QUADS;
        float top = MAX_INIT;
        [[unroll]] for (uint s = 0; s < STRIPES; s++) {
            top = max(top, row_sums[s * ROWS + r].x);
        }
        float l = 0.0;
        vec4 o = vec4(0.0);
        [[unroll]] for (uint s = 0; s < STRIPES; s++) {
            const vec2 ml = row_sums[s * ROWS + r];
            const float alpha = exp2(ml.x - top);
            l = fma(ml.y, alpha, l);
            o = fma(vec4(alpha), scratch[s * PASS_QUADS + at], o);
        }
        leave_row(part, r, at % ROW_QUADS, top, l, o);
    }
}

// combine_subgroups adds up the sums of the stripes. The whole workgroup calls it.
#define DEFINE_COMBINE_SUBGROUPS                                  \
    void combine_subgroups(const Part part, inout Sums sums) {    \
        share_rows(sums);                                         \
        for (uint r0 = 0; r0 < rows_of(part); r0 += PASS_ROWS) {  \
            if (r0 > 0) {                                         \
                barrier(); /* scratch is read */                  \
            }                                                     \
            put_rows(sums, r0);                                   \
            barrier(); /* scratch and row_sums are written */     \
            add_stripes(part, r0);                                \
        }                                                         \
    }

// What is known of four columns of a row after some of its keys.
struct Quad {
    float m, l;
    vec4 o;
};

Quad merge(const Quad a, const Quad b) {
    const float m = max(a.m, b.m);  // finite, as MAX_INIT is
    const float x = exp2(a.m - m);
    const float y = exp2(b.m - m);
    return Quad(m, x * a.l + y * b.l, x * a.o + y * b.o);
}

// load_quad returns what the i-th workgroup of a unit left.
Quad load_quad(const Part part, const uint i, const uint at) {
    const uint place = (2 * (part.first_group + i) + (i == 0 ? 1 : 0)) * PLACE4;
    const uint r = at / ROW_QUADS;
    return Quad(parts[place * 4 + r * 2], parts[place * 4 + r * 2 + 1], parts4[place + (ROWS + 1) / 2 + at]);
}

// Places that an invocation loads at a time: one after the other, it would wait for each.
const uint AT_A_TIME = 8;

// combine_workgroups counts the workgroups whose sums of the unit are in parts; in the last
// of them it writes O and LSE. The whole workgroup calls it.
void combine_workgroups(const Part part) {
    memoryBarrierBuffer();  // parts are visible before they are counted
    barrier();              // the parts of the whole workgroup
    const uint counter = p.state_offset + 1 + part.unit;
    if (gl_LocalInvocationIndex == 0) {
        is_last = atomicAdd(state[counter], 1) == part.shared_by - 1;
        if (is_last) {
            state[counter] = 0;  // for the next call
        }
    }
    barrier();  // is_last is written
    if (!is_last) {
        return;
    }
    memoryBarrierBuffer();  // and the counter is read before they are
    const uint quads = rows_of(part) * ROW_QUADS;
    const uint span = min(quads, WORKGROUP_SIZE);
    const uint sharers = WORKGROUP_SIZE / span;  // invocations for the same four columns
    const uint sharer = gl_LocalInvocationIndex / span;
    for (uint base = 0; base < quads; base += span) {
        const uint at = base + gl_LocalInvocationIndex % span;
        const bool works = sharer < sharers && at < quads;
        Quad x = Quad(MAX_INIT, 0.0, vec4(0.0));
        if (works) {
            for (uint i = sharer; i < part.shared_by; i += sharers * AT_A_TIME) {
                Quad y[AT_A_TIME];
                [[unroll]] for (uint n = 0; n < AT_A_TIME; n++) {
                    y[n] = load_quad(part, min(i + n * sharers, part.shared_by - 1), at);
                }
                [[unroll]] for (uint n = 0; n < AT_A_TIME; n++) {
                    if (i + n * sharers < part.shared_by) {
                        x = merge(x, y[n]);
                    }
                }
            }
        }
        if (sharers > 1) {
            scratch[gl_LocalInvocationIndex] = x.o;
            row_sums[gl_LocalInvocationIndex] = vec2(x.m, x.l);
            barrier();  // they are written
        }
        if (works && sharer == 0) {
            for (uint t = 1; t < sharers; t++) {
                const uint from = gl_LocalInvocationIndex + t * span;
                x = merge(x, Quad(row_sums[from].x, row_sums[from].y, scratch[from]));
            }
            store_row(part, at / ROW_QUADS, at % ROW_QUADS, x.m, x.l, x.o);
        }
    }
}
