package lm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/pipelines/decoder"
	"github.com/flashvk/flashvk/pipelines/sample"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

// A Cache has the keys and values of sequences, and the angles of their positions.
type Cache struct {
	*attention.KVCache
	cos, sin vk.Tensor // zero without RoPE
	context  int
}

// newCache returns an empty cache.
func newCache(ctx context.Context, d *vk.Device, c *Config, batch, length int, t dtype.DType) (_ *Cache, err error) {
	x := &Cache{context: length}
	defer undo(&err, x.Close)
	p := c.decodeProblem(batch, 1, length, t)
	p.NewKeys, p.CacheRows = 0, 0
	x.KVCache, err = attention.NewKVCache(ctx, d, attention.KVCacheConfig{DecodeProblem: p, Layout: attention.HND, Layers: c.Layers})
	if err != nil || c.GPT2() {
		return x, err
	}
	cos, sin := c.RoPE.Table(length)
	for to, angles := range map[*vk.Tensor][]float32{&x.cos: cos, &x.sin: sin} {
		if *to, err = d.NewTensor("angles", dtype.Float32, length, c.HeadDim/2); err == nil {
			err = to.Upload(ctx, angles)
		}
		if err != nil {
			return nil, err
		}
	}
	return x, nil
}

// Close frees the memory. It may be called on nil.
func (x *Cache) Close() {
	if x == nil {
		return
	}
	if x.KVCache != nil {
		x.KVCache.Close()
	}
	x.cos.Close()
	x.sin.Close()
}

// Options are the sizes and the format of a Generator.
type Options struct {
	DType   dtype.DType // of weights, activations and cache
	Batch   int         // sequences
	Context int         // tokens of the longest sequence, prompt and answer
	// Filters say how tokens are chosen: the zero value takes the most probable one. Seed is of all draws of a
	// Generate; each sequence has a stream of its own.
	sample.Filters
	Seed    uint64
	Decoder *decoder.Config // as in Forward
	// Progress is called with the bytes of weights that are loaded; nil is not.
	Progress func(done, all int64)
}

// A Generator continues sequences of tokens. A step of all sequences is recorded once and replayed; it chooses
// their tokens (package sample), which the next step reads where they are. It is for one goroutine at a time.
type Generator struct {
	Config *Config

	o           Options
	sample      sample.Problem
	model       *train.Model
	cache       *Cache
	seen, state vk.Tensor // of package sample
	step        *train.Plan
	several     *vk.Cmd   // atOnce steps; nil before the first
	chosen      vk.Tensor // by several: the tokens of each step
	to          vk.Tensor // where the step that is recorded writes tokens; zero: where it reads them
	atOnce      int       // how many steps take `quick` together
	quick       time.Duration
}

// Up to mostSteps steps that take less than quickTime together are one submission: else the host, which waits for the
// token of each, would take as long as a step of a small model.
const (
	mostSteps = 32
	quickTime = 100 * time.Millisecond
)

// NewGenerator loads a model. Its error says before anything is allocated which number breaks a rule, and
// how many bytes are missing.
func NewGenerator(ctx context.Context, d *vk.Device, c *Config, w Weights, o Options) (_ *Generator, err error) {
	if err := o.check(d, c); err != nil {
		return nil, err
	}
	g := &Generator{Config: c, o: o, quick: quickTime, sample: sample.Problem{Rows: o.Batch, Vocabulary: c.Vocabulary, Filters: o.Filters}}
	defer undo(&err, g.Close)
	if g.model, err = NewModel(ctx, d, c, w, o.DType, o.Progress); err != nil {
		return nil, err
	}
	if g.cache, err = newCache(ctx, d, c, o.Batch, o.Context, o.DType); err != nil {
		return nil, err
	}
	for to, words := range map[*vk.Tensor]int{&g.chosen: mostSteps, &g.seen: g.sample.SeenWords(), &g.state: 4} {
		if to == &g.seen && !o.Penalizes() || to == &g.state && !o.Draws() {
			continue
		}
		if *to, err = d.NewTensor("sample", dtype.Int32, o.Batch, words); err != nil {
			return nil, err
		}
	}
	g.step, err = g.plan(ctx, 1)
	return g, err
}

