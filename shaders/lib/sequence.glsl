// sequence: the tensors that features read, and the rows and keys of a batch among packed sequences.
// The bindings of features that are off hold any tensor.
//
//     bias          (batch or 1, num_heads or 1, seq_q or 1, seq_kv)  f32 or ELEM
//     alibi_slopes  (num_heads) or (batch, num_heads)                 f32
//     sinks         (num_heads)                                       f32
//     key_mask      (batch, seq_kv)                                   bytes, 0 is hidden
//     cu_seqlens_q, cu_seqlens_kv  (batch+1)                          int
//
// The includer defines FEATURES_BINDING, the binding after its own last one, and includes
// lib/element.glsl, and the params with skip_rows and skip_keys. It declares `const bool LOGITS`
// (lib/features.glsl), or defines WITHOUT_SCORES if it computes no scores.

layout(binding = FEATURES_BINDING, scalar) readonly buffer Bias { ELEM bias[]; };
layout(binding = FEATURES_BINDING, scalar) readonly buffer Bias32 { float bias32[]; };
layout(binding = FEATURES_BINDING + 1, scalar) readonly buffer ALiBiSlopes { float alibi_slopes[]; };
layout(binding = FEATURES_BINDING + 2, scalar) readonly buffer Sinks { float sinks[]; };
// Four bytes of the mask at a time: a device may lack 8-bit storage.
layout(binding = FEATURES_BINDING + 3, scalar) readonly buffer KeyMask { uint key_mask4[]; };
layout(binding = FEATURES_BINDING + 4, scalar) readonly buffer CuSeqlensQ { int cu_seqlens_q[]; };
layout(binding = FEATURES_BINDING + 5, scalar) readonly buffer CuSeqlensKV { int cu_seqlens_kv[]; };

// sequence returns the first row of a packed sequence and its length. Both are clamped to the
// tensor and the longest sequence, whatever cu_seqlens holds.
uvec2 sequence(const int from, const int to, const uint total, const uint longest) {
    const int first = clamp(from, 0, int(total));
    const int end = clamp(to, first, int(total));
    return uvec2(first, min(uint(end - first), longest));
}

// enter_sequence gives p the values of a batch, or of its packed sequence. The result is the same
// for all invocations of the workgroup.
void enter_sequence(const uint batch) {
    if (VARLEN) {
        const uint q_at = args.features.cu_seqlens_q_offset + batch;
        const uint kv_at = args.features.cu_seqlens_kv_offset + batch;
        const uvec2 q = sequence(cu_seqlens_q[q_at], cu_seqlens_q[q_at + 1], args.features.total_q, p.seq_q);
        const uvec2 kv = sequence(cu_seqlens_kv[kv_at], cu_seqlens_kv[kv_at + 1], args.features.total_kv, p.seq_kv);
        skip_rows(q.x);
        skip_keys(kv.y > 0 ? kv.x : 0);
        p.seq_q = q.y;
        p.seq_kv = kv.y;
        p.causal_shift = args.features.bottom_right != 0 ? int(kv.y) - int(q.y) : 0;
    }
#ifndef WITHOUT_SCORES
    if (LOGITS) {
        p.scale_log2 = 1.0;  // score applies the real one
    }
#endif
}
