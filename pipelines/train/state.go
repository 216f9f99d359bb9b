package train

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// Prefixes of moments in a file. The name of the parameter follows.
const (
	firstMoment  = "adamw.m."
	secondMoment = "adamw.v."
)

// A saved tensor is one of the model's, which a file has parameter by parameter.
type saved struct {
	prefix, rule string
	of           bufferOf
}

func state() []saved {
	return []saved{
		{"", "parameters are finite", weightsOf},
		{firstMoment, "moments are finite", func(g *group) vk.Tensor { return g.m }},
		{secondMoment, "second moments are finite and not negative", func(g *group) vk.Tensor { return g.v }},
	}
}

// trained lists the parameters that are trained.
func (m *Model) trained() []Param {
	return slices.DeleteFunc(slices.Clone(m.layout.params), func(p Param) bool {
		return m.layout.slots[p.Name].group.frozen
	})
}

// untrained returns an error if there is no optimizer.
func (m *Model) untrained() error {
	if m.adam == nil {
		return fmt.Errorf("train: a model of pass %v is not trained", m.o.Pass)
	}
	return nil
}

// SaveState writes all that a training needs to go on: the parameters that are trained under their
// names, moments as adamw.m.NAME and adamw.v.NAME. Metadata has the number of steps, the loss scale of
// the moments, and what the caller adds. The file appears whole or not at all, even if the program is
// killed meanwhile. A state that is not finite, from which no training goes on, is an error that names
// the tensor, and leaves the file as it was.
func (m *Model) SaveState(ctx context.Context, path string, more map[string]string) error {
	steps, err := m.Steps(ctx)
	if err != nil {
		return err
	}
	metadata := map[string]string{}
	maps.Copy(metadata, more)
	maps.Copy(metadata, m.o.Metadata)
	if err := m.adjust(ctx); err != nil { // as the next step would
		return err
	}
	metadata["steps"], metadata["loss_scale"] = strconv.Itoa(steps), strconv.FormatFloat(m.scale, 'g', -1, 64)
	if m.o.GoodSteps > 0 {
		metadata["good_steps"] = strconv.Itoa(steps - m.since)
	}
	var tensors []safetensors.Tensor
	for _, x := range state() {
		for _, p := range m.trained() {
			tensors = append(tensors, safetensors.Tensor{Name: x.prefix + p.Name, DType: safetensors.F32, Shape: p.Shape})
		}
	}
	out, err := safetensors.Create(path, tensors, metadata)
	if err != nil {
		return err
	}
	defer out.Close()
	for _, x := range state() {
		for _, p := range m.trained() {
			v, err := m.read(ctx, p.Name, x.of)
			if err == nil {
				err = x.check(x.prefix+p.Name, v)
			}
			if err == nil {
				err = out.WriteFloat32s(x.prefix+p.Name, v)
			}
			if err != nil {
				return err
			}
		}
	}
	return out.Commit()
}

// LoadState reads what SaveState wrote of a model of the same parameters. The next steps have the same
// bits as without the file. A parameter that is missing or has another shape, and a value that is
// infinite, NaN, or a negative second moment, is an error that names it, and changes nothing.
func (m *Model) LoadState(ctx context.Context, f *safetensors.File) error {
	if err := m.untrained(); err != nil {
		return err
	}
	for name, want := range m.o.Metadata {
		if is := f.Metadata[name]; is != want {
			return fmt.Errorf("train: metadata %s=%q is not %q", name, is, want)
		}
	}
	steps, err := strconv.Atoi(f.Metadata["steps"])
	if err != nil || steps < 0 {
		return fmt.Errorf("train: metadata steps=%q is not a number of steps", f.Metadata["steps"])
	}
	scale, err := strconv.ParseFloat(f.Metadata["loss_scale"], 64)
	if err != nil || !validScale(scale) {
		return fmt.Errorf("train: metadata loss_scale=%q is not a power of two from 2^-20 to 2^40", f.Metadata["loss_scale"])
	}
	target, good := m.scale, 0
	if m.o.GoodSteps > 0 { // it goes on with the scale that it had
		target = scale
		if good, err = strconv.Atoi(cmp.Or(f.Metadata["good_steps"], "0")); err != nil || good < 0 {
			return fmt.Errorf("train: metadata good_steps=%q is not a number of steps", f.Metadata["good_steps"])
		}
	}
	ratio := float32(target / scale)
	factors := []float32{1, ratio, ratio * ratio}
	values := make([]map[string][]float32, len(factors))
	for i, x := range state() {
		values[i] = map[string][]float32{}
		for _, p := range m.trained() {
			v, err := x.read(f, p)
			if err != nil {
				return err
			}
			for j := range v {
				v[j] *= factors[i]
			}
			if j := NotFinite(v); j >= 0 {
				return fmt.Errorf("train: %s%s[%d] is beyond float32 with loss scale %g; the file has %g",
					x.prefix, p.Name, j, target, scale)
			}
			values[i][p.Name] = v
		}
	}
	for i, x := range append(state(), saved{of: roundedOf}) { // which are the parameters, too
		for name, v := range values[i%len(values)] {
			if err := m.layout.slots[name].write(ctx, x.of, 0, v); err != nil {
				return err
			}
		}
	}
	m.since = steps - good
	if err := m.rescaled(target); err != nil {
		return err
	}
	return m.adam.SetStep(ctx, steps)
}

