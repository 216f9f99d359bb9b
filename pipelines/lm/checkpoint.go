package lm

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// A Checkpoint is a folder with config.json and weights: model.safetensors, or the shards that
// model.safetensors.index.json lists. Its methods may be called by several goroutines at once,
// except Close.
type Checkpoint struct {
	Config Config
	Dir    string
	DType  dtype.DType // of most of the weights

	shards  []shard
	tensors map[string]source // by the name of the parameter
}

// A shard is a file of weights.
type shard struct {
	name string
	*safetensors.File
}

// A source is where a tensor lies.
type source struct {
	safetensors.Tensor
	file *safetensors.File
}

const (
	configFile  = "config.json"
	weightsFile = "model.safetensors"
	indexFile   = "model.safetensors.index.json"
)

// Open opens a checkpoint and checks all names, shapes and sizes: reading it can only fail where the
// device of the files does. Its error names the first tensor or file that is wrong.
func Open(dir string) (_ *Checkpoint, err error) {
	config, err := ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Config: config, Dir: dir, tensors: map[string]source{}}
	defer undo(&err, c.Close)
	shards, index, err := shardsOf(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range shards {
		f, err := safetensors.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("lm: %w", err)
		}
		c.shards = append(c.shards, shard{name, f})
		for _, t := range f.Tensors() {
			if index != nil && index[t.Name] != name {
				return nil, fmt.Errorf("lm: %s: tensor %q is in %s, but the index says %q", dir, t.Name, name, index[t.Name])
			}
			if key := config.key(t.Name); key != "" {
				c.tensors[key] = source{t, f}
			}
		}
	}
	return c, c.check()
}

// undo closes what is made in parts if one of them failed. It is deferred.
func undo(err *error, close func()) {
	if *err != nil {
		close()
	}
}

// NewCheckpoint returns a checkpoint that has no weights so far: a folder with config.json. Copy writes it
// with weights, in float32.
func NewCheckpoint(dir string) (*Checkpoint, error) {
	config, err := ReadConfig(dir)
	return &Checkpoint{Config: config, Dir: dir, DType: dtype.Float32}, err
}

// shardsOf returns the files of weights, and the file of each tensor if there is an index.
func shardsOf(dir string) (shards []string, index map[string]string, err error) {
	if _, err := os.Stat(filepath.Join(dir, weightsFile)); err == nil {
		return []string{weightsFile}, nil, nil
	}
	var x struct {
		Map map[string]string `json:"weight_map"`
	}
	path := filepath.Join(dir, indexFile)
	if err := readJSON(path, &x); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("lm: %s has neither %s nor %s", dir, weightsFile, indexFile)
	} else if err != nil {
		return nil, nil, err
	}
	for tensor, name := range x.Map {
		if filepath.Base(name) != name {
			return nil, nil, fmt.Errorf("lm: %s: tensor %q is in %q, which is no name of a file in the folder", path, tensor, name)
		}
	}
	return slices.Compact(slices.Sorted(maps.Values(x.Map))), x.Map, nil
}

// key returns the name in Params of a tensor of a file, and "" for a tensor that is no parameter:
// masks and angles, which old checkpoints have, and the head of a model that has none of its own.
func (c *Config) key(name string) string {
	if c.GPT2() && !strings.HasPrefix(name, "transformer.") && name != headName {
		name = "transformer." + name // checkpoints of the model without its head
	}
	switch {
	case strings.HasSuffix(name, ".rotary_emb.inv_freq"), c.Tied && name == headName,
		c.GPT2() && (strings.HasSuffix(name, ".attn.bias") || strings.HasSuffix(name, ".attn.masked_bias")):
		return ""
	}
	return name
}

