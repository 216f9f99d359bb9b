package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/pipelines/sample"
	"github.com/flashvk/flashvk/vk"
)

// A checkpointFlags is a model: a folder, an adapter, and the format of the weights on the device.
type checkpointFlags struct {
	set     *pflag.FlagSet
	adapter string
	dtype   dtype.DType
	random  uint64
}

func (m *checkpointFlags) add(f *pflag.FlagSet) {
	f.StringVar(&m.adapter, "adapter", "", "folder of a LoRA adapter, as PEFT and flashvk finetune write them, that is added to the weights")
	m.dtypeFlag(f, "weights, activations and cache (default the format of the checkpoint where the device multiplies matrices of it, float16 for another of 16 bits, and float32 on a CPU device)")
	f.Uint64Var(&m.random, "random-weights", 0, "seed of weights that are random, for tests and measurements: the folder then needs config.json alone")
}

func (m *checkpointFlags) dtypeFlag(f *pflag.FlagSet, of string) {
	m.set = f
	kernels.DTypeVar(f, &m.dtype, "dtype", "format of "+of)
}

// open opens a checkpoint, whose format is that of its weights, and returns the weights, with those of the adapter.
func (m *checkpointFlags) open(dir string) (c *lm.Checkpoint, w lm.Weights, err error) {
	if m.set.Changed("random-weights") {
		c, err = lm.NewCheckpoint(dir)
		c.DType, w = dtype.BFloat16, lm.Random{Seed: m.random}
	} else {
		c, err = lm.Open(dir)
		w = c
	}
	if err == nil && m.adapter != "" {
		w, err = withAdapter(m.adapter, &c.Config, w)
	}
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, w, nil
}

// withAdapter returns weights with the adapter of a folder.
func withAdapter(dir string, c *lm.Config, w lm.Weights) (lm.Weights, error) {
	adapter, err := lm.ReadAdapter(dir, c)
	if err != nil {
		return nil, err
	}
	return adapter.Merge(c, w)
}

// format returns the format of the flag, or else the format of a checkpoint on a device.
func (m *checkpointFlags) format(caps *vk.Caps, t dtype.DType) dtype.DType {
	switch {
	case m.set.Changed("dtype"):
		return m.dtype
	case caps.Type == vk.CPU:
		return dtype.Float32
	case t == dtype.BFloat16 && !caps.BFloat16CoopMat:
		return dtype.Float16
	}
	return t
}

// generateCommand holds the flags of generate.
type generateCommand struct {
	dir             string
	prompts         []string
	ids             [][]int32
	system          string
	chat, ignoreEOS bool
	tokens, context int
	stop            []int32
	format, device  string
	sample.Filters
	seed uint64
	checkpointFlags
}

func newGenerate(a *app) *cobra.Command {
	g := &generateCommand{tokens: 128, format: "text"}
	return a.command(folder(&cobra.Command{Use: "generate"}, &g.dir), g.add, func(ctx context.Context) error { return g.run(ctx, a) })
}

func (g *generateCommand) add(f *pflag.FlagSet) {
	f.StringArrayVar(&g.prompts, "prompt", nil, "text to continue; several are one batch")
	more := func(list string) ([][]int32, error) {
		ids, err := parseTokens(list)
		return append(g.ids, ids), err
	}
	f.Var(value[[][]int32]{Target: &g.ids, Parse: more, Kind: "IDS"}, "ids", "tokens to continue, a comma list of numbers, instead of --prompt; several are one batch")
	f.BoolVar(&g.chat, "chat", false, "the prompt is a message to the assistant that the checkpoint's chat template makes of the model")
	f.StringVar(&g.system, "system", "", "the system message of --chat (default the template's)")
	kernels.IntVar(f, &g.tokens, "tokens", "tokens to generate for each prompt, at most (default 128)")
	f.Var(value[[]int32]{Target: &g.stop, Parse: parseTokens, Kind: "IDS"}, "stop", "a comma list of more tokens that end a text, beside those of the checkpoint")
	f.BoolVar(&g.ignoreEOS, "ignore-eos", false, "the tokens of the checkpoint that end a text do not end it")
	kernels.IntVar(f, &g.context, "context", "tokens of prompt and text that there is memory for (default what the prompt and --tokens need)")
	f.Var(value[string]{Target: &g.format, Parse: kernels.OneOf([]string{"text", "ids"}), Kind: "FORMAT"}, "format", "text, or ids: a line of numbers for each prompt (default text)")
	for _, x := range []struct {
		name, usage string
		to          *float64
	}{
		{"temperature", "draws tokens, with the probabilities of logits divided by it (default 0: the most probable token)", &g.Temperature},
		{"top-p", "draws from the most probable tokens that have this probability together, up to 1 (default 1: all)", &g.TopP},
		{"min-p", "draws from tokens that are this probable at least, by the most probable one (default 0: all)", &g.MinP},
		{"repetition-penalty", "divides positive logits of tokens that were in prompt or text, and multiplies negative ones (default 1)", &g.RepetitionPenalty},
	} {
		f.Float64Var(x.to, x.name, 0, x.usage)
	}
	kernels.IntVar(f, &g.TopK, "top-k", "draws from this many of the most probable tokens (default 0: all)")
	f.Uint64Var(&g.seed, "seed", 0, "of --temperature: the same seed draws the same text (default 0)")
	g.checkpointFlags.add(f)
	deviceVar(f, &g.device)
}

