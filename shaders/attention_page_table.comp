// attention_page_table: the block table and the lengths of sequences from concatenated lists of
// pages (CSR), FlashInfer's format.
//
//     n                = indptr[b + 1] - indptr[b]                         pages of sequence b
//     block_table[b,i] = indices[indptr[b] + i]                            i < n, else -1
//     seq_lens[b]      = (n - 1) * PAGE_SIZE + last_page_len[b] - new_keys, or with n = 0: -new_keys
//
//     indptr         (batch + 1)     i32, contiguous
//     indices        (any number)    i32, contiguous
//     last_page_len  (batch)         i32, contiguous
//     block_table    (batch, width)  i32, any stride of rows, written
//     seq_lens       (batch)         i32, contiguous, written
//     state          status
//
// A sequence with an invalid list, or one that does not fit, gets no pages and a length of -1.
//
// Dispatch: any number of workgroups; each works on entries in turn.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_scalar_block_layout : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint PAGE_SIZE = 16;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint batch;
    uint width;
    int num_indices;
    int new_keys;
    uint indptr_offset;  // elements, like all that follow
    uint indices_offset;
    uint last_page_len_offset;
    uint block_table_offset;
    uint block_table_stride_b;
    uint seq_lens_offset;
    uint state_offset;
} p;

layout(binding = 0, scalar) readonly buffer Indptr { int indptr[]; };
layout(binding = 1, scalar) readonly buffer Indices { int indices[]; };
layout(binding = 2, scalar) readonly buffer LastPageLen { int last_page_len[]; };
layout(binding = 3, scalar) writeonly buffer BlockTable { int block_table[]; };
layout(binding = 4, scalar) writeonly buffer SeqLens { int seq_lens[]; };
layout(binding = 5, scalar) coherent buffer State { uint state[]; };

#include "lib/cache_status.glsl"

// keys_of returns the number of keys in n pages, of which the last may be partly full; -1 if that is
// impossible.
int keys_of(const int n, const int last) {
    if (n == 0) {
        return 0;
    }
    return last >= 1 && last <= int(PAGE_SIZE) ? (n - 1) * int(PAGE_SIZE) + last : -1;
}

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < p.batch * p.width; i += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        const uint b = i / p.width;
        const uint e = i % p.width;
        const int start = indptr[p.indptr_offset + b];
        const int end = indptr[p.indptr_offset + b + 1];
        const bool is_list = 0 <= start && start <= end && end <= p.num_indices && uint(end - start) <= p.width;
        const int n = is_list ? end - start : 0;
        const int keys = is_list ? keys_of(n, last_page_len[p.last_page_len_offset + b]) - p.new_keys : -1;
        int page = -1;
        if (keys >= 0 && e < uint(n)) {
            page = indices[p.indices_offset + uint(start) + e];
        }
        block_table[p.block_table_offset + b * p.block_table_stride_b + e] = page;
        if (e == 0) {
            seq_lens[p.seq_lens_offset + b] = max(keys, -1);
            if (keys < 0) {
                atomicOr(state[p.state_offset], BAD_LENGTH);
            }
        }
    }
}
