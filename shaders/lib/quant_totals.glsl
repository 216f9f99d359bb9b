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

// all_lanes returns the total of all lanes, in lane 0. Every invocation calls it.
Run all_lanes(const uint what, Run r, const uint lane, const uint col) {
    barrier();  // part is read before it is written
    part[2 * gl_LocalInvocationIndex] = r.lo;
    part[2 * gl_LocalInvocationIndex + 1] = r.hi;
    barrier();  // part written before it is read
    for (uint i = 1; i < LANES && lane == 0; i++) {
        const uint at = 2 * (i * COLS8 + col / 8);
        r = combine(what, r, Run(part[at], part[at + 1]));
    }
    return r;
}

Totals all_lanes(Totals t, const uint lane, const uint col) {
    [[unroll]] for (uint what = 0; what < 3; what++) {
        t.of[what] = all_lanes(what, t.of[what], lane, col);
    }
    t.n = all_lanes(0, Run(vec4(t.n), vec4(0.0)), lane, col).lo.x;
    return t;
}

// add_keys writes the totals of a chunk of keys.
void add_keys(const uint batch, const uint kv_head, const uint lane, const uint col, const bool there) {
    const uint chunk = (p.seq_kv + p.splits - 1) / p.splits;
    const uint end = min((gl_WorkGroupID.x + 1) * chunk, p.seq_kv);
    Totals t = NO_KEYS;
    for (uint first = gl_WorkGroupID.x * chunk + lane; first < end; first += 2 * LANES) {
        bool counts[2];
        Run r[2];
        [[unroll]] for (uint i = 0; i < 2; i++) {  // both are loaded before the first is used
            const uint key = first + i * LANES;
            counts[i] = lane < LANES && key < end && seen(batch, kv_head, key);
            r[i] = load_run(HEAD_AT(k, batch, kv_head) + key * p.k_stride_s + col, counts[i] && there);
        }
        [[unroll]] for (uint i = 0; i < 2; i++) {
            if (counts[i]) {
                [[unroll]] for (uint what = 0; what < 3; what++) {
                    t.of[what] = combine(what, t.of[what], r[i]);
                }
                t.n += 1.0;
            }
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

const int OCTAVE = 1 << 23;  // of the bits of a float
const uint SAMPLES = 16;     // rows of Q of a head, at most

// octaves returns log2(x / most), or -8 if that is less. Logarithms are the bits of floats, so that it is exact.
ivec4 octaves(const vec4 x, const float most) {
    return max(floatBitsToInt(x) - floatBitsToInt(most), ivec4(-8 * OCTAVE));
}

// up_of returns 2^trunc(5/8 * (log2(q / most_q) - log2(k / most_k))) of the sizes of channels.
vec4 up_of(const vec4 k, const vec4 q, const vec2 most) {
    return uintBitsToFloat(uvec4(127 + 5 * (octaves(q, most.y) - octaves(k, most.x)) / (8 * OCTAVE)) << 23);
}

// add_chunks writes mean and up of a head. X is Q.
void add_chunks(const uint batch, const uint kv_head, const uint lane, const uint col, const bool there) {
    Totals t = NO_KEYS;
    for (uint c = lane; c < p.splits && lane < LANES; c += LANES) {
        const uint from = sums_at(batch, kv_head, c);
        [[unroll]] for (uint what = 0; what < 3; what++) {
            t.of[what] = combine(what, t.of[what], load_sums(from + what * HEAD_DIM + col, there));
        }
        t.n += sums[from + 3 * HEAD_DIM];
    }
    Run q = Run(vec4(0.0), vec4(0.0));
    const uint apart = (p.seq_q + SAMPLES - 1) / SAMPLES;
    for (uint i = lane; i < SAMPLES * p.heads_per_kv && lane < LANES; i += LANES) {
        const uint row = i % SAMPLES * apart;
        const uint head = kv_head * p.heads_per_kv + i / SAMPLES;
        const Run r = load_run(HEAD_AT(q, batch, head) + row * p.q_stride_s + col, there && row < p.seq_q);
        q = combine(2, q, Run(abs(r.lo), abs(r.hi)));
    }
    t = all_lanes(t, lane, col);
    q = all_lanes(2, q, lane, col);
    const float inverse = SMOOTH ? 1.0 / max(t.n, 1.0) : 0.0;
    Run k = Run(max(abs(t.of[1].lo), abs(t.of[2].lo)), max(abs(t.of[1].hi), abs(t.of[2].hi)));
    if (SMOOTH) {
        k = Run(t.of[2].lo - t.of[1].lo, t.of[2].hi - t.of[1].hi);
    }
    const bool any = t.n > 0.0 && there;
    k = Run(any ? k.lo : vec4(0.0), any ? k.hi : vec4(0.0));
    barrier();  // part is read before it is written
    part[gl_LocalInvocationIndex].xy = vec2(largest(k), largest(q));
    barrier();  // part written before it is read
    vec2 most = vec2(0.0);
    for (uint c = 0; c < COLS8; c++) {
        most = max(most, part[c].xy);
    }
    if (lane == 0 && there) {
        const uint to = sums_at(batch, kv_head, p.splits) + col;
        put_sums(to, Run(t.of[0].lo * inverse, t.of[0].hi * inverse));
        put_sums(to + HEAD_DIM, Run(up_of(k.lo, q.lo, most), up_of(k.hi, q.hi, most)));
    }
}
