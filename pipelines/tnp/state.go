package tnp

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// Prefixes of moments in a file. The name of the parameter follows.
const (
	firstMoment  = "adamw.m."
	secondMoment = "adamw.v."
)

// SaveState writes all that a training needs to go on: weights under their names, moments as
// adamw.m.NAME and adamw.v.NAME. Metadata has the number of steps, the loss scale of the moments,
// and what the caller adds. The file appears whole or not at all, even if the program is killed
// meanwhile. A state that is not finite, from which no training goes on, is an error that names the
// tensor, and leaves the file as it was.
func (m *Model) SaveState(ctx context.Context, path string, more map[string]string) error {
	steps, err := m.Steps(ctx)
	if err != nil {
		return err
	}
	metadata := maps.Clone(more)
	if metadata == nil {
		metadata = map[string]string{}
	}
	maps.Copy(metadata, m.c.metadata())
	metadata["steps"], metadata["loss_scale"] = strconv.Itoa(steps), strconv.FormatFloat(m.o.scale(), 'g', -1, 64)
	var tensors []safetensors.Tensor
	for _, x := range m.state() {
		for _, p := range m.c.Params() {
			tensors = append(tensors, safetensors.Tensor{Name: x.prefix + p.Name, DType: safetensors.F32, Shape: p.Shape})
		}
	}
	out, err := safetensors.Create(path, tensors, metadata)
	if err != nil {
		return err
	}
	defer out.Close()
	for _, x := range m.state() {
		w, err := m.download(ctx, x.tensor, 1)
		if err != nil {
			return err
		}
		for _, p := range m.c.Params() {
			err := checkSaved(x.prefix, p.Name, w[p.Name])
			if err == nil {
				err = out.WriteFloat32s(x.prefix+p.Name, w[p.Name])
			}
			if err != nil {
				return err
			}
		}
	}
	return out.Commit()
}

// A saved tensor is one of the model's, which a file has parameter by parameter.
type saved struct {
	prefix string
	tensor vk.Tensor
}

func (m *Model) state() []saved {
	return []saved{{"", m.params}, {firstMoment, m.m}, {secondMoment, m.v}}
}

// LoadState reads what SaveState wrote of a model of the same sizes. The next steps have the same
// bits as without the file. A value that is infinite, NaN, or a negative second moment is an error
// that names it.
func (m *Model) LoadState(ctx context.Context, f *safetensors.File) error {
	if m.adam == nil {
		return fmt.Errorf("tnp: a model of pass %v is not trained", m.o.Pass)
	}
	w, c, err := Load(f, 0)
	if err != nil {
		return err
	}
	if c != m.c {
		return fmt.Errorf("tnp: the file has a model of %v, want %v", c, m.c)
	}
	steps, err := strconv.Atoi(f.Metadata["steps"])
	if err != nil || steps < 0 {
		return fmt.Errorf("tnp: metadata steps=%q is not a number of steps", f.Metadata["steps"])
	}
	scale, err := strconv.ParseFloat(f.Metadata["loss_scale"], 64)
	if err != nil || (ModelOptions{LossScale: scale}).Validate() != nil || scale == 0 {
		return fmt.Errorf("tnp: metadata loss_scale=%q is not a power of two from 2^-20 to 2^40", f.Metadata["loss_scale"])
	}
	ratio := float32(m.o.scale() / scale)
	moments := map[string]Weights{firstMoment: {}, secondMoment: {}}
	for prefix, factor := range map[string]float32{firstMoment: ratio, secondMoment: ratio * ratio} {
		for _, p := range c.Params() {
			p.Name = prefix + p.Name
			x, err := readParam(f, p)
			if err != nil {
				return err
			}
			name := p.Name[len(prefix):]
			if err := checkSaved(prefix, name, x); err != nil {
				return err
			}
			for i := range x {
				x[i] *= factor
			}
			if i := notFinite(x); i >= 0 {
				return fmt.Errorf("tnp: %s[%d] is beyond float32 with loss scale %g; the file has %g", p.Name, i, m.o.scale(), scale)
			}
			moments[prefix][name] = x
		}
	}
	if err := m.SetWeights(ctx, w); err != nil {
		return err
	}
	if err := m.m.Upload(ctx, c.pack(moments[firstMoment])); err != nil {
		return err
	}
	if err := m.v.Upload(ctx, c.pack(moments[secondMoment])); err != nil {
		return err
	}
	return m.adam.SetStep(ctx, steps)
}

// NotFinite returns the name of the first tensor with an infinity or a NaN, or "". Gradients come
// first, in the order of the backward pass, then weights and moments.
func (m *Model) NotFinite(ctx context.Context) (string, error) {
	params := m.c.Params()
	for _, x := range []saved{{"the gradient of ", m.grads}, {"", m.params}, {firstMoment, m.m}, {secondMoment, m.v}} {
		if x.tensor.IsZero() {
			continue
		}
		w, err := m.download(ctx, x.tensor, 1)
		if err != nil {
			return "", err
		}
		for i := range params {
			if name := params[len(params)-1-i].Name; notFinite(w[name]) >= 0 {
				return x.prefix + name, nil
			}
		}
	}
	return "", nil
}
