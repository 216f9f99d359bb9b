// mask: the keys that a row sees by its position: the causal mask, and the window.
//
//     row i sees key j  <=>  visible_from(i) <= j < visible_keys(i)
//
// Neither bound decreases from a row to the next.
//
// A mistake here fails TestForward of package attention, first in shape/3x3/causal.
//
// The includer declares the push constants p with seq_kv and causal_shift. Without
// FEATURES it declares `const bool CAUSAL`; with FEATURES p has seq_q too.

#ifdef FEATURES

// visible_keys returns the key after the last one that row i sees. It is zero or
// negative for rows above the start of the diagonal.
int visible_keys(const int i) {
    const int n = int(p.seq_kv);
    return WINDOW_RIGHT ? min(n, i + p.causal_shift + args.features.window_right + 1) : n;
}

// visible_from returns the first key that row i sees. If row i sees none, it is
// visible_keys(i) or more.
int visible_from(const int i) {
    return WINDOW_LEFT ? max(0, i + p.causal_shift - args.features.window_left) : 0;
}

// first_seeing returns the first row that sees key j or a later one.
int first_seeing(const int j) {
    return WINDOW_RIGHT ? max(0, j - p.causal_shift - args.features.window_right) : 0;
}

// last_seeing returns the row after the last one that sees key j or an earlier one. It
// may be negative.
int last_seeing(const int j) {
    const int n = int(p.seq_q);
    return WINDOW_LEFT ? min(n, j - p.causal_shift + args.features.window_left + 1) : n;
}

#else

// visible_keys returns how many keys row i sees: keys 0 to n-1. It is zero or negative
// for rows above the start of the diagonal; seq_kv < 2^31.
int visible_keys(const int i) {
    const int n = int(p.seq_kv);
    return CAUSAL ? min(n, i + p.causal_shift + 1) : n;
}

int visible_from(const int i) { return 0; }

#define WINDOW_LEFT false
#define WINDOW_RIGHT CAUSAL
#define last_key() (p.seq_kv - 1)

#endif
