// attention_decode: attention of a few queries with a cache of keys and values.
//
//     S   = Scale * Q * Kᵀ, then softcap, bias and ALiBi
//     P   = softmax(S) over the keys of the cache that a row sees
//     O   = P * V
//     LSE = log(sum(exp(S))) of each row
//
//     q           (batch, num_heads, seq_q, head_dim)               ELEM, any strides, last axis contiguous
//     k           (batch or pages, num_kv_heads, keys, head_dim)    likewise
//     v           (batch or pages, num_kv_heads, keys, value_dim)   likewise
//     o           (batch, num_heads, seq_q, value_dim)              likewise
//     lse         (batch, num_heads, seq_q)                         f32, any strides
//     seq_lens    (batch)                                           i32: keys before the new ones
//     block_table (batch, pages of a sequence)                      i32: its pages in order
//     state       status, then a counter for each unit, 0 between calls
//
// It is made for the speed of memory. Without MATRIX (lib/decode_keys.glsl) a lane holds VEC
// elements of a key, TEAM lanes hold a key, and KEYS keys of each team are in flight at a time.
// No subgroup waits for another until all keys are read. Each lane has a part of the scores of
// ROWS rows and KEYS keys. They are added so that each lane ends with whole scores of its own
// (gather), which makes features cheap. With MATRIX (lib/decode_matrix.glsl) a subgroup holds
// the products of 16 rows and 16 keys together; TILES (lib/decode_tiles.glsl) takes matrices of any size.
//
// A unit is ROWS rows of one key head of one sequence: the queries of a group of heads, one
// query after the other. Its tiles are TILE keys each. Only the device knows the lengths. If
// there are enough workgroups, each unit has the same number of them. Otherwise all tiles of all
// units, in order, are divided evenly among all workgroups: a workgroup may have parts of several
// units, and a unit several workgroups. These leave their sums in `parts`, and the last of them to
// finish combines all in order, with the same bits on every run.
//
// With APPEND it is a step: new keys and values are written to the cache before they are read, and Q
// is rotated (lib/decode_append.glsl). Then a unit is all rows of a key head.
//
// Dispatch: any number of workgroups; parts has two places for each.
#version 460
#ifdef MATRIX
#include "lib/matrix_extensions.glsl"
#endif
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require

#include "lib/decode_interface.glsl"
#include "lib/decode_work.glsl"
#include "lib/decode_rows.glsl"
#ifdef APPEND
#include "lib/decode_append_queries.glsl"
#else
#define LOAD_QUERY(part, r, at, column) load_q(at + column, VEC)
#endif
#ifdef CACHE8
#include "lib/decode_cache8.glsl"
#else
#define Words uvec4
#define WORDS_QUAD(x, e) quad(x, e)
#define SCORE_SCALE(part) p.scale_log2
#define VALUE_SCALED(part, x) (x)
#endif
#if defined(TILES)
#include "lib/decode_tiles.glsl"
#elif defined(MATRIX)
#include "lib/decode_matrix.glsl"
#else
#include "lib/decode_keys.glsl"
#endif
#ifdef APPEND
#include "lib/decode_append.glsl"
#else
#define APPEND_KEYS(part, ahead)
#define PUT_QUERIES(part)
#endif

void finish(const Part part, inout Sums sums) {
    combine_subgroups(part, sums);
    if (part.shared_by > 1) {
        combine_workgroups(part);
    }
}

void main() {
    Ahead ahead;
    if (ALONE) {
        if (gl_WorkGroupID.x < p.splits * units()) {
            Part part = lone_part();
            const bool first_known = !WINDOW && !LEFT_PAD;
            if (first_known) {
                const uint bad = found_bad;
                load_ahead(part, ahead);
                found_bad = bad;  // there may be no key at what was loaded
            }
            if (know_length(part)) {
                if (first_known) {
                    check_ahead(part);
                } else {
                    load_ahead(part, ahead);
                }
                APPEND_KEYS(part, ahead)
                Sums sums;
                read_keys(part, ahead, sums);
                finish(part, sums);
                PUT_QUERIES(part)
            }
        }
        report();
        return;
    }
    Work w = first_work();
    while (w.tile < w.end) {
        const Part part = next_part(w);
        load_ahead(part, ahead);
        APPEND_KEYS(part, ahead)
        Sums sums;
        read_keys(part, ahead, sums);
        finish(part, sums);
        PUT_QUERIES(part)
        w.tile += part.tiles;
        barrier();  // row_sums and scratch are read
    }
    report();
}