// check returns an error if the sizes break a rule, or are known not to fit.
func (o *Options) check(d *vk.Device, c *Config) error {
	switch most, err := MaxContext(d, c, o.Batch, o.DType); {
	case err != nil:
		return err
	case o.Batch < 1:
		return fmt.Errorf("lm: batch=%d is not positive", o.Batch)
	case o.Context < 1 || o.Context > c.Positions:
		return fmt.Errorf("lm: context=%d is not from 1 to the model's max_position_embeddings=%d", o.Context, c.Positions)
	case o.Context > most:
		return fmt.Errorf("lm: context=%d of %d sequences is more than the %d that fit into the device's memory beside the weights", o.Context, o.Batch, most)
	}
	return o.Filters.Validate()
}

// MaxContext returns how many tokens of each sequence fit into the memory of a device, at most the
// positions of the model. Weights, cache, and the activations of a prompt of that length take it.
func MaxContext(d *vk.Device, c *Config, batch int, t dtype.DType) (int, error) {
	heaps, err := d.Heaps()
	if err != nil {
		return 0, err
	}
	size, batch := t.Size(), max(batch, 1)
	row := batch * c.KVHeads * c.HeadDim * size // of keys or of values, in a layer
	// About what a prompt keeps at a time: the stream, two branches and the products of a layer.
	activations := batch * size * (4*c.Width + 3*max(c.Hidden, c.Heads*c.HeadDim))
	left := int(train.Free(heaps)) - int(c.NumParams())*size - 4*batch*c.Vocabulary
	most := min(left/(2*row*c.Layers+activations), int(d.Caps().MaxStorageBufferRange)/row)
	return max(0, min(most, c.Positions)), nil
}

// NewModel returns a model with weights on a device, frozen.
func NewModel(ctx context.Context, d *vk.Device, c *Config, w Weights, t dtype.DType, progress func(done, all int64)) (_ *train.Model, err error) {
	f := &Forward{Config: c, Sizes: Sizes{Batch: 1, Seq: 1}, Cache: &Cache{context: 1}}
	return newModel(ctx, d, f, w, train.Options{DType: t, Pass: train.Forward, Trained: func(string) bool { return false }}, progress)
}

