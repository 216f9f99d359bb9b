// quant_totals: the totals of a head's keys, and what follows from them: mean and up of
// attention_quantize.comp, which declares all that is used here.
//
// A workgroup has LANES rows of COLS8 invocations, each with a run of 8 columns.

uint sums_at(const uint batch, const uint kv_head, const uint chunk) {
    return (HEAD_AT(lse, batch, kv_head) * (p.splits + 1) + chunk) * SUM_LD;
}

Run load_sums(const uint at, const bool there) {
    return Run(there ? sums4[at / 4] : vec4(0.0), there ? sums4[at / 4 + 1] : vec4(0.0));
}

void put_sums(const uint at, const Run r) {
    sums4[at / 4] = r.lo;
    sums4[at / 4 + 1] = r.hi;
}

// Totals of keys: of a run of columns their sum, least and largest, and how many they are.
struct Totals { Run of[3]; float n; };

const float MOST = 3.402823466e38;
const Totals NO_KEYS = Totals(Run[3](Run(vec4(0.0), vec4(0.0)), Run(vec4(MOST), vec4(MOST)), Run(vec4(-MOST), vec4(-MOST))), 0.0);

Run combine(const uint what, const Run a, const Run b) {
    switch (what) {
    case 0: return Run(a.lo + b.lo, a.hi + b.hi);
    case 1: return Run(min(a.lo, b.lo), min(a.hi, b.hi));
    default: return Run(max(a.lo, b.lo), max(a.hi, b.hi));
    }
}

// all_lanes returns the totals of all lanes, in lane 0. Every invocation calls it.
Totals all_lanes(Totals t, const uint lane, const uint col) {
    [[unroll]] for (uint what = 0; what < 4; what++) {
        barrier();  // part is read before it is written
        part[2 * gl_LocalInvocationIndex] = what < 3 ? t.of[what].lo : vec4(t.n);
        part[2 * gl_LocalInvocationIndex + 1] = what < 3 ? t.of[what].hi : vec4(0.0);
        barrier();  // part written before it is read
        for (uint i = 1; i < LANES && lane == 0; i++) {
            const uint at = 2 * (i * COLS8 + col / 8);
            if (what < 3) {
                t.of[what] = combine(what, t.of[what], Run(part[at], part[at + 1]));
            } else {
                t.n += part[at].x;
            }
        }
    }
    return t;
}

// add_keys writes the totals of a chunk of keys.
void add_keys(const uint batch, const uint kv_head, const uint lane, const uint col, const bool there) {
    const uint chunk = (p.seq_kv + p.splits - 1) / p.splits;
    const uint end = min((gl_WorkGroupID.x + 1) * chunk, p.seq_kv);
    Totals t = NO_KEYS;
    for (uint key = gl_WorkGroupID.x * chunk + lane; key < end; key += LANES) {
        if (lane < LANES && seen(batch, kv_head, key)) {
            const Run r = load_run(HEAD_AT(k, batch, kv_head) + key * p.k_stride_s + col, there);
            [[unroll]] for (uint what = 0; what < 3; what++) {
                t.of[what] = combine(what, t.of[what], r);
            }
            t.n += 1.0;
        }
    }
    t = all_lanes(t, lane, col);
    const uint to = sums_at(batch, kv_head, gl_WorkGroupID.x);
    if (lane == 0 && there) {
        [[unroll]] for (uint what = 0; what < 3; what++) {
            put_sums(to + what * HEAD_DIM + col, t.of[what]);
        }
        sums[to + 3 * HEAD_DIM] = t.n;
    }
}

// up_of returns 2^round(5/8 * log2(most / x)), at most 2^5, of the sizes of a channel and of the largest.
// Logarithms are the bits of floats, so that it is exact.
float up_of(const float x, const float most) {
    const int octaves = max(floatBitsToInt(x) - floatBitsToInt(most), -8 << 23);
    return uintBitsToFloat(uint(127 - (10 * octaves + (1 << 26) >> 27)) << 23);
}

// add_chunks writes mean and up of a head.
void add_chunks(const uint batch, const uint kv_head, const uint lane, const uint col, const bool there) {
    Totals t = NO_KEYS;
    for (uint c = lane; c < p.splits && lane < LANES; c += LANES) {
        const uint from = sums_at(batch, kv_head, c);
        [[unroll]] for (uint what = 0; what < 3; what++) {
            t.of[what] = combine(what, t.of[what], load_sums(from + what * HEAD_DIM + col, there));
        }
        t.n += sums[from + 3 * HEAD_DIM];
    }
    t = all_lanes(t, lane, col);
    const float inverse = SMOOTH ? 1.0 / max(t.n, 1.0) : 0.0;
    Run size = Run(max(abs(t.of[1].lo), abs(t.of[2].lo)), max(abs(t.of[1].hi), abs(t.of[2].hi)));
    if (SMOOTH) {
        size = Run(t.of[2].lo - t.of[1].lo, t.of[2].hi - t.of[1].hi);
    }
    const bool any = t.n > 0.0 && there;
    size = Run(any ? size.lo : vec4(0.0), any ? size.hi : vec4(0.0));
    barrier();  // part is read before it is written
    part[gl_LocalInvocationIndex].x = largest(size);
    barrier();  // part written before it is read
    float most = 0.0;
    for (uint c = 0; c < COLS8; c++) {
        most = max(most, part[c].x);
    }
    if (lane == 0 && there) {
        const uint to = sums_at(batch, kv_head, p.splits) + col;
        put_sums(to, Run(t.of[0].lo * inverse, t.of[0].hi * inverse));
        [[unroll]] for (uint e = 0; e < 4; e++) {
            size.lo[e] = up_of(size.lo[e], most);
            size.hi[e] = up_of(size.hi[e], most);
        }
        put_sums(to + HEAD_DIM, size);
    }
}
