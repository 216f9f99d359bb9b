// Package mutate makes kernels with mistakes that a table of small cases misses: missing
// barriers, reductions without some of the lanes, shared memory left from before. Tests say
// of the random problems of internal/bench/trial that they find them.
//
//	go run ./tools/mutants DIR                      writes DIR/MUTANT/MODULE.spv
//	flashvk selftest --modules DIR/MUTANT           does the suite see it?
//	flashvk selftest --modules DIR/MUTANT --random 1000
package mutate

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/shaders/compile"
	"github.com/flashvk/flashvk/shaders"
)

// A Mutant is a mistake in the sources.
type Mutant struct {
	Name    string
	What    string // the mistake, in words
	Kernel  string // of package internal/bench/trial, which has it
	Modules string // those that are compiled with it: a prefix of their names
	Edits   []Edit
	// Loose mutants do not reconverge maximally.
	Loose bool
	// Hidden says why no software driver shows it; "" if lavapipe does.
	Hidden string
}

// An Edit replaces text that a file has once.
type Edit struct{ File, Old, New string }

const (
	shareTops   = "            share_tops(k_top, v_top);\n"
	exponents   = "            const uvec2 exponents = tile_exponents();\n"
	allLanes    = "for (uint lanes = 1; lanes < WORKGROUP_SIZE / NUM_SUBGROUPS; lanes *= 2) {"
	evenLanes   = "for (uint lanes = 2; lanes < WORKGROUP_SIZE / NUM_SUBGROUPS; lanes *= 2) {"
	byShuffle   = "tops = max(tops, unpackFloat2x16(subgroupShuffleXor(packFloat2x16(tops), lanes)));"
	shuffle     = "#extension GL_KHR_shader_subgroup_shuffle : require\n"
	arithmetic  = "#extension GL_KHR_shader_subgroup_arithmetic : require\n"
	ofIntegers  = "tops = f16vec2(subgroupMax(uvec2(tops)));"
	nextTile    = "            if (!PREFETCH) {\n                FETCH_NEXT(k_at, v_at, MASKED ? last - col0 : BLOCK_N)\n"
	tileAfter   = "                FETCH_NEXT(k_at - back * p.k_stride_s, v_at - back * p.v_stride_s, rest)\n            }\n"
	zeroColumns = "        tile[at] = k;\n        tile[at + BLOCK_N * LD] = v;\n"
	leftColumns = "        if (copies_dim(copy_col(i))) {\n            tile[at] = k;\n        }\n        tile[at + BLOCK_N * LD] = v;\n"
	selects     = "next_k[i] = keep_if(visible, next_k[i]);  // what no row sees has no say in the exponents\n" +
		"                    next_v[i] = keep_if(visible, next_v[i]);\n"
	branch = "if (!visible) {\nnext_k[i] = Elems8(vec4(0.0), vec4(0.0));\nnext_v[i] = next_k[i];\n}\n"
)