// check compares tensors with parameters.
func (c *Checkpoint) check() error {
	params := map[string]bool{}
	bytes := map[dtype.DType]int64{}
	for _, p := range c.Config.Params() {
		params[p.Name] = true
		s, ok := c.tensors[p.Name]
		if !ok {
			return fmt.Errorf("lm: %s: tensor %q is missing: %s with num_hidden_layers=%d has it", c.Dir, p.Name, c.Config.Architecture, c.Config.Layers)
		}
		if !slices.Equal(s.Shape, p.Shape) {
			return fmt.Errorf("lm: %s: tensor %q has shape %v, config.json wants %v", c.Dir, s.Name, s.Shape, p.Shape)
		}
		format, ok := formats[s.DType]
		if !ok {
			return fmt.Errorf("lm: %s: tensor %q is %s, want F32, F16 or BF16", c.Dir, s.Name, s.DType)
		}
		bytes[format] += s.Bytes()
	}
	for _, key := range slices.Sorted(maps.Keys(c.tensors)) {
		if !params[key] {
			return fmt.Errorf("lm: %s: tensor %q is none of the parameters that config.json describes", c.Dir, c.tensors[key].Name)
		}
	}
	for format, n := range bytes {
		if n > bytes[c.DType] {
			c.DType = format
		}
	}
	return nil
}

var formats = map[safetensors.DType]dtype.DType{
	safetensors.F32: dtype.Float32, safetensors.F16: dtype.Float16, safetensors.BF16: dtype.BFloat16,
}

// Read is of Weights.
func (c *Checkpoint) Read(p Param, x []float32, first int) error {
	s, ok := c.tensors[p.Name]
	if !ok {
		return fmt.Errorf("lm: %s: there is no parameter %q", c.Dir, p.Name)
	}
	format := formats[s.DType]
	raw := make([]byte, len(x)*format.Size())
	err := s.file.ReadAt(s.Tensor, raw, int64(first*format.Size()))
	storage.Decode(format, x, raw)
	return err
}

// Close closes the files. It may be called again, and on nil.
func (c *Checkpoint) Close() {
	if c == nil {
		return
	}
	for _, s := range c.shards {
		s.Close()
	}
}

// Copy writes a checkpoint with other weights into another folder, which it makes: files, names and formats are
// those of c, also of tensors that are no parameters, and so are the files of configuration and tokenizer.
// The configuration comes last, and an old one goes first, so that a folder with one is whole.
func (c *Checkpoint) Copy(dir string, w Weights) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	from, err := os.Stat(c.Dir)
	if err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	if to, err := os.Stat(dir); err == nil && os.SameFile(from, to) {
		return fmt.Errorf("lm: %s is the folder of the checkpoint that is copied", dir)
	}
	if err := os.Remove(filepath.Join(dir, configFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lm: %w", err)
	}
	if len(c.shards) == 0 {
		err = writeParams(filepath.Join(dir, weightsFile), c.Config.Params(), c.DType, w)
	}
	for i := 0; err == nil && i < len(c.shards); i++ {
		s := c.shards[i]
		err = writeTensors(filepath.Join(dir, s.name), s.Tensors(), s.Metadata, c.written, w, s.File)
	}
	if err != nil {
		return err
	}
	list, err := os.ReadDir(c.Dir)
	if err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	var names []string
	for _, entry := range list {
		info, err := os.Stat(filepath.Join(c.Dir, entry.Name())) // of what a link leads to
		text := slices.Contains([]string{".json", ".jinja", ".txt", ".model"}, filepath.Ext(entry.Name()))
		if err == nil && info.Mode().IsRegular() && text && entry.Name() != configFile && (entry.Name() != indexFile || len(c.shards) > 0) {
			names = append(names, entry.Name())
		}
	}
	for _, name := range append(names, configFile) {
		text, err := os.ReadFile(filepath.Join(c.Dir, name))
		if err == nil {
			err = files.Write(filepath.Join(dir, name), text)
		}
		if err != nil {
			return fmt.Errorf("lm: %w", err)
		}
	}
	return nil
}

// written returns the parameter whose weights are written for a tensor, "" for a tensor that is copied.
func (c *Checkpoint) written(name string) string {
	if c.Config.Tied && name == headName {
		return c.Config.names().embed
	}
	return c.Config.key(name)
}

