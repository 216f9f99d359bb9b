package lm

import (
	"context"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/pipelines/rope"
	"github.com/flashvk/flashvk/pipelines/train"
)

// A Batch is sequences of tokens, row by row.
type Batch struct {
	IDs   []int32
	Shape [2]int // sequences, and tokens of each
	// Positions are those of the tokens; nil counts from 0 on in each sequence.
	Positions []int32
	// CuSeqlens packs sequences into one row: sequence i has the tokens CuSeqlens[i] to CuSeqlens[i+1]-1, and
	// sees no other. Nil are sequences as Shape says.
	CuSeqlens []int32
}

// check returns an error if a number breaks a rule.
func (b *Batch) check(c *Config) error {
	for i, id := range b.IDs {
		if id < 0 || int(id) >= c.Vocabulary {
			return fmt.Errorf("lm: ids[%d] is %d, which is not from 0 to vocab_size-1=%d", i, id, c.Vocabulary-1)
		}
	}
	for i, p := range b.Positions {
		if p < 0 || int(p) >= c.Positions {
			return fmt.Errorf("lm: positions[%d] is %d, which is not from 0 to max_position_embeddings-1=%d", i, p, c.Positions-1)
		}
	}
	longest := b.Shape[1]
	if cu := b.CuSeqlens; cu != nil {
		if b.Shape[0] != 1 {
			return fmt.Errorf("lm: cu_seqlens packs sequences into one row, but ids has %d", b.Shape[0])
		}
		if len(cu) < 2 || cu[0] != 0 || int(cu[len(cu)-1]) != len(b.IDs) || !slices.IsSorted(cu) {
			return fmt.Errorf("lm: cu_seqlens=%v does not rise from 0 to the %d tokens of ids", cu, len(b.IDs))
		}
		longest = b.longest()
	}
	if b.Positions == nil && longest > c.Positions {
		return fmt.Errorf("lm: a sequence of %d tokens is longer than max_position_embeddings=%d", longest, c.Positions)
	}
	return nil
}

// longest returns the length of the longest sequence that is packed.
func (b *Batch) longest() (n int) {
	for i := range b.CuSeqlens[1:] {
		n = max(n, int(b.CuSeqlens[i+1]-b.CuSeqlens[i]))
	}
	return n
}

// positions returns Positions, or those that count from 0 on.
func (b *Batch) positions() []int32 {
	if b.Positions != nil {
		return b.Positions
	}
	list := make([]int32, len(b.IDs))
	for i := range list {
		list[i] = int32(i % b.Shape[1])
	}
	for s := 0; s+1 < len(b.CuSeqlens); s++ {
		for i := b.CuSeqlens[s]; i < b.CuSeqlens[s+1]; i++ {
			list[i] = i - b.CuSeqlens[s]
		}
	}
	return list
}

// Logits returns the logits of all tokens, (batch*seq, vocabulary). M is what NewModel returns.
func Logits(ctx context.Context, c *Config, m *train.Model, b Batch) ([]float32, error) {
	if err := b.check(c); err != nil {
		return nil, err
	}
	f := &Forward{Config: c, Batch: b.Shape[0], Seq: b.Shape[1]}
	if b.CuSeqlens != nil {
		f.Sequences, f.Longest = len(b.CuSeqlens)-1, b.longest()
	}
	plan, err := m.NewPlan(ctx, f.Tape, train.Forward, train.PlanOptions{})
	if err != nil {
		return nil, fmt.Errorf("lm: %w", err)
	}
	defer plan.Close()
	inputs := map[string][]int32{"ids": b.IDs, "positions": b.positions(), "cu_seqlens": b.CuSeqlens}
	if !c.GPT2() {
		inputs["turns"] = rope.Words(c.RoPE)
	}
	logits := make([]float32, len(b.IDs)*c.Vocabulary)
	return logits, run(ctx, plan, inputs, logits)
}

// run runs a plan on the inputs that it has, and downloads the logits.
func run(ctx context.Context, p *train.Plan, inputs map[string][]int32, logits []float32) error {
	for name, data := range inputs {
		if t := p.Tensor(name); !t.IsZero() {
			if err := t.UploadInts(ctx, data); err != nil {
				return fmt.Errorf("lm: %w", err)
			}
		}
	}
	if err := p.Start(ctx); err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	if err := p.Tensor("logits").Download(ctx, logits); err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	return nil
}
