package lm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/safetensors"
)

// A Checkpoint is a folder with config.json and weights: model.safetensors, or the shards that
// model.safetensors.index.json lists. Its methods may be called by several goroutines at once,
// except Close.
type Checkpoint struct {
	Config Config
	Dir    string
	DType  dtype.DType // of most of the weights

	files   []*safetensors.File
	names   []string          // of files
	tensors map[string]source // by the name of the parameter
}

// A source is where a tensor lies.
type source struct {
	file   *safetensors.File
	tensor safetensors.Tensor
}

// Read is of Weights, for the bytes of a tensor that is no parameter.
func (s source) Read(_ Param, _ dtype.DType, p []byte, first int64) error {
	return s.file.ReadAt(s.tensor, p, first)
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
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	shards, index, err := shardsOf(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range shards {
		f, err := safetensors.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("lm: %w", err)
		}
		c.files, c.names = append(c.files, f), append(c.names, name)
		for _, t := range f.Tensors() {
			if index != nil && index[t.Name] != name {
				return nil, fmt.Errorf("lm: %s: tensor %q is in %s, but the index says %q", dir, t.Name, name, index[t.Name])
			}
			if key := config.key(t.Name); key != "" {
				c.tensors[key] = source{f, t}
			}
		}
	}
	return c, c.check()
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
		if !slices.Contains(shards, name) {
			shards = append(shards, name)
		}
	}
	slices.Sort(shards)
	return shards, x.Map, nil
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
		if !slices.Equal(s.tensor.Shape, p.Shape) {
			return fmt.Errorf("lm: %s: tensor %q has shape %v, config.json wants %v", c.Dir, s.tensor.Name, s.tensor.Shape, p.Shape)
		}
		format, ok := formats[s.tensor.DType]
		if !ok {
			return fmt.Errorf("lm: %s: tensor %q is %s, want F32, F16 or BF16", c.Dir, s.tensor.Name, s.tensor.DType)
		}
		bytes[format] += s.tensor.Bytes()
	}
	for _, key := range slices.Sorted(maps.Keys(c.tensors)) {
		if !params[key] {
			return fmt.Errorf("lm: %s: tensor %q is none of the parameters that config.json describes", c.Dir, c.tensors[key].tensor.Name)
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

// Read is of Weights. An element that the format cannot hold is an error.
func (c *Checkpoint) Read(x Param, t dtype.DType, p []byte, first int64) error {
	s, ok := c.tensors[x.Name]
	if !ok {
		return fmt.Errorf("lm: %s: there is no parameter %q", c.Dir, x.Name)
	}
	format := formats[s.tensor.DType]
	if format == t {
		return s.file.ReadAt(s.tensor, p, first*int64(t.Size()))
	}
	n := len(p) / t.Size()
	raw, values := make([]byte, n*format.Size()), make([]float32, n)
	if err := s.file.ReadAt(s.tensor, raw, first*int64(format.Size())); err != nil {
		return err
	}
	storage.Decode(format, values, raw)
	return encode(x.Name, t, p, values, first)
}

// encode writes elements of a parameter, from element first on, in a format.
func encode(name string, t dtype.DType, p []byte, values []float32, first int64) error {
	if t == dtype.Float16 {
		for i, v := range values {
			if a := math.Abs(float64(v)); a > 65504 && !math.IsInf(a, 1) {
				return fmt.Errorf("lm: tensor %q: element %d is %v, beyond the 65504 of float16: take bfloat16 or float32", name, first+int64(i), v)
			}
		}
	}
	storage.Encode(t, p, values)
	return nil
}

// float32s reads n elements of a parameter from element first on.
func float32s(w Weights, x Param, first, n int64) ([]float32, error) {
	raw, values := make([]byte, 4*n), make([]float32, n)
	if err := w.Read(x, dtype.Float32, raw, first); err != nil {
		return nil, err
	}
	storage.Decode(dtype.Float32, values, raw)
	return values, nil
}

// Close closes the files. It may be called again, and on nil.
func (c *Checkpoint) Close() {
	if c == nil {
		return
	}
	for _, f := range c.files {
		f.Close()
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
	if len(c.files) == 0 {
		if err := write(dir, c.Config.Params(), c.DType, 5e9, w); err != nil {
			return err
		}
	}
	for i, f := range c.files {
		if err := c.copyFile(filepath.Join(dir, c.names[i]), f, w); err != nil {
			return err
		}
	}
	list, err := os.ReadDir(c.Dir)
	if err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	var names []string
	for _, entry := range list {
		info, err := os.Stat(filepath.Join(c.Dir, entry.Name())) // of what a link leads to
		text := slices.Contains([]string{".json", ".jinja", ".txt", ".model"}, filepath.Ext(entry.Name()))
		if err == nil && info.Mode().IsRegular() && text && entry.Name() != configFile && (entry.Name() != indexFile || len(c.files) > 0) {
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

// copyFile writes a file of tensors with the weights for those that are parameters.
func (c *Checkpoint) copyFile(path string, f *safetensors.File, weights Weights) error {
	return writeTensors(path, f.Tensors(), f.Metadata, func(t safetensors.Tensor) (Param, dtype.DType, Weights) {
		p := Param{c.Config.key(t.Name), t.Shape}
		switch {
		case p.Name == "" && t.Name == headName: // of a model that ties it
			p.Name = c.Config.names().embed
		case p.Name == "":
			return Param{Shape: []int{int(t.Bytes())}}, dtype.Int8, source{f, t}
		}
		return p, formats[t.DType], weights
	})
}

// write writes weights into the safetensors files of a folder, of at most shardBytes each, with an
// index if there are several.
func write(dir string, params []Param, format dtype.DType, shardBytes int64, w Weights) error {
	shards := [][]Param{nil}
	var bytes int64
	for _, p := range params {
		n := p.elements() * int64(format.Size())
		if last := len(shards) - 1; bytes+n > shardBytes && len(shards[last]) > 0 {
			shards, bytes = append(shards, nil), 0
		}
		shards[len(shards)-1] = append(shards[len(shards)-1], p)
		bytes += n
	}
	index := map[string]string{}
	for i, shard := range shards {
		name := weightsFile
		if len(shards) > 1 {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		}
		for _, p := range shard {
			index[p.Name] = name
		}
		if err := writeShard(filepath.Join(dir, name), shard, format, w); err != nil {
			return err
		}
	}
	if len(shards) == 1 {
		return nil
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{}, "weight_map": index})
	if err != nil {
		return err
	}
	if err := files.Write(filepath.Join(dir, indexFile), text); err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	return nil
}

// writeShard writes a file. Its metadata is what Transformers wants.
func writeShard(path string, params []Param, format dtype.DType, weights Weights) error {
	var list []safetensors.Tensor
	for _, p := range params {
		list = append(list, safetensors.Tensor{Name: p.Name, DType: safetensors.DType(strings.ToUpper(format.Short())), Shape: p.Shape})
	}
	return writeTensors(path, list, map[string]string{"format": "pt"}, func(t safetensors.Tensor) (Param, dtype.DType, Weights) {
		return Param{t.Name, t.Shape}, format, weights
	})
}

// writeTensors writes a file. Of says which weights a tensor has.
func writeTensors(path string, list []safetensors.Tensor, metadata map[string]string, of func(t safetensors.Tensor) (Param, dtype.DType, Weights)) error {
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
		p, format, w := of(t)
		if err := pieces(p, format, w, func(b []byte, _ int64) error {
			_, err := to.Write(b)
			return err
		}); err != nil {
			return err
		}
	}
	return out.Commit()
}
