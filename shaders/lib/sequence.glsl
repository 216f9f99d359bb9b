// sequence: the rows and keys of a batch among packed sequences.
//
// The includer includes lib/feature_tensors.glsl and the params with skip_rows and skip_keys. It
// declares `const bool LOGITS` (lib/features.glsl), or defines WITHOUT_SCORES if it computes no
// scores.

// sequence returns the first row of a packed sequence and its length. Both are clamped to the
// tensor and the longest sequence, whatever cu_seqlens holds.
uvec2 sequence(const int from, const int to, const uint total, const uint longest) {
    const int first = clamp(from, 0, int(total));
    const int end = clamp(to, first, int(total));
    return uvec2(first, min(uint(end - first), longest));
}

// enter_sequence makes p that of a batch, or of its packed sequence. The result is the same
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