// All lists the mutants.
func All() []Mutant {
	integerMax := []Edit{{"lib/rows.glsl", shuffle, shuffle + arithmetic}, {"lib/tile_tops.glsl", byShuffle, ofIntegers}}
	return []Mutant{
		{
			Name: "branch-before-max", What: "a branch of each invocation's own before a subgroupMax of integers: what the float32 kernel had until November 2026",
			Kernel: "attention", Modules: "attention_fwd_f32x2_coopmat", Loose: true,
			Edits:  append([]Edit{{"lib/fwd_matrix.glsl", selects, branch}}, integerMax...),
			Hidden: "lavapipe runs a subgroup in lockstep",
		},
		{
			Name: "late-tops", What: "no barrier between the exponents of a tile and those who read them",
			Kernel: "attention", Modules: "attention_fwd_f32x2_coopmat",
			Edits: []Edit{{"lib/fwd_matrix.glsl", shareTops, ""}, {"lib/fwd_matrix.glsl", exponents, shareTops + exponents}},
		},
		{
			Name: "half-of-the-lanes", What: "the largest element of every other invocation alone decides a tile's exponent",
			Kernel: "attention", Modules: "attention_fwd_f32x2_coopmat",
			Edits: []Edit{{"lib/tile_tops.glsl", allLanes, evenLanes}},
		},
		{
			Name: "integer-max", What: "the largest element of a tile is found by its bits, without the branch",
			Kernel: "attention", Modules: "attention_fwd_f32x2_coopmat",
			Edits:  integerMax,
			Hidden: "only NVIDIA's driver goes on with another exponent",
		},
		{
			Name: "columns-left", What: "columns of K past head_dim hold what shared memory held before",
			Kernel: "attention", Modules: "attention_fwd_coopmat",
			Edits:  []Edit{{"lib/tile.glsl", zeroColumns, leftColumns}},
			Hidden: "every head_dim fills lavapipe's matrices, of 8 columns",
		},
		{
			Name: "half-of-the-maxima", What: "the maximum of a row is that of every other invocation's scores",
			Kernel: "attention", Modules: "attention_unfused_softmax",
			Edits: []Edit{{"attention_unfused_softmax.comp", "max(partial[tid], y)", "half_size > 1 || partial[tid] <= MAX_INIT ? max(partial[tid], y) : partial[tid]"}},
		},
		{
			Name: "half-of-the-columns", What: "the maximum of a row is that of every other column of invocations",
			Kernel: "attention", Modules: "attention_fwd_scalar",
			Edits: []Edit{{"attention_fwd_scalar.comp", "                m_new = max(m_new, partial[(ty * ROWS + i) * THREADS_X + x] * p.scale_log2);", "                const float other = partial[(ty * ROWS + i) * THREADS_X + x] * p.scale_log2;\n                m_new = x % 2 == 0 || m_new <= MAX_INIT ? max(m_new, other) : m_new;"}},
		},
		{
			Name: "o-not-rescaled", What: "O so far stays as it is where the maximum of a row grows",
			Kernel: "attention", Modules: "attention_fwd_scalar",
			Edits: []Edit{{"attention_fwd_scalar.comp", "                O_.at[i * COLS4 + j] *= alpha;\n", ""}},
		},
		{
			Name: "no-delta", What: "the gradient of Q lacks the rows' products of dO and O",
			Kernel: "attention", Modules: "attention_bwd_dq_scalar.",
			Edits: []Edit{{"attention_bwd_dq_scalar.comp", "P.at[at] * (dX.at[at] - lse2_delta[i].y)", "P.at[at] * dX.at[at]"}},
		},
		{
			Name: "keys-past-the-last", What: "a team goes on to the keys after the last one of a sequence",
			Kernel: "decode", Modules: "attention_decode.",
			Edits: []Edit{{"lib/decode_keys.glsl", "part.sequence.from, part.end - 1));", "part.sequence.from, part.sequence.keys));"}},
		},
		{
			Name: "key-after-the-query", What: "a query sees the key after its own",
			Kernel: "decode", Modules: "attention_decode.",
			Edits: []Edit{{"lib/decode_rows.glsl", "x.end = CAUSAL && !TREE ? x.position + 1 :", "x.end = CAUSAL && !TREE ? min(x.position + 2, part.sequence.keys) :"}},
		},
		{
			Name: "window-of-the-first-row", What: "the first key that all rows see is that of the first row's window",
			Kernel: "decode", Modules: "attention_decode_coopmat",
			Edits:  []Edit{{"lib/decode_rows.glsl", "int(query_of(part.row0 + ROWS - 1)) - p.window_left", "int(query_of(part.row0)) - p.window_left"}},
			Hidden: "lavapipe has neither matrices of 16x16 nor subgroups of 32. On a GPU the fixed decode/window finds it",
		},
		{
			Name: "counter-left", What: "the workgroup that combines a unit leaves its counter as it is",
			Kernel: "decode", Modules: "attention_decode.",
			Edits: []Edit{{"lib/decode_combine.glsl", "            state[counter] = 0;  // for the next call\n", ""}},
		},
		{
			Name: "new-keys-early", What: "a step reads its new keys without waiting for those that write them",
			Kernel: "step", Modules: "attention_decode_append.",
			Edits: []Edit{{"lib/decode_append.glsl", "    groupMemoryBarrier();\n    barrier();  // they are written\n", ""}},
		},
		{
			Name: "slab-read", What: "no barrier between the products of a slab and the next slab's stores",
			Kernel: "gemm", Modules: "gemm_coopmat",
			Edits: []Edit{{"lib/gemm_matrix.glsl", "            barrier();  // the slab is read\n", ""}},
		},
		{
			Name: "rows-past-k", What: "rows of op(A) and op(B) past the end of k count, up to a multiple of 8",
			Kernel: "gemm", Modules: "gemm_coopmat.",
			Edits: []Edit{{"lib/gemm_operand.glsl", "int(line) < left ?", "int(line) < (left + 7) / 8 * 8 ?"}},
		},
		{
			Name: "sums-early", What: "no barrier between the partial sums of a row and those who read them",
			Kernel: "norm", Modules: "norm_fwd",
			Edits: []Edit{{"lib/reduce.glsl", "barrier(); /* partial written before it is read */", ""}},
		},
		{
			Name: "partial-left", What: "no barrier between the sums of a row that are read and the next ones that are written",
			Kernel: "norm", Modules: "norm_",
			Edits: []Edit{{"lib/reduce.glsl", "barrier(); /* partial read, by an earlier call, before it is written */", ""}},
		},
		{
			Name: "loss-left", What: "invocations without a token leave what shared memory held before in the sum of the loss",
			Kernel: "gmm", Modules: "gmm_fwd",
			Edits: []Edit{{"lib/gmm_loss.glsl", "    sums[tid] = x;\n", "    if (x != 0.0) {\n        sums[tid] = x;\n    }\n"}},
		},
	}
}

