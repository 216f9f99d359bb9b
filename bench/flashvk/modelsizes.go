package main

import (
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/pipelines/tnp"
)

// modelSizes are the flags that override the sizes of a shape.
var modelSizes = []struct {
	name, usage string
	of          func(*tnp.Config, *tnp.Shape) *int
	model       bool // else of the batch
}{
	{"layers", "blocks", func(c *tnp.Config, _ *tnp.Shape) *int { return &c.Layers }, true},
	{"d-model", "elements of the residual stream, a multiple of 8", func(c *tnp.Config, _ *tnp.Shape) *int { return &c.DModel }, true},
	{"heads", "heads of attention", func(c *tnp.Config, _ *tnp.Shape) *int { return &c.Heads }, true},
	{"headdim", "elements of a head, a multiple of 8", func(c *tnp.Config, _ *tnp.Shape) *int { return &c.HeadDim }, true},
	{"d-ff", "hidden units", func(c *tnp.Config, _ *tnp.Shape) *int { return &c.DFF }, true},
	{"components", "of the mixture that is predicted", func(c *tnp.Config, _ *tnp.Shape) *int { return &c.Components }, true},
	{"batch", "tasks of a step", func(_ *tnp.Config, s *tnp.Shape) *int { return &s.Batch }, false},
	{"context", "points of a task that are shown", func(_ *tnp.Config, s *tnp.Shape) *int { return &s.Context }, false},
	{"targets", "points of a task that are predicted", func(_ *tnp.Config, s *tnp.Shape) *int { return &s.Targets }, false},
}

// addModelSizes adds the flags.
func addModelSizes(f *pflag.FlagSet, c *tnp.Config, s *tnp.Shape) {
	for _, x := range modelSizes {
		intVar(f, x.of(c, s), x.name, x.usage+" (default the shape's)")
	}
}

// takeModelSizes takes the sizes without a flag from a preset.
func takeModelSizes(f *pflag.FlagSet, c *tnp.Config, s *tnp.Shape, p tnp.Preset) {
	for _, x := range modelSizes {
		if !f.Changed(x.name) {
			*x.of(c, s) = *x.of(&p.Config, &p.Shape)
		}
	}
	c.InputDim = p.InputDim
}
