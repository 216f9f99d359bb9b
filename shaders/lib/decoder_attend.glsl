// decoder_attend: the part of decoder.comp's main in which a workgroup attends to a unit: a key head's range of keys, in
// rounds of ROUND keys. Teams of 8 invocations multiply keys and queries, teams of 32 weights and values, whose columns they
// share. The first round of the first unit is loaded, k_now and v_now, if AHEAD is not 0.
const uint kv_head = unit / SPLITS;
const uvec2 range = range_of(unit, n_keys);
barrier();  // what the unit before and the products have in shared memory is read before it is written
for (uint i = tid; i < (GROUP + 2) * ROTATED; i += WORKGROUP_SIZE) {
    const uint head = i / ROTATED;  // of q; then k, then v
    const uint d = i % ROTATED;
    const float cosine = cos_table[p.cos_offset + (n_keys - 1) * ROTATED + d];
    const float sine = sin_table[p.sin_offset + (n_keys - 1) * ROTATED + d];
    const uint row = (head < GROUP ? kv_head * GROUP + head : HEADS + (head - GROUP) * KV_HEADS + kv_head) * HEAD_DIM + d;
    uint got[2];
    AWAIT(got, 2, true, p.words + AT_QKV + row + e * ROTATED)
    vec2 x = vec2(uintBitsToFloat(got[0]), uintBitsToFloat(got[1]));
    if (head <= GROUP) {
        x = vec2(x.x * cosine - x.y * sine, x.y * cosine + x.x * sine);
    }
    if (head < GROUP) {
        x *= inversesqrt(float(HEAD_DIM)) * 1.4426950408889634;  // exp(s) = exp2(s * LOG2_E)
    }
    const uint at = head * HEAD_DIM + d;
    rotated[at / 4][at % 4] = x.x;
    rotated[(at + ROTATED) / 4][at % 4] = x.y;
}
barrier();  // rotated is written before it is read
if (AHEAD == 0 || unit != gl_WorkGroupID.x) {
    LOAD_KEYS(range, kv_head, range.x)
}
// Each invocation has its part of the new key, in whose place nothing is loaded.
uvec4 k_new[VECS];
[[unroll]] for (uint c = 0; c < VECS; c++) {
    const uint at = (GROUP * HEAD_DIM + (c * 8 + tid % 8) * 8) / 4;
    k_new[c] = pack(rotated[at], rotated[at + 1]);
}
const uint v_at = (GROUP + 1) * HEAD_DIM + tid % 32 * COLUMNS;
uvec2 v_new = uvec2(pack2(rotated[v_at / 4][v_at % 4], rotated[v_at / 4][v_at % 4 + 1]), 0);
if (COLUMNS == 4) {
    v_new.y = pack2(rotated[v_at / 4].z, rotated[v_at / 4].w);
}
if (room && range.x < range.y && range.y == n_keys && tid < 32) {
    const uint to = p.v.offset + kv_head * p.v.head + place * p.v.key;
    if (COLUMNS == 2) {
        v2[to * 4 + tid] = v_new.x;
    } else {
        v4[to * 2 + tid] = v_new;
    }
    if (tid < 8) {
        [[unroll]] for (uint c = 0; c < VECS; c++) {
            k16[p.k.offset + kv_head * p.k.head + place * p.k.key + c * 8 + tid] = k_new[c];
        }
    }
}
float m[GROUP];
float l[GROUP];
vec4 o[GROUP];
[[unroll]] for (uint g = 0; g < GROUP; g++) {
    m[g] = LEAST;
    l[g] = 0.0;
    o[g] = vec4(0.0);
}
[[dont_unroll]] for (uint first = range.x; first < range.y; first += ROUND) {
    if (first != range.x) {
        LOAD_KEYS(range, kv_head, first)
        barrier();  // weights and tops are read before they are written
    }
    // Scores, and their maxima.
    float top[GROUP];
    [[unroll]] for (uint g = 0; g < GROUP; g++) {
        top[g] = LEAST;
    }
    [[unroll]] for (uint n = 0; n < KEYS; n++) {
        const uint key = first + n * TEAMS + tid / 8;
        [[unroll]] for (uint c = 0; c < VECS; c++) {
            k_now[n * VECS + c] = key + 1 == n_keys ? k_new[c] : k_now[n * VECS + c];
        }
        float mine = 0.0;
        [[unroll]] for (uint g = 0; g < GROUP; g++) {
            float s = 0.0;
            [[unroll]] for (uint c = 0; c < VECS * 2; c++) {
                s += dot(rotated[g * HEAD_DIM / 4 + (c / 2 * 8 + tid % 8) * 2 + c % 2], quad(k_now[n * VECS + c / 2], c % 2));
            }
            s += subgroupShuffleXor(s, 1);
            s += subgroupShuffleXor(s, 2);
            s += subgroupShuffleXor(s, 4);
            s = key < range.y ? s : LEAST;
            top[g] = max(top[g], s);
            mine = tid % 8 == g ? s : mine;
        }
        if (tid % 8 < GROUP) {
            weights[(n * TEAMS + tid / 8) * WEIGHTS + tid % 8 / 4][tid % 4] = mine;
        }
    }
    [[unroll]] for (uint g = 0; g < GROUP; g++) {
        [[unroll]] for (uint far = 8; far < SUBGROUP; far *= 2) {
            top[g] = max(top[g], subgroupShuffleXor(top[g], far));
        }
        if (tid % SUBGROUP == 0) {
            tops[g * SUBGROUPS + subgroup] = top[g];
        }
    }
    barrier();  // weights and tops are written before they are read
    // Weights, relative to the maxima of all keys so far.
    for (uint i = tid; i < ROUND * GROUP; i += WORKGROUP_SIZE) {
        const uint g = i % GROUP;
        float most = first == range.x ? LEAST : so_far[g];
        [[unroll]] for (uint j = 0; j < SUBGROUPS; j++) {
            most = max(most, tops[g * SUBGROUPS + j]);
        }
        const uint at = i / GROUP * WEIGHTS + g / 4;
        weights[at][g % 4] = exp2(weights[at][g % 4] - most);
        if (i < GROUP) {
            next[g] = most;
        }
    }
    barrier();  // weights and next are written before they are read
    [[unroll]] for (uint g = 0; g < GROUP; g++) {
        const float f = exp2(m[g] - next[g]);
        m[g] = next[g];
        l[g] *= f;
        o[g] *= f;
        if (tid == 0) {
            so_far[g] = m[g];
        }
    }
    [[unroll]] for (uint n = 0; n < KEYS * 4; n++) {
        const uint key = first + n * WIDE_TEAMS + tid / 32;
        const vec4 v = widen(key + 1 == n_keys && key < range.y ? v_new : v_now[n]);
        [[unroll]] for (uint g = 0; g < GROUP; g++) {
            const float w = weights[(n * WIDE_TEAMS + tid / 32) * WEIGHTS + g / 4][g % 4];
            l[g] += w;
            o[g] += w * v;
        }
    }
}
[[unroll]] for (uint g = 0; g < GROUP; g++) {
    const uint at = (tid / 32 * GROUP + g) * HEAD_DIM + tid % 32 * COLUMNS;
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        vectors[at / 4][at % 4 + c] = floatBitsToUint(o[g][c]);
    }
    if (tid % 32 == 0) {
        totals[tid / 32 * GROUP + g] = l[g];
    }
}
barrier();  // vectors and totals are written before they are read
for (uint i = tid; i < GROUP * HEAD_DIM; i += WORKGROUP_SIZE) {
    const uint g = i / HEAD_DIM;
    float sum = 0.0;
    float all = 0.0;
    [[unroll]] for (uint j = 0; j < WIDE_TEAMS; j++) {
        const uint at = j * GROUP * HEAD_DIM + i;
        sum += uintBitsToFloat(vectors[at / 4][at % 4]);
        all += totals[j * GROUP + g];
    }
    const uint range_at = (kv_head * GROUP + g) * SPLITS + unit % SPLITS;
    [[unroll]] for (uint copy = 0; copy < COPIES; copy++) {
        put_word(AT_PARTS + range_at * HEAD_DIM + i % HEAD_DIM, copy, sum);
        if (i % HEAD_DIM < 2) {
            put_word(AT_RANGES + range_at * 2 + i % HEAD_DIM, copy, i % HEAD_DIM == 0 ? range.x == range.y ? LEAST : next[g] : all);
        }
    }
}