// Experiments lists kernels without one of their stages: what the time goes into, which is
// where to look for speed. Their results are wrong, and they are no test of the suites:
// BenchmarkLeaveOut of tests/lab times them.
func Experiments() []Mutant {
	// A constant that is false would leave matrices without a use, which Mesa 26.1 dies of.
	softmax := []Edit{
		{"lib/fwd_rescale.glsl", "if (subgroupAny(grew)) {", "if (p.seq_kv == 0) {"},
		{"lib/fwd_matrix.glsl", "weight[i] = exp2(fma(S.at[r * COL_TILES + n][i], p.scale_log2, -m[r * ROWS + i / ROW_RUN]));", "weight[i] = S.at[r * COL_TILES + n][i];"},
	}
	// Without the memory barrier the compiler would load operands once for all tiles.
	staging := []Edit{
		{"lib/fwd_matrix.glsl", nextTile, "            if (col0 != first_key) {\nsubgroupMemoryBarrierShared();\n} else {\n" + nextTile},
		{"lib/fwd_matrix.glsl", tileAfter, tileAfter + "}\n"},
	}
	list := []Mutant{
		{Name: "without-softmax", What: "weights are the scores: no maxima, exponentials, sums", Edits: softmax},
		{Name: "without-staging", What: "K and V of the first tile for all: no loads, shared memory writes, barriers", Edits: staging},
		{Name: "without-both", What: "products, and their operands from shared memory", Edits: slices.Concat(softmax, staging)},
	}
	for i := range list {
		list[i].Kernel, list[i].Modules = "attention", "attention_fwd_coopmat"
	}
	return list
}

// Compile writes the modules of a mutant of the shader folder source into dir, as NAME.spv.
// Glslc is the compiler.
func (m *Mutant) Compile(glslc, source, dir string) error {
	c, err := compile.New(glslc)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "flashvk-mutant-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	work = filepath.Join(work, "shaders")
	if err := os.CopyFS(work, os.DirFS(source)); err != nil {
		return err
	}
	for _, e := range m.Edits {
		if err := e.apply(work); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for _, v := range shaders.Variants() {
		if !strings.HasPrefix(v.Name(), m.Modules) {
			continue
		}
		code, err := c.Compile(work, compile.Row{Name: v.Name(), File: v.File, Defines: v.Defines, Env: v.Env, Loose: m.Loose})
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, v.Name()+".spv"), code, 0o666); err != nil {
			return err
		}
	}
	return nil
}

func (e *Edit) apply(dir string) error {
	path := filepath.Join(dir, e.File)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), e.Old); n != 1 {
		return fmt.Errorf("%s has the text to be replaced %d times, want once: %q", e.File, n, e.Old)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(text), e.Old, e.New, 1)), 0o666)
}
