package tnp

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/safetensors"
)

// Save writes weights as a safetensors file of float32 that PyTorch loads as a state dict. The
// file appears whole or not at all. A parameter that is missing or has another size is an error that
// names it, and so are more weights than parameters.
func Save(path string, w Weights, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	for _, p := range c.Params(dtype.Float32) {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: safetensors.F32, Shape: p.Shape})
	}
	out, err := safetensors.Create(path, tensors, c.metadata())
	if err != nil {
		return err
	}
	defer out.Close()
	for _, p := range c.Params(dtype.Float32) {
		if err := out.WriteFloat32s(p.Name, w[p.Name]); err != nil {
			return err
		}
	}
	if len(w) > len(tensors) {
		return fmt.Errorf("tnp: there are %d weights, but a model of %v has %d parameters", len(w), c, len(tensors))
	}
	return out.Commit()
}

// metadata has the number of heads, which the shapes of tensors do not tell.
func (c Config) metadata() map[string]string {
	return map[string]string{"heads": fmt.Sprint(c.Heads)}
}

// Load reads the weights of a file, and finds the sizes of the model in their shapes. Heads is
// the number of heads of attention, which shapes do not tell; 0 takes the number that Save wrote.
// Tensors are F32, F16 or BF16. Tensors that are no parameters are ignored. A parameter that is
// infinite or NaN is an error that names it.
func Load(f *safetensors.File, heads int) (Weights, Config, error) {
	c, err := ReadConfig(f, heads)
	if err != nil {
		return nil, c, err
	}
	w := Weights{}
	for _, p := range c.Params(dtype.Float32) {
		if w[p.Name], err = p.Read(f); err != nil {
			return nil, c, err
		}
	}
	return w, c, nil
}

// ReadConfig finds the sizes of a model in the shapes of a file's tensors. Heads is as in Load. A
// parameter that is missing, or has a shape that does not follow, is an error that names it.
func ReadConfig(f *safetensors.File, heads int) (c Config, err error) {
	if text := f.Metadata["heads"]; heads == 0 && text != "" {
		if heads, err = strconv.Atoi(text); err != nil {
			return c, fmt.Errorf("tnp: metadata heads=%q is not a number", text)
		}
	}
	if heads < 1 {
		return c, fmt.Errorf("tnp: heads=%d is not positive, and the file does not say how many there are", heads)
	}
	shape := func(name string, rank int) []int {
		t, ok := f.Tensor(name)
		switch {
		case err != nil:
		case !ok:
			err = fmt.Errorf("tnp: tensor %q is missing", name)
		case len(t.Shape) != rank:
			err = fmt.Errorf("tnp: tensor %q has shape %v, want %d axes", name, t.Shape, rank)
		default:
			return t.Shape
		}
		return make([]int, rank)
	}
	embed, qkv, up := shape("embed.weight", 2), shape(BlockName(0, "qkv.weight"), 2), shape("heads.up", 3)
	if err != nil {
		return c, err
	}
	c.Layers = layers(f)
	c.Heads, c.DModel, c.InputDim, c.Components, c.DFF = heads, embed[0], embed[1], up[0], up[2]
	if qkv[0]%(3*heads) != 0 {
		return c, fmt.Errorf("tnp: %s has %d rows, which %d heads of q, k and v do not divide", BlockName(0, "qkv.weight"), qkv[0], heads)
	}
	c.HeadDim = qkv[0] / (3 * heads)
	if err := c.Validate(); err != nil {
		return c, err
	}
	for _, p := range c.Params(dtype.Float32) {
		if _, err := p.Find(f); err != nil {
			return c, err
		}
	}
	return c, nil
}

// blockParam matches the parameters of blocks.
var blockParam = regexp.MustCompile(`^blocks\.(0|[1-9]\d{0,8})\.(norm1|qkv|out|norm2|up|down)\.weight$`)

// layers returns one more than the highest block that the file has a parameter of.
func layers(f *safetensors.File) (n int) {
	for _, t := range f.Tensors() {
		if m := blockParam.FindStringSubmatch(t.Name); m != nil {
			i, _ := strconv.Atoi(m[1]) // of at most nine digits
			n = max(n, i+1)
		}
	}
	return n
}
