package cli

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/tnp/ref"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// writeFile writes tensors and their bytes.
func writeFile(ts *testscript.TestScript, path string, list []safetensors.Tensor, data map[string][]byte) {
	w, err := safetensors.Create(ts.MkAbs(path), list, nil)
	ts.Check(err)
	defer w.Close()
	for _, t := range list {
		to, err := w.Tensor(t.Name)
		ts.Check(err)
		_, err = to.Write(data[t.Name])
		ts.Check(err)
	}
	ts.Check(w.Commit())
}

// formats are the formats of files that kernels compute with.
var formats = map[safetensors.DType]dtype.DType{"F16": dtype.Float16, "BF16": dtype.BFloat16, "F32": dtype.Float32, "I32": dtype.Int32, "F8_E4M3": dtype.E4M3, "I8": dtype.Int8, "BOOL": dtype.Bool}

// tensors is tensors FILE NAME:FORMAT:SIZE,SIZE…[=VALUE,VALUE…|=SEED]…: it makes a file. Values are
// repeated; a word is the seed of normal numbers; without them all are 0.
func tensors(ts *testscript.TestScript, _ bool, args []string) {
	var list []safetensors.Tensor
	data := map[string][]byte{}
	for _, spec := range strings.Fields(strings.Join(args[1:], " ")) {
		text, content, _ := strings.Cut(spec, "=")
		words := strings.SplitN(text, ":", 3)
		t := safetensors.Tensor{Name: words[0], DType: safetensors.DType(words[1])}
		n := 1
		for _, size := range strings.FieldsFunc(words[2], func(r rune) bool { return r == ',' }) {
			s, err := strconv.Atoi(size)
			ts.Check(err)
			t.Shape, n = append(t.Shape, s), n*s
		}
		list, data[t.Name] = append(list, t), make([]byte, t.Bytes())
		format, known := formats[t.DType]
		for i, word := range strings.Split(content, ",") {
			if x, err := strconv.ParseInt(word, 10, 64); err == nil && t.DType == "I64" {
				binary.LittleEndian.PutUint64(data[t.Name][8*i:], uint64(x))
			}
		}
		if content == "" || !known {
			continue
		}
		var values []float32
		for _, word := range strings.Split(content, ",") {
			x, err := strconv.ParseFloat(word, 32)
			if err != nil {
				seed := fnv.New64()
				seed.Write([]byte(word))
				values = bench.Normal(format, n, seed.Sum64())
				break
			}
			values = append(values, float32(x))
		}
		data[t.Name] = storage.Bytes(format, slices.Repeat(values, n/len(values)+1)[:n])
	}
	writeFile(ts, args[0], list, data)
}

// A command is the flags of bench or of run for a kernel.
type command struct {
	flags    kernels.Flags
	set      *pflag.FlagSet
	words    []string
	impl     string
	backward bool
}

// parse returns the flags among words that a command has, which are of the form --NAME=VALUE.
func parse(ts *testscript.TestScript, kernel string, sizes bool, words []string) *command {
	k, ok := kernels.Find(kernel)
	if !ok {
		ts.Fatalf("no kernel %s", kernel)
	}
	c := &command{flags: k.New(), set: pflag.NewFlagSet(kernel, pflag.ContinueOnError)}
	c.flags.Add(c.set, sizes)
	c.set.StringVar(&c.impl, "impl", "auto", "")
	c.set.BoolVar(&c.backward, "backward", false, "")
	for _, word := range words {
		name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		if c.set.Lookup(name) != nil {
			c.words = append(c.words, word)
		}
	}
	ts.Check(c.set.Parse(c.words))
	return c
}

// passes returns the passes of the command, and how a call is described that has them all.
func (c *command) passes() ([]bench.Pass, bench.Pass) {
	all := bench.Forward
	if c.backward {
		all = bench.Both
	}
	return all.Parts(), all
}