// parseTokens reads a comma list of tokens.
func parseTokens(list string) (ids []int32, err error) {
	for word := range strings.SplitSeq(list, ",") {
		id, err := strconv.ParseInt(strings.TrimSpace(word), 10, 32)
		if err != nil || id < 0 {
			return nil, fmt.Errorf("%q is not a token, a number from 0 to %d", word, math.MaxInt32)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

func (g *generateCommand) run(ctx context.Context, a *app) error {
	f := g.set
	switch {
	case len(g.prompts) == 0 && len(g.ids) == 0:
		return usagef("generate: --prompt or --ids is missing")
	case g.chat && len(g.prompts) == 0:
		return usagef("generate: --chat needs --prompt")
	case g.system != "" && !g.chat:
		return usagef("generate: --system needs --chat")
	}
	if err := cmp.Or(g.checkFilters(), exclusive(f, "prompt", "ids"), checkRange(f, "tokens", g.tokens, 1, math.MaxInt32), checkRange(f, "context", g.context, 1, math.MaxInt32)); err != nil {
		return err
	}
	checkpoint, w, err := g.open(g.dir)
	if err != nil {
		return err
	}
	defer checkpoint.Close()
	c := &checkpoint.Config
	tok, err := lm.ReadTokenizer(g.dir, c.Vocabulary)
	if err != nil && (len(g.prompts) > 0 || g.format == "text") {
		return err
	}
	prompts, err := g.encode(tok)
	if err != nil {
		return err
	}
	if err := g.fit(c, prompts); err != nil {
		return err
	}
	return a.onDevice(g.device, func(d *vk.Device, env bench.Environment) error {
		announce(a.stderr, env)
		if tok == (lm.Bytes{}) && len(g.prompts) > 0 {
			fmt.Fprintf(a.stderr, "flashvk: %s has no tokenizer.json: tokens are bytes\n", g.dir)
		}
		model, err := g.load(ctx, a, d, c, w, g.checkpointFlags.format(d.Caps(), checkpoint.DType), prompts)
		if err != nil {
			return err
		}
		defer model.Close()
		return g.generate(ctx, a, model, tok, prompts)
	})
}

// checkFilters returns an error about how tokens are chosen. Zeros that users write are none of the library's
// defaults.
func (g *generateCommand) checkFilters() error {
	for _, name := range []string{"top-k", "top-p", "min-p", "seed"} {
		if g.set.Changed(name) && !g.Draws() {
			return usagef("generate: --%s needs --temperature", name)
		}
	}
	switch err := g.Filters.Validate(); {
	case err != nil:
		return usagef("generate: %v", err)
	case g.set.Changed("top-p") && g.TopP == 0:
		return usagef("generate: --top-p 0 is not above 0")
	case g.set.Changed("repetition-penalty") && g.RepetitionPenalty == 0:
		return usagef("generate: --repetition-penalty 0 is not above 0")
	}
	return nil
}

// encode returns the tokens of the prompts.
func (g *generateCommand) encode(tok lm.Tokenizer) (prompts [][]int32, err error) {
	prompts = slices.Clone(g.ids)
	var chat *lm.Chat
	if g.chat {
		if chat, err = lm.ReadChat(g.dir); err != nil {
			return nil, err
		}
	}
	for _, prompt := range g.prompts {
		if chat != nil {
			messages := []lm.Message{{Role: "user", Content: prompt}}
			if g.system != "" {
				messages = slices.Insert(messages, 0, lm.Message{Role: "system", Content: g.system})
			}
			if prompt, err = chat.Text(messages); err != nil {
				return nil, err
			}
		}
		ids, err := tok.Encode(prompt, true)
		if err != nil {
			return nil, err
		}
		prompts = append(prompts, ids)
	}
	return prompts, nil
}

// fit sets the context, and returns an error if the model has less, or the prompts are not its tokens.
func (g *generateCommand) fit(c *lm.Config, prompts [][]int32) error {
	if !g.set.Changed("context") {
		for _, p := range prompts {
			g.context = max(g.context, len(p)+g.tokens)
		}
	}
	return c.CheckPrompts(prompts, g.tokens, g.context)
}

// load puts the model on the device, and says before what context there is room for.
func (g *generateCommand) load(ctx context.Context, a *app, d *vk.Device, c *lm.Config, w lm.Weights, t dtype.DType, prompts [][]int32) (*lm.Generator, error) {
	most, err := lm.MaxContext(d, c, len(prompts), t)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(a.stderr, "flashvk: %s, %d parameters, %v, %s of weights; a context of %d tokens, of at most %d that the model has and memory holds\n",
		c.Architecture, c.NumParams(), t, text.Bytes(c.NumParams()*int64(t.Size())), g.context, most)
	bar := newProgress(a.stderr)
	defer bar.finish()
	start := time.Now()
	o := lm.Options{DType: t, Batch: len(prompts), Context: g.context, Filters: g.Filters, Seed: g.seed, Progress: func(done, all int64) {
		bar.step(int(done>>10), int(all>>10), fmt.Sprintf("loading, %s/s", bench.FormatSI(float64(done)/time.Since(start).Seconds(), "B")))
	}}
	return lm.NewGenerator(ctx, d, c, w, o)
}

// generate writes the texts: one as it comes, several when all have ended.
func (g *generateCommand) generate(ctx context.Context, a *app, model *lm.Generator, tok lm.Tokenizer, prompts [][]int32) error {
	stop := slices.Clone(g.stop)
	if !g.ignoreEOS {
		eos, err := lm.StopTokens(g.dir, model.Config)
		if err != nil {
			return err
		}
		stop = append(stop, eos...)
	}
	begin, count, all := time.Now(), 0, make([][]int32, len(prompts))
	var first time.Time
	stream := lm.Stream{Tokenizer: tok}
	err := model.Generate(ctx, prompts, g.tokens, func(b int, id int32) bool {
		if first.IsZero() {
			first = time.Now()
		}
		count++
		if slices.Contains(stop, id) {
			return true
		}
		all[b] = append(all[b], id)
		if len(prompts) == 1 && g.format == "text" {
			io.WriteString(a.stdout, stream.Next(id)) // errors are kept, and checked at the end
		}
		return false
	})
	if len(prompts) == 1 && g.format == "text" {
		fmt.Fprintln(a.stdout)
	} else {
		g.write(a.stdout, tok, all)
	}
	if err != nil {
		return errors.Join(err, ctx.Err())
	}
	rest := count - len(prompts) // the first of each is the prompt's
	fmt.Fprintf(a.stderr, "flashvk: the prompt took %.3g s, %d tokens after it %.3g s: %.4g tokens/s\n",
		first.Sub(begin).Seconds(), rest, time.Since(first).Seconds(), float64(rest)/time.Since(first).Seconds())
	return nil
}

// write writes the texts of a batch.
func (g *generateCommand) write(w io.Writer, tok lm.Tokenizer, all [][]int32) {
	for b, ids := range all {
		if g.format == "ids" {
			words := make([]string, len(ids))
			for i, id := range ids {
				words[i] = strconv.Itoa(int(id))
			}
			fmt.Fprintln(w, strings.Join(words, ","))
			continue
		}
		stream := lm.Stream{Tokenizer: tok}
		fmt.Fprintf(w, "==> %d <==\n", b+1)
		for _, id := range ids {
			io.WriteString(w, stream.Next(id))
		}
		fmt.Fprintln(w)
	}
}
