// hadamard: a row of runs of 8 columns times the Hadamard matrix of all of them.
//
// The includer declares `struct Run { vec4 lo, hi; }` and `const uint RUNS`, 1, 2 or 4.

// mix_pair is the Hadamard matrix of two columns.
void mix_pair(inout Run a, inout Run b) {
    const Run sum = Run(a.lo + b.lo, a.hi + b.hi);
    b = Run(a.lo - b.lo, a.hi - b.hi);
    a = sum;
}

vec4 mix4(const vec4 x) {
    const vec4 y = vec4(x.xy + x.zw, x.xy - x.zw);
    return vec4(y.x + y.y, y.x - y.y, y.z + y.w, y.z - y.w);
}

// mixed returns the row r * H.
Run[4] mixed(Run r[4]) {
    [[unroll]] for (uint j = 0; j < RUNS; j++) {
        r[j] = Run(mix4(r[j].lo + r[j].hi), mix4(r[j].lo - r[j].hi));
    }
    if (RUNS > 1) {
        mix_pair(r[0], r[1]);
    }
    if (RUNS > 2) {
        mix_pair(r[2], r[3]);
        mix_pair(r[0], r[2]);
        mix_pair(r[1], r[3]);
    }
    return r;
}