// newModel returns a model with weights on a device, and with those of an adapter.
func newModel(ctx context.Context, d *vk.Device, f *Forward, w Weights, o train.Options, progress func(done, all int64)) (_ *train.Model, err error) {
	params, err := train.Params(d.Caps(), f.Tape, o)
	if err != nil {
		return nil, err
	}
	m, err := train.NewModel(ctx, d, params, o)
	if err != nil {
		return nil, err
	}
	defer undo(&err, m.Close)
	var done, all int64
	for _, p := range params {
		all += int64(p.Size() * m.Tensor(p.Name).DType.Size())
	}
	for _, p := range params {
		to, from := m.Tensor(p.Name), w
		to.Shape, to.Strides = []int{p.Size()}, []int{1}
		if strings.HasPrefix(p.Name, adapterPrefix) {
			from = f.LoRA.Weights
		}
		if err := pieces(p, to.DType, from, func(piece []byte, first int) error {
			n := len(piece) / to.DType.Size()
			if done += int64(len(piece)); progress != nil {
				progress(done, all)
			}
			if p.Frozen && p.At == nil {
				return to.Slice(0, first, first+n).UploadRaw(ctx, piece)
			}
			values := make([]float32, n)
			storage.Decode(to.DType, values, piece)
			return m.Set(ctx, p.Name, first, values)
		}); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// plan records a pass over seq tokens of each sequence.
func (g *Generator) plan(ctx context.Context, seq int) (*train.Plan, error) {
	f := &Forward{Config: g.Config, Sizes: Sizes{Batch: g.o.Batch, Seq: seq}, Last: seq > 1, Cache: g.cache, Decoder: g.o.Decoder}
	f.Choose = func(c *vk.Cmd, logits, ids vk.Tensor) error {
		if seq > 1 {
			ids = g.step.Tensor("ids")
		} else if !g.to.IsZero() {
			ids = g.to
		}
		return sample.Forward(c, sample.Tensors{Logits: logits, Seen: g.seen, State: g.state, Tokens: ids}, g.sample, sample.Options{})
	}
	return g.model.NewPlan(ctx, f.Tape, train.Forward, train.PlanOptions{})
}

// Close frees the memory. It may be called on nil.
func (g *Generator) Close() {
	if g == nil {
		return
	}
	g.several.Close()
	g.step.Close()
	g.chosen.Close()
	g.cache.Close()
	g.seen.Close()
	g.state.Close()
	g.model.Close()
}

// Generate continues prompts, one for each sequence of the batch, by at most tokens tokens. Each is called with
// every token, and says whether its sequence ends there. The others then go on, until all have ended. The same
// prompts and Options on the same device give the same tokens. It is an error if the logits of a sequence are all
// NaN or -Inf.
func (g *Generator) Generate(ctx context.Context, prompts [][]int32, tokens int, each func(sequence int, token int32) (end bool)) error {
	if len(prompts) != g.o.Batch {
		return fmt.Errorf("lm: %d prompts for a batch of %d", len(prompts), g.o.Batch)
	}
	if err := g.Config.CheckPrompts(prompts, tokens, g.o.Context); err != nil {
		return err
	}
	if err := g.prefill(ctx, prompts); err != nil {
		return err
	}
	ended, next := make([]bool, len(prompts)), make([]int32, len(prompts))
	if err := g.step.Tensor("ids").DownloadInts(ctx, next); err != nil {
		return err
	}
	for n := 0; ; n++ {
		for b, id := range next[:len(prompts)] {
			switch {
			case ended[b]:
			case id < 0:
				return fmt.Errorf("lm: the logits of sequence %d are all NaN or -Inf after %d tokens", b, len(prompts[b])+n)
			default:
				ended[b] = each(b, id)
			}
		}
		if n == tokens-1 || !slices.Contains(ended, false) {
			return nil
		}
		if next = next[len(prompts):]; len(next) > 0 {
			continue
		}
		var err error
		if next, err = g.steps(ctx, tokens-1-n); err != nil {
			return err
		}
	}
}

// steps makes a step, or atOnce steps if these are not more than `most`. It returns the tokens that each chooses.
func (g *Generator) steps(ctx context.Context, most int) ([]int32, error) {
	begin, from, several := time.Now(), g.step.Tensor("ids"), 1 < g.atOnce && g.atOnce <= most
	if several {
		if err := g.startSeveral(ctx); err != nil {
			return nil, err
		}
		from = g.chosenBy(0, g.atOnce)
	} else if err := g.step.Start(ctx); err != nil {
		return nil, err
	}
	ids := make([]int32, from.NumElements())
	err := from.DownloadInts(ctx, ids)
	if !several && g.several == nil {
		g.atOnce = min(int(g.quick/max(1, time.Since(begin))), mostSteps)
	}
	return ids, err
}

// chosenBy is where the tokens of some of several steps are.
func (g *Generator) chosenBy(first, steps int) vk.Tensor {
	t := vk.View(g.chosen.Buffer, dtype.Int32, steps*g.o.Batch)
	t.Offset = first * g.o.Batch
	return t
}

// startSeveral starts atOnce steps.
func (g *Generator) startSeveral(ctx context.Context) (err error) {
	if g.several == nil {
		ids := g.step.Tensor("ids")
		from := ids
		if g.several, err = g.step.Repeat(g.atOnce, "ids", func(i int) vk.Tensor {
			from, g.to = g.to, g.chosenBy(i, 1)
			if i == 0 {
				return ids
			}
			return from
		}); err != nil {
			return err
		}
		g.several.Copy(ids.Buffer, 4*int64(ids.Offset), g.to.Buffer, 4*int64(g.to.Offset), 4*int64(g.o.Batch))
		g.to = vk.Tensor{}
	}
	return g.several.Start(ctx)
}

// CheckPrompts returns an error if prompts with `tokens` tokens behind each do not fit into a context, or
// have tokens that the model does not.
func (c *Config) CheckPrompts(prompts [][]int32, tokens, context int) error {
	if context > c.Positions {
		return fmt.Errorf("lm: context=%d is more than the model's max_position_embeddings=%d", context, c.Positions)
	}
	for b, p := range prompts {
		switch {
		case len(p) == 0:
			return fmt.Errorf("lm: prompt %d has no tokens", b)
		case tokens < 1 || len(p)+tokens > context:
			return fmt.Errorf("lm: prompt %d of %d tokens and %d new ones are more than the context of %d", b, len(p), tokens, context)
		}
		for _, id := range p {
			if id < 0 || int(id) >= c.Vocabulary {
				return fmt.Errorf("lm: prompt %d has token %d, which is not from 0 to vocab_size-1=%d", b, id, c.Vocabulary-1)
			}
		}
	}
	return nil
}

// prefill fills the cache with prompts, and chooses the tokens behind them.
func (g *Generator) prefill(ctx context.Context, prompts [][]int32) error {
	seq, plan := 0, g.step
	for _, p := range prompts {
		seq = max(seq, len(p))
	}
	if seq > 1 {
		var err error
		if plan, err = g.plan(ctx, seq); err != nil {
			return err
		}
		defer plan.Close()
	}
	return g.fill(ctx, plan, seq, prompts)
}

// fill is prefill with a plan over seq tokens of each sequence. Shorter prompts have tokens of no meaning
// behind them, which no token before them sees.
func (g *Generator) fill(ctx context.Context, plan *train.Plan, seq int, prompts [][]int32) error {
	if err := g.cache.Reset(ctx); err != nil {
		return err
	}
	all, words := Batch{IDs: make([]int32, seq*len(prompts)), Shape: [2]int{len(prompts), seq}}, g.sample.SeenWords()
	seen := make([]int32, words*len(prompts))
	var last, lengths []int32
	for b, p := range prompts {
		copy(all.IDs[b*seq:], p)
		sample.Mark(seen[b*words:], p...)
		last, lengths = append(last, int32(b*seq+len(p)-1)), append(lengths, int32(len(p)))
	}
	for t, words := range map[*vk.Tensor][]int32{&g.seen: seen, &g.state: sample.States(g.o.Seed, len(prompts))} {
		if t.IsZero() {
			continue
		}
		if err := t.UploadInts(ctx, words); err != nil {
			return err
		}
	}
	if err := start(ctx, plan, map[string][]int32{"ids": all.IDs, "positions": all.positions(), "last": last}); err != nil || seq == 1 {
		return err
	}
	return g.lengthen(ctx, lengths)
}

// lengthen says how many keys the cache has of each sequence.
func (g *Generator) lengthen(ctx context.Context, lengths []int32) error {
	err := g.cache.SeqLens.UploadInts(ctx, lengths)
	if t := g.step.Tensor("positions"); err == nil && !t.IsZero() {
		return t.UploadInts(ctx, lengths)
	}
	return err
}

// TimeSteps makes steps until n submissions were timed, the last of each with `keys` keys in the cache afterwards, and
// returns how long a step took in each, from its start to its end. The cache and the tokens are whatever there is.
func (g *Generator) TimeSteps(ctx context.Context, keys, n int) (list []time.Duration, err error) {
	lengthen := func(steps int) error {
		return g.lengthen(ctx, slices.Repeat([]int32{int32(keys - steps)}, g.o.Batch))
	}
	single := func() error {
		_, err := g.steps(ctx, 1)
		return err
	}
	if _, err := timed(1, func() error { return lengthen(1) }, single); err != nil { // the last says how quick they are
		return nil, err
	}
	steps, run := 1, g.step.Run
	if 1 < g.atOnce && g.atOnce <= keys {
		steps, run = g.atOnce, func(ctx context.Context) error {
			if err := g.startSeveral(ctx); err != nil {
				return err
			}
			return g.several.Wait(ctx)
		}
	}
	list, err = timed(n, func() error { return lengthen(steps) }, func() error { return run(ctx) })
	for i := range list {
		list[i] /= time.Duration(steps)
	}
	return list, err
}

// TimePrefill is TimeSteps for prompts of `tokens` tokens.
func (g *Generator) TimePrefill(ctx context.Context, tokens, n int) (list []time.Duration, err error) {
	if err := g.cache.Reset(ctx); err != nil {
		return nil, err
	}
	plan, err := g.plan(ctx, tokens)
	if err != nil {
		return nil, err
	}
	defer plan.Close()
	return timed(n, func() error { return nil }, func() error { return plan.Run(ctx) })
}

// timed runs a plan n times, each after prepare. Runs before take half a second: the clock of an idle card
// takes some tenths to rise.
func timed(n int, prepare, run func() error) (list []time.Duration, err error) {
	for start := time.Now(); len(list) < n; {
		if err := prepare(); err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := run(); err != nil {
			return nil, err
		}
		if begin.Sub(start) > time.Second/2 {
			list = append(list, time.Since(begin))
		}
	}
	return list, nil
}

// StepBytes returns the least memory traffic of a step with `keys` keys in the cache: weights and cache.
func (c *Config) StepBytes(batch, keys int, t dtype.DType) int64 {
	weights := c.NumParams()
	if !c.Tied {
		weights -= int64(c.Vocabulary) * int64(c.Width) // of embeddings a few rows are read
	}
	cache := 2 * int64(batch) * int64(keys) * int64(c.Layers) * int64(c.KVHeads*c.HeadDim)
	return (weights + cache) * int64(t.Size())
}
