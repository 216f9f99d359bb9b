package lm

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
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
