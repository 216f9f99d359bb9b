package lm

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/pipelines/rope"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
)

// A Batch is sequences of tokens, row by row.
type Batch struct {
	IDs   []int32
	Shape [2]int // sequences, and tokens of each
	// Labels are the tokens that follow IDs, or Ignored; nil is none.
	Labels []int32
	// Positions are those of the tokens; nil counts from 0 on in each sequence.
	Positions []int32
	// CuSeqlens packs sequences into one row: sequence i has the tokens CuSeqlens[i] to CuSeqlens[i+1]-1, and
	// sees no other. Nil are sequences as Shape says.
	CuSeqlens []int32
}

// Sizes are Batch sequences of Seq tokens. With Sequences they are one row of Seq tokens with at most Sequences sequences,
// none longer than Longest (Batch.CuSeqlens); Batch is then 1.
type Sizes struct {
	Batch, Seq         int
	Sequences, Longest int
}

// sizes returns those of a batch.
func (b *Batch) sizes() Sizes {
	s := Sizes{Batch: b.Shape[0], Seq: b.Shape[1]}
	if b.CuSeqlens != nil {
		s.Sequences = len(b.CuSeqlens) - 1
	}
	for i := range s.Sequences {
		s.Longest = max(s.Longest, int(b.CuSeqlens[i+1]-b.CuSeqlens[i]))
	}
	return s
}

// Read reads a safetensors file with ids (batch, seq) and perhaps labels and positions (batch, seq) and
// cu_seqlens (sequences+1), I32.
func (b *Batch) Read(path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for i, x := range []struct {
		name string
		to   *[]int32
		rank int
	}{{"ids", &b.IDs, 2}, {"labels", &b.Labels, 2}, {"positions", &b.Positions, 2}, {"cu_seqlens", &b.CuSeqlens, 1}} {
		t, ok := f.Tensor(x.name)
		switch {
		case !ok && i > 0:
			continue
		case !ok:
			return fmt.Errorf("%s: tensor %q is missing", path, x.name)
		case t.DType != "I32" || len(t.Shape) != x.rank:
			return fmt.Errorf("%s: tensor %q is %s of shape %v, want I32 with %d axes", path, x.name, t.DType, t.Shape, x.rank)
		case t.Bytes() == 0:
			return fmt.Errorf("%s: tensor %q has shape %v: it is empty", path, x.name, t.Shape)
		case i == 0:
			b.Shape = [2]int(t.Shape)
		case x.rank == 2 && [2]int(t.Shape) != b.Shape:
			return fmt.Errorf("%s: tensor %q has shape %v, ids %v", path, x.name, t.Shape, b.Shape)
		}
		raw := make([]byte, t.Bytes())
		if err := f.ReadAt(t, raw, 0); err != nil {
			return err
		}
		for i := 0; i < len(raw); i += 4 {
			*x.to = append(*x.to, int32(binary.LittleEndian.Uint32(raw[i:])))
		}
	}
	return nil
}

// Check returns an error if a number breaks a rule.
func (b *Batch) Check(c *Config) error {
	for _, x := range []struct {
		name, rule string
		list       []int32
		limit      int
	}{
		{"ids", "not from 0 to vocab_size-1", b.IDs, c.Vocabulary},
		{"labels", "neither -100 nor from 0 to vocab_size-1", b.Labels, c.Vocabulary},
		{"positions", "not from 0 to max_position_embeddings-1", b.Positions, c.Positions},
	} {
		for i, n := range x.list {
			if (n < 0 || int(n) >= x.limit) && !(x.name == "labels" && n == Ignored) {
				return fmt.Errorf("lm: %s[%d] is %d, which is %s=%d", x.name, i, n, x.rule, x.limit-1)
			}
		}
	}
	if cu := b.CuSeqlens; cu != nil {
		if b.Shape[0] != 1 {
			return fmt.Errorf("lm: cu_seqlens packs sequences into one row, but ids has %d", b.Shape[0])
		}
		if len(cu) < 2 || cu[0] != 0 || int(cu[len(cu)-1]) != len(b.IDs) || !slices.IsSorted(cu) {
			return fmt.Errorf("lm: cu_seqlens=%v does not rise from 0 to the %d tokens of ids", cu, len(b.IDs))
		}
	}
	if b.Positions == nil {
		return b.sizes().checkPositions(c)
	}
	return nil
}

// checkPositions returns an error if a model has too few positions.
func (s Sizes) checkPositions(c *Config) error {
	if longest := cmp.Or(s.Longest, s.Seq); longest > c.Positions {
		return fmt.Errorf("lm: a sequence of %d tokens is longer than max_position_embeddings=%d", longest, c.Positions)
	}
	return nil
}

// positions returns Positions, or those that count from 0 on.
func (b *Batch) positions() []int32 {
	if b.Positions != nil {
		return b.Positions
	}
	list := make([]int32, len(b.IDs))
	for i := range list {
		if _, begins := slices.BinarySearch(b.CuSeqlens, int32(i)); !begins && i%b.Shape[1] > 0 {
			list[i] = list[i-1] + 1
		}
	}
	return list
}

// Logits returns the logits of all tokens, (batch*seq, vocabulary). M is what NewModel returns.
func Logits(ctx context.Context, c *Config, m *train.Model, b Batch) ([]float32, error) {
	if err := b.Check(c); err != nil {
		return nil, err
	}
	f := &Forward{Config: c, Sizes: b.sizes()}
	plan, err := m.NewPlan(ctx, f.Tape, train.Forward, train.PlanOptions{})
	if err != nil {
		return nil, err
	}
	defer plan.Close()
	if err := start(ctx, plan, b.inputs(c)); err != nil {
		return nil, err
	}
	return plan.Download(ctx, "logits")
}

// inputs returns the inputs of a Forward by their names.
func (b *Batch) inputs(c *Config) map[string][]int32 {
	inputs := map[string][]int32{"ids": b.IDs, "labels": b.Labels, "positions": b.positions(), "cu_seqlens": b.CuSeqlens}
	if !c.GPT2() {
		inputs["turns"] = rope.Words(c.RoPE)
	}
	return inputs
}

// upload uploads the inputs that a plan has.
func upload(ctx context.Context, p *train.Plan, inputs map[string][]int32) error {
	for name, data := range inputs {
		if t := p.Tensor(name); !t.IsZero() {
			if err := t.UploadInts(ctx, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// start starts a plan on the inputs that it has.
func start(ctx context.Context, p *train.Plan, inputs map[string][]int32) error {
	if err := upload(ctx, p, inputs); err != nil {
		return err
	}
	return p.Start(ctx)
}