// writeParams writes a file of parameters. Its metadata is what Transformers wants.
func writeParams(path string, params []Param, format dtype.DType, w Weights) error {
	var list []safetensors.Tensor
	for _, p := range params {
		list = append(list, safetensors.Tensor{Name: p.Name, DType: safetensors.DType(strings.ToUpper(format.Short())), Shape: p.Shape})
	}
	return writeTensors(path, list, map[string]string{"format": "pt"}, func(name string) string { return name }, w, nil)
}

// writeTensors writes a file of tensors. Written says which parameters they are; those of "" are copied from another file.
func writeTensors(path string, list []safetensors.Tensor, metadata map[string]string, written func(name string) string, w Weights, from *safetensors.File) error {
	out, err := safetensors.Create(path, list, metadata)
	if err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	defer out.Close()
	for _, t := range list {
		to, err := out.Tensor(t.Name)
		if err != nil {
			return fmt.Errorf("lm: %w", err)
		}
		write := func(raw []byte, _ int) error {
			_, err := to.Write(raw)
			return err
		}
		if name := written(t.Name); name != "" {
			err = pieces(Param{Name: name, Shape: t.Shape}, formats[t.DType], w, write)
		} else {
			raw := make([]byte, t.Bytes())
			if err = from.ReadAt(t, raw, 0); err == nil {
				err = write(raw, 0)
			}
		}
		if err != nil {
			return err
		}
	}
	return out.Commit()
}

// A Param is a tensor of a checkpoint. A matrix is (out, in), and of GPT-2 (in, out).
type Param = train.Param

// headName is the head of a model that does not tie it to the embeddings.
const headName = "lm_head.weight"

// names are those of parameters that belong to no layer; norm is without the ending.
type names struct{ embed, positions, norm string }

func (c *Config) names() names {
	if c.GPT2() {
		return names{"transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f"}
	}
	return names{embed: "model.embed_tokens.weight", norm: "model.norm"}
}

// layer returns the name of a parameter of a layer.
func (c *Config) layer(i int, name string) string {
	if c.GPT2() {
		return fmt.Sprintf("transformer.h.%d.%s", i, name)
	}
	return fmt.Sprintf("model.layers.%d.%s", i, name)
}

// Params returns all parameters, in the order of the forward pass, which names them.
func (c *Config) Params() []Param { return c.params(nil) }

// params returns the parameters of a model and of an adapter.
func (c *Config) params(l *LoRA) []Param {
	f := &Forward{Config: c, Sizes: Sizes{Batch: 1, Seq: 1}, LoRA: l}
	all, _ := train.Params(&vk.Caps{}, f.Tape, train.Options{}) // an error is NewModel's
	return all
}

// NumParams returns the number of weights.
func (c *Config) NumParams() (n int64) {
	for _, p := range c.Params() {
		n += int64(p.Size())
	}
	return n
}

// Weights are the elements of a model's parameters.
type Weights interface {
	// Read fills x with elements of a parameter, from element first on.
	Read(p Param, x []float32, first int) error
}

// read returns all elements of a parameter.
func read(w Weights, p Param) ([]float32, error) {
	x := make([]float32, p.Size())
	return x, w.Read(p, x, 0)
}

// pieces calls f with all elements of a parameter in a format, a piece after the other, and with the first of each. An
// element that the format cannot hold is an error.
func pieces(p Param, t dtype.DType, w Weights, f func(piece []byte, first int) error) error {
	size, n := t.Size(), p.Size()
	most := (8 << 20) / size
	raw := make([]byte, size*min(most, n))
	for first := 0; first < n; first += most {
		raw = raw[:size*min(most, n-first)]
		if err := encoded(p, t, w, raw, first); err != nil {
			return err
		}
		if err := f(raw, first); err != nil {
			return err
		}
	}
	return nil
}

