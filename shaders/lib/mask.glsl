// mask: which keys a row sees, as far as that follows from positions.
//
//     row i sees key j  <=>  visible_from(i) <= j < visible_keys(i)
//
// Neither decreases from a row to the next. Without FEATURES visible_from would be
// 0, and is not there.
//
// The includer declares `const bool CAUSAL` and the push constants p with
// seq_kv and causal_shift, with FEATURES also seq_q; and then it need not declare
// CAUSAL.
#ifndef LIB_MASK_GLSL
#define LIB_MASK_GLSL

#ifdef FEATURES

// visible_keys returns the key after the last one that row i sees. It may be
// negative or zero for rows above the diagonal's start.
int visible_keys(const int i) {
    const int n = int(p.seq_kv);
    return WINDOW_RIGHT ? min(n, i + p.causal_shift + args.features.window_right + 1) : n;
}

// visible_from returns the first key that row i sees; visible_keys(i) or more if
// it sees none.
int visible_from(const int i) {
    return WINDOW_LEFT ? max(0, i + p.causal_shift - args.features.window_left) : 0;
}

// first_seeing returns the first row that sees key j or one after it.
int first_seeing(const int j) {
    return WINDOW_RIGHT ? max(0, j - p.causal_shift - args.features.window_right) : 0;
}

// last_seeing returns the row after the last that sees key j or one before it. It
// may be negative.
int last_seeing(const int j) {
    const int n = int(p.seq_q);
    return WINDOW_LEFT ? min(n, j - p.causal_shift + args.features.window_left + 1) : n;
}

#else

// visible_keys returns how many keys row i sees: keys 0 to n-1. It may be
// negative or zero for rows above the diagonal's start; seq_kv < 2^31.
int visible_keys(const int i) {
    const int n = int(p.seq_kv);
    return CAUSAL ? min(n, i + p.causal_shift + 1) : n;
}

#endif
#endif