// ordered returns a tensor of a file in the order of the kernel, or the other way round: axes of
// heads and of the sequence are exchanged, where the flags say so.
func (c *command) ordered(name string, shape []int, x []byte) ([]int, []byte) {
	if c.flags.Axes(name, len(shape)) == nil {
		return shape, x
	}
	b, h, s := shape[0], shape[1], shape[2]
	row, y := len(x)/(b*h*s), make([]byte, 0, len(x))
	for i := range b * s * h {
		from := (i/(s*h)*h+i%h)*s + i/h%s
		y = append(y, x[from*row:][:row]...)
	}
	return []int{b, s, h, shape[3]}, y
}

// right is right KERNEL --FLAG=VALUE…, flags of bench and run: it draws a file of the problem, has
// run compute it in place, and compares all that is written with the float64 reference. Where the
// device does not have the path, run is to say why.
func right(ts *testscript.TestScript, caps *vk.Caps, args []string) {
	const path = "right.safetensors"
	problem, run := parse(ts, args[0], true, args[1:]), parse(ts, args[0], false, args[1:])
	for _, word := range args[1:] {
		if !slices.Contains(slices.Concat(problem.words, run.words), word) {
			ts.Fatalf("no flag %s", word)
		}
	}
	op, err := problem.flags.Op(true)
	ts.Check(err)
	passes, all := run.passes()
	var list []safetensors.Tensor
	data := map[string][]byte{}
	for i, t := range op.Tensors() {
		if !all.Reads(t.Role) || t.Role == call.Output || t.Name == "cos" || t.Name == "sin" { // the angles of bench are 0
			continue
		}
		values := bench.Drawn(&t, uint64(i))
		if t.Ints != nil {
			values = floats(t.Ints)
		}
		shape, x := run.ordered(t.Name, t.Shape, storage.Bytes(t.DType, values))
		list, data[t.Name] = append(list, safetensors.Tensor{Name: t.Name, DType: bench.FileDType(t.DType), Shape: shape}), x
	}
	writeFile(ts, path, list, data)
	command := slices.Concat([]string{"run", args[0], "--in", path, "--out", path}, run.words)
	for _, p := range passes {
		if _, err := op.Choose(caps, run.impl, p); errors.Is(err, vk.ErrUnsupported) {
			reason, _, _ := strings.Cut(err.Error(), ": unsupported")
			refusal(1)(ts, false, append([]string{reason}, command...))
			return
		}
	}
	before := path + ".before"
	ts.Check(os.Rename(ts.MkAbs(path), ts.MkAbs(before)))
	ts.Check(os.Link(ts.MkAbs(before), ts.MkAbs(path)))
	start(ts, 0, command)
	described := run.compare(ts, before, path)
	if args[0] != "decode" && described != op.Describe() {
		ts.Fatalf("the file is read as %s, and is %s", described, op.Describe())
	}
}

// agrees is agrees KERNEL IN OUT --FLAG=VALUE…: a file that run wrote is what it should be for its
// input.
func agrees(ts *testscript.TestScript, _ bool, args []string) {
	parse(ts, args[0], false, args[3:]).compare(ts, args[1], args[2])
}

// floats returns integers as they are drawn.
func floats(x []int32) (y []float32) {
	for _, n := range x {
		y = append(y, float32(n))
	}
	return y
}