// encoded fills raw with elements of a parameter in a format, from element first on. Those of a file in this format are
// read as they are.
func encoded(p Param, t dtype.DType, w Weights, raw []byte, first int) error {
	if c, ok := w.(*Checkpoint); ok {
		if s, ok := c.tensors[p.Name]; ok && formats[s.DType] == t {
			return s.file.ReadAt(s.Tensor, raw, int64(first*t.Size()))
		}
	}
	x := make([]float32, len(raw)/t.Size())
	if err := w.Read(p, x, first); err != nil {
		return err
	}
	for i := 0; t == dtype.Float16 && i < len(x); i++ {
		if a, v := math.Abs(float64(x[i])), x[i]; a > 65504 && !math.IsInf(a, 1) {
			return fmt.Errorf("lm: tensor %q: element %d is %v, beyond the 65504 of float16: take bfloat16 or float32", p.Name, first+i, v)
		}
	}
	storage.Encode(t, raw, x)
	return nil
}

// Random are weights for tests and measurements: of matrices uniform numbers whose deviation is the
// inverse root of the inner dimension, of tables and biases numbers of deviation 1 and 0.1, and of
// norms 1. Of an adapter they are what a training begins with, as PEFT has it: uniform numbers between
// ±1/√in for A, and 0 for B.
type Random struct{ Seed uint64 }

// Read is of Weights. The number of an element does not depend on how much is read.
func (r Random) Read(p Param, x []float32, first int) error {
	scale, mean := 0.1, 0.0
	switch table := strings.Contains(p.Name, "embed_tokens") || strings.Contains(p.Name, ".wte") || strings.Contains(p.Name, ".wpe"); {
	case len(p.Shape) == 1 && !strings.HasSuffix(p.Name, "bias"):
		scale, mean = 0, 1
	case table:
		scale = 1
	case strings.HasSuffix(p.Name, ".lora_A.weight"):
		scale = 1 / math.Sqrt(3*float64(p.Shape[1]))
	case strings.HasSuffix(p.Name, ".lora_B.weight"):
		scale = 0
	case len(p.Shape) == 2:
		scale = 1 / math.Sqrt(float64(min(p.Shape[0], p.Shape[1])))
	}
	uniform(r.Seed, p.Name, x, first, scale, mean)
	return nil
}

// Initial are the weights that the training of a model begins with, as GPT-2's did: of matrices and tables
// numbers of deviation 0.02, of those whose product is added to the residual stream 0.02/√(2·Layers); of norms 1,
// of biases 0. The numbers are uniform.
type Initial struct {
	Seed   uint64
	Layers int
}

// Read is of Weights.
func (r Initial) Read(p Param, x []float32, first int) error {
	scale, mean := 0.02, 0.0
	switch {
	case len(p.Shape) == 1 && strings.HasSuffix(p.Name, "bias"):
		scale = 0
	case len(p.Shape) == 1:
		scale, mean = 0, 1
	case strings.HasSuffix(p.Name, ".c_proj.weight") || strings.HasSuffix(p.Name, ".o_proj.weight") || strings.HasSuffix(p.Name, ".down_proj.weight"):
		scale /= math.Sqrt(2 * float64(r.Layers))
	}
	uniform(r.Seed, p.Name, x, first, scale, mean)
	return nil
}

// uniform fills x with uniform numbers of a deviation and a mean, which a seed, a name and their places
// determine, from element first on.
func uniform(seed uint64, name string, x []float32, first int, deviation, mean float64) {
	h := fnv.New64a()
	h.Write([]byte(name))
	const run = 1 << 12 // numbers of a generator
	end := first + len(x)
	parallel.For((end-1)/run-first/run+1, func(i int) {
		begin := (first/run + i) * run
		source := rand.NewPCG(seed, h.Sum64()+uint64(begin/run))
		for at := begin; at < min(begin+run, end); at++ {
			if v := source.Uint64(); at >= first {
				x[at-first] = float32(mean + deviation*math.Sqrt(12)*(float64(v>>11)/(1<<53)-0.5))
			}
		}
	})
}
