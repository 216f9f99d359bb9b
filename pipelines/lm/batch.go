package lm

import (
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

// Read reads a safetensors file with ids (batch, seq) and perhaps labels and positions (batch, seq) and
// cu_seqlens (sequences+1), I32.
func (b *Batch) Read(path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var shape []int
	for _, x := range []struct {
		name string
		to   *[]int32
		rank int
	}{{"ids", &b.IDs, 2}, {"labels", &b.Labels, 2}, {"positions", &b.Positions, 2}, {"cu_seqlens", &b.CuSeqlens, 1}} {
		t, ok := f.Tensor(x.name)
		switch {
		case !ok && x.name != "ids":
			continue
		case !ok:
			return fmt.Errorf("%s: tensor %q is missing", path, x.name)
		case t.DType != "I32" || len(t.Shape) != x.rank:
			return fmt.Errorf("%s: tensor %q is %s of shape %v, want I32 with %d axes", path, x.name, t.DType, t.Shape, x.rank)
		case x.rank == 2 && shape != nil && !slices.Equal(t.Shape, shape):
			return fmt.Errorf("%s: tensor %q has shape %v, ids %v", path, x.name, t.Shape, shape)
		case t.Bytes() == 0:
			return fmt.Errorf("%s: tensor %q has shape %v: it is empty", path, x.name, t.Shape)
		}
		if x.rank == 2 {
			shape = t.Shape
		}
		raw := make([]byte, t.Bytes())
		if err := f.ReadAt(t, raw, 0); err != nil {
			return err
		}
		for i := 0; i < len(raw); i += 4 {
			*x.to = append(*x.to, int32(binary.LittleEndian.Uint32(raw[i:])))
		}
	}
	b.Shape = [2]int(shape)
	return nil
}

// Check returns an error if a number breaks a rule.
func (b *Batch) Check(c *Config) error {
	for i, id := range b.IDs {
		if id < 0 || int(id) >= c.Vocabulary {
			return fmt.Errorf("lm: ids[%d] is %d, which is not from 0 to vocab_size-1=%d", i, id, c.Vocabulary-1)
		}
	}
	for i, id := range b.Labels {
		if id != Ignored && (id < 0 || int(id) >= c.Vocabulary) {
			return fmt.Errorf("lm: labels[%d] is %d, which is neither -100 nor from 0 to vocab_size-1=%d", i, id, c.Vocabulary-1)
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

// counted returns how many labels are counted.
func (b *Batch) counted() (n int) {
	for _, id := range b.Labels {
		if id != Ignored {
			n++
		}
	}
	return n
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
	if err := b.Check(c); err != nil {
		return nil, err
	}
	f := &Forward{Config: c, Batch: b.Shape[0], Seq: b.Shape[1]}
	if b.CuSeqlens != nil {
		f.Sequences, f.Longest = len(b.CuSeqlens)-1, b.longest()
	}
	plan, err := m.NewPlan(ctx, f.Tape, train.Forward, train.PlanOptions{})
	if err != nil {
		return nil, err
	}
	defer plan.Close()
	logits := make([]float32, len(b.IDs)*c.Vocabulary)
	if err := run(ctx, plan, b.inputs(c)); err != nil {
		return nil, err
	}
	return logits, plan.Tensor("logits").Download(ctx, logits)
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

// run starts a plan on the inputs that it has.
func run(ctx context.Context, p *train.Plan, inputs map[string][]int32) error {
	if err := upload(ctx, p, inputs); err != nil {
		return err
	}
	return p.Start(ctx)
}
