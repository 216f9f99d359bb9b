// decoder_products: products of rows of weights and the vector in shared memory, for decoder.comp.
//
// A product has n rows of k elements; with cols = 2 row i goes with row n + i. A workgroup has rows first_row(n) to
// end_row(n) - 1, its teams of TEAM invocations take one (or two) each in turn. The vectors of a row are loaded in chunks,
// each while the one before is multiplied. Macros, because arrays would be copied, and a function takes no buffer:
//
//     START(loaded, w, at, n, k, cols)        loads the first chunk of the first row
//     PRODUCTS(loaded, w, at, n, k, cols, packed, result)
//                                                 multiplies all rows; result is what the first COPIES lanes do with `row`
//                                                 and `sums`
//
// The vector has floats, or with packed ELEM.

// Chunks of a row, a chunk's vectors of an invocation, and rows of a team.
#define ROW_LOADS(k, cols) (DIV_UP((k) / 8, TEAM) * (cols))
#define CHUNKS(k, cols) DIV_UP(ROW_LOADS(k, cols), LOADS)
#define CHUNK(k, cols) (DIV_UP(DIV_UP(ROW_LOADS(k, cols), CHUNKS(k, cols)), cols) * (cols))
#define SLOTS(n) DIV_UP(DIV_UP(n, GROUPS), ROW_TEAMS)

uint first_row(const uint n) { return gl_WorkGroupID.x * n / GROUPS; }
uint end_row(const uint n) { return (gl_WorkGroupID.x + 1) * n / GROUPS; }
uint team_row(const uint n, const uint slot) { return first_row(n) + slot * ROW_TEAMS + tid / TEAM; }

#define LOAD(loaded, w, at, row, chunk, n, k, cols)                                                                       \
    [[unroll]] for (uint j = 0; j < CHUNK(k, cols); j++) {                                                                    \
        const uint i = ((chunk) * CHUNK(k, cols) + j) / (cols) * TEAM + lane;                                                 \
        loaded[j] = uvec4(0);                                                                                                 \
        if ((row) < end_row(n) && i < (k) / 8) {                                                                              \
            loaded[j] = w[at.offset + ((row) + j % (cols) * (n)) * at.stride + i];                                             \
        }                                                                                                                     \
    }

#define START(loaded, w, at, n, k, cols) LOAD(loaded, w, at, team_row(n, 0), 0, n, k, cols)

#define PRODUCTS(loaded, w, at, n, k, cols, packed, result)                                                               \
    {                                                                                                                         \
        float sums[cols];                                                                                                     \
        [[unroll]] for (uint c = 0; c < (cols); c++) {                                                                        \
            sums[c] = 0.0;                                                                                                    \
        }                                                                                                                     \
        [[dont_unroll]] for (uint step = 0; step < SLOTS(n) * CHUNKS(k, cols); step++) {                                      \
            const uint row = team_row(n, step / CHUNKS(k, cols));                                                             \
            const uint chunk = step % CHUNKS(k, cols);                                                                        \
            uvec4 following[CHUNK(k, cols)];                                                                                  \
            if (step + 1 < SLOTS(n) * CHUNKS(k, cols)) {                                                                      \
                LOAD(following, w, at, team_row(n, (step + 1) / CHUNKS(k, cols)), (step + 1) % CHUNKS(k, cols), n, k, cols)  \
            }                                                                                                                 \
            [[unroll]] for (uint j = 0; j < CHUNK(k, cols); j++) {                                                            \
                const uint i = min((chunk * CHUNK(k, cols) + j) / (cols) * TEAM + lane, (k) / 8 - 1);                         \
                const vec4 a = packed ? quad(vectors[i], 0) : uintBitsToFloat(vectors[2 * i]);                                \
                const vec4 b = packed ? quad(vectors[i], 1) : uintBitsToFloat(vectors[2 * i + 1]);                            \
                sums[j % (cols)] += dot(a, quad(loaded[j], 0)) + dot(b, quad(loaded[j], 1));                                  \
                loaded[j] = following[j];                                                                                     \
            }                                                                                                                 \
            if (chunk + 1 == CHUNKS(k, cols)) {                                                                               \
                [[unroll]] for (uint c = 0; c < (cols); c++) {                                                                \
                    [[unroll]] for (uint far = TEAM / 2; far > 0; far /= 2) {                                                 \
                        sums[c] += subgroupShuffleXor(sums[c], far);                                                          \
                    }                                                                                                         \
                }                                                                                                             \
                if (lane < COPIES && row < end_row(n)) {                                                                      \
                    result                                                                                                    \
                }                                                                                                             \
                [[unroll]] for (uint c = 0; c < (cols); c++) {                                                                \
                    sums[c] = 0.0;                                                                                            \
                }                                                                                                             \
            }                                                                                                                 \
        }                                                                                                                     \
    }

// range_of returns the first key of a unit, a key head and a range of keys, and the end.
uvec2 range_of(const uint unit, const uint n_keys) {
    const uint each = DIV_UP(n_keys, SPLITS);
    const uint first = min(unit % SPLITS * each, n_keys);
    return uvec2(first, min(first + each, n_keys));
}

// LOAD_KEYS loads the keys and values of a round from `first` on; those of the new key are 0.
#define LOAD_KEYS(range, kv_head, first)                                                                                      \
    [[unroll]] for (uint j = 0; j < KEYS * VECS; j++) {                                                                       \
        const uint key = (first) + j / VECS * TEAMS + tid / 8;                                                                \
        k_now[j] = uvec4(0);                                                                                                  \
        if (key < (range).y && key + 1 != n_keys) {                                                                           \
            k_now[j] = k16[p.k.offset + (kv_head) * p.k.head + key * p.k.key + j % VECS * 8 + tid % 8];                       \
        }                                                                                                                     \
    }                                                                                                                         \
    [[unroll]] for (uint j = 0; j < KEYS * 4; j++) {                                                                          \
        const uint key = (first) + j * WIDE_TEAMS + tid / 32;                                                                 \
        const uint at = p.v.offset + (kv_head) * p.v.head + key * p.v.key;                                                    \
        v_now[j] = uvec2(0);                                                                                                  \
        if (key < (range).y && key + 1 != n_keys) {                                                                           \
            v_now[j] = COLUMNS == 2 ? uvec2(v2[at * 4 + tid % 32], 0) : v4[at * 2 + tid % 32];                                \
        }                                                                                                                     \
    }