// compare compares the output of run with the reference for its input, and returns the problem that
// the input is read as.
func (c *command) compare(ts *testscript.TestScript, inPath, outPath string) string {
	in, err := safetensors.Open(ts.MkAbs(inPath))
	ts.Check(err)
	defer in.Close()
	out, err := safetensors.Open(ts.MkAbs(outPath))
	ts.Check(err)
	defer out.Close()
	_, op, err := new(kernels.FileFlags).Read(in, c.flags, c.backward)
	ts.Check(err)
	read := func(f *safetensors.File, t call.Tensor) []float32 {
		x, ok := f.Tensor(t.Name)
		if !ok {
			ts.Fatalf("no tensor %s", t.Name)
		}
		raw := make([]byte, x.Bytes())
		ts.Check(f.ReadAt(x, raw, 0))
		shape, raw := c.ordered(t.Name, x.Shape, raw)
		if !slices.Equal(shape, t.Shape) || x.DType != bench.FileDType(t.DType) {
			ts.Fatalf("%s is %s %v, want %v %v", t.Name, x.DType, shape, t.DType, t.Shape)
		}
		values := make([]float32, len(raw)/t.DType.Size())
		storage.Decode(t.DType, values, raw)
		return values
	}
	values, written := map[string][]float32{}, 0
	passes, _ := c.passes()
	for _, t := range op.Tensors() {
		if _, ok := in.Tensor(t.Name); ok {
			values[t.Name] = read(in, t)
		}
	}
	for _, p := range passes {
		want, err := op.Reference(values, p)
		ts.Check(err)
		got := map[string][]float32{}
		for _, t := range op.Tensors() {
			if p.Writes(t.Role) {
				got[t.Name] = read(out, t)
			}
		}
		_, wrong := bench.CheckOutputs(op.Tensors(), want, got, nil)
		ts.Check(wrong)
		maps.Copy(values, got)
		written += len(got)
	}
	if n := len(out.Tensors()); n != written {
		ts.Fatalf("%d tensors are written, want %d", n, written)
	}
	return op.Describe()
}

// model is model IN OUT HEADS: a file that run model wrote is what it should be for its input.
func model(ts *testscript.TestScript, _ bool, args []string) {
	in, err := safetensors.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer in.Close()
	out, err := safetensors.Open(ts.MkAbs(args[1]))
	ts.Check(err)
	defer out.Close()
	heads, err := strconv.Atoi(args[2])
	ts.Check(err)
	weights, c, err := tnp.Load(in, heads)
	ts.Check(err)
	read := func(f *safetensors.File, name string) (shape []int, values []float64) {
		t, ok := f.Tensor(name)
		if !ok {
			ts.Fatalf("no tensor %s", name)
		}
		x, err := f.Float32s(t)
		ts.Check(err)
		return t.Shape, doubles(x)
	}
	wide := map[string][]float64{}
	for name, x := range weights {
		wide[name] = doubles(x)
	}
	shape, x := read(in, "x")
	yShape, y := read(in, "y")
	s := tnp.Shape{Batch: shape[0], Context: shape[1] - yShape[1], Targets: yShape[1]}
	m := ref.Model{Config: c, Shape: s, Weights: wide, Inputs: ref.Inputs{X: x, Y: y}}
	want := m.Forward()
	moments := map[string][]float64{}
	for i := 0; i < len(want.Mixtures.Logit); i += c.Components {
		sum, mean, square := 0.0, 0.0, 0.0
		for k := i; k < i+c.Components; k++ {
			w, mu, sigma := math.Exp(want.Mixtures.Logit[k]), want.Mixtures.Mu[k], math.Exp(want.Mixtures.LogSigma[k])
			sum, mean, square = sum+w, mean+w*mu, square+w*(mu*mu+sigma*sigma)
		}
		mean /= sum
		moments["mean"] = append(moments["mean"], mean)
		moments["deviation"] = append(moments["deviation"], math.Sqrt(square/sum-mean*mean))
	}
	for _, t := range out.Tensors() {
		_, got := read(out, t.Name)
		var right []float64
		switch name, gradient := strings.CutPrefix(t.Name, "grad."); {
		case gradient:
			right = m.Gradient(name, 1)
		case name == "loss":
			right = []float64{want.Loss}
		case name == "log_p":
			right = want.LogP
		default:
			right = moments[t.Name]
		}
		if len(got) != len(right) {
			ts.Fatalf("%s has %d elements, want %d", t.Name, len(got), len(right))
		}
		off := guard.Off(got, right)
		if limit := 1e-5 * max(1, slices.Max(right), -slices.Min(right)); off > limit {
			ts.Fatalf("%s is off by %g of %g", t.Name, off, limit)
		}
	}
}

func doubles(x []float32) (y []float64) {
	for _, v := range x {
		y = append(y, float64(v))
	}
	return y
}