// Find returns the tensor of a parameter in a file. An error names one that is missing or has another shape.
func (p Param) Find(f *safetensors.File) (safetensors.Tensor, error) {
	t, ok := f.Tensor(p.Name)
	if !ok {
		return t, fmt.Errorf("train: tensor %q is missing", p.Name)
	} else if !slices.Equal(t.Shape, p.Shape) {
		return t, fmt.Errorf("train: tensor %q has shape %v, want %v", t.Name, t.Shape, p.Shape)
	}
	return t, nil
}

// Read reads a parameter of a file. An error is that of Find, or names the first element that is infinite or NaN.
func (p Param) Read(f *safetensors.File) ([]float32, error) { return state()[0].read(f, p) }

func (x saved) read(f *safetensors.File, p Param) ([]float32, error) {
	p.Name = x.prefix + p.Name
	t, err := p.Find(f)
	if err != nil {
		return nil, err
	}
	v, err := f.Float32s(t)
	if err != nil {
		return nil, err
	}
	return v, x.check(p.Name, v)
}

// check returns an error that names the first element of a tensor that no model has.
func (x saved) check(name string, values []float32) error {
	for i, v := range values {
		if v-v != 0 || x.prefix == secondMoment && v < 0 {
			return fmt.Errorf("train: %s[%d] is %v: %s", name, i, v, x.rule)
		}
	}
	return nil
}

// NotFinite returns the index of the first element that is infinite or NaN, -1 if there is none.
func NotFinite(x []float32) int {
	return slices.IndexFunc(x, func(v float32) bool { return v-v != 0 })
}

// NotFinite returns the name of the first tensor with an infinity or a NaN, or "". Gradients come
// first, in the order of the backward pass, then weights and moments.
func (m *Model) NotFinite(ctx context.Context) (string, error) {
	list := append([]saved{{"the gradient of ", "", func(g *group) vk.Tensor { return g.grads }}}, state()...)
	for _, x := range list {
		for _, p := range slices.Backward(m.layout.params) {
			v, err := m.read(ctx, p.Name, x.of)
			if err != nil {
				return "", err
			}
			if NotFinite(v) >= 0 {
				return x.prefix + p.Name, nil
			}
		}
	}
	return "", nil
}

// SetLR sets the learning rate of the steps that are run or started from now on, Optim.LR until
// then. It does not wait.
func (m *Model) SetLR(ctx context.Context, lr float64) error {
	if err := m.untrained(); err != nil {
		return err
	}
	return m.adam.SetLR(ctx, lr)
}

// Skipped returns how many steps were skipped because their gradients were not finite. It is 0 if
// Optim.MaxNorm is, see package optim.
func (m *Model) Skipped(ctx context.Context) (int, error) {
	return m.count(ctx, (*optim.AdamW).Skipped)
}

// Steps returns the number of steps so far.
func (m *Model) Steps(ctx context.Context) (int, error) { return m.count(ctx, (*optim.AdamW).Count) }

func (m *Model) count(ctx context.Context, of func(*optim.AdamW) vk.Tensor) (int, error) {
	if err := m.untrained(); err != nil {
		return 0, err
	}
	x := make([]int32, 1)
	err := of(m.adam).DownloadInts(ctx, x)
	return int(x[0]), err
}

// adjust changes a loss scale that follows the gradients (Options.GoodSteps), for which it waits for
// the last step.
func (m *Model) adjust(ctx context.Context) error {
	if m.o.GoodSteps == 0 || m.adam == nil {
		return nil
	}
	steps, err := m.Steps(ctx)
	if err != nil {
		return err
	}
	skipped, err := m.Skipped(ctx)
	scale := m.scale
	switch {
	case err != nil:
		return err
	case skipped > m.skipped:
		scale /= 2
	case steps-m.since >= m.o.GoodSteps:
		scale *= 2
	default:
		return nil
	}
	m.since, m.skipped = steps, skipped
	return m.setScale(ctx, scale)
}

// setScale multiplies the moments as the loss scale changes, so that no step does. A scale at the end
// of its range stays, and so does one that a moment has no room for.
func (m *Model) setScale(ctx context.Context, scale float64) error {
	if !validScale(scale) {
		return nil
	}
	ratio := float32(scale / m.scale)
	moments := map[*vk.Tensor][]float32{}
	for _, g := range m.layout.groups {
		for t, factor := range map[*vk.Tensor]float32{&g.m: ratio, &g.v: ratio * ratio} {
			if t.IsZero() {
				continue
			}
			x := make([]float32, g.size)
			if err := t.Download(ctx, x); err != nil {
				return err
			}
			for i := range x {
				x[i] *= factor
			}
			if NotFinite(x) >= 0 {
				return nil
			}
			moments[t] = x
		}
	}
	for t, x := range moments {
		if err := t.Upload(ctx, x); err != nil {
			return err
		}
	}
	return m.rescaled(scale)
}

// rescaled takes a loss scale, which the moments have.
func (m *Model) rescaled(scale float64) error {
	if err := m.adam.SetScale(scale / m.scale); err != nil {
		return err
	}
	m.scale = scale
	return nil
}

// rescale adjusts the loss scale before a step, and records anew if it is another.
func (p *Plan) rescale(ctx context.Context) error {
	if p.pass == Train && p.batch == 0 {
		if err := p.m.adjust(ctx); err != nil {
			return err
		}
	}
	if p.scale == p.m.scale || p.batch != 0 {
		return nil
	}
	for _, cmds := range p.cmds {
		for _, c := range cmds {
			if err := c.Wait(ctx); err != nil {
				return err
			}
		}
	}
	if err := p.constants(ctx); err != nil {
		return err
	}
	return p.recordAll()
}

// LossScale returns what the gradients are multiplied by. It is Options.LossScale but for
// Options.GoodSteps.
func (m *Model) LossScale() float64 { return m.scale }
