// mask: which keys a row sees.
//
//     row i sees key j  <=>  j < visible_keys(i)
//
// The includer declares `const bool CAUSAL` and the push constants p with
// seq_kv and causal_shift.
#ifndef LIB_MASK_GLSL
#define LIB_MASK_GLSL

// visible_keys returns how many keys row i sees: keys 0 to n-1. It may be
// negative or zero for rows above the diagonal's start; seq_kv < 2^31.
int visible_keys(const int i) {
    const int n = int(p.seq_kv);
    return CAUSAL ? min(n, i + p.causal_shift + 1) : n;
}

#endif
