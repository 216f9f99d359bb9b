package tnp

import (
	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// A Variant says how much of the model is one kernel, for comparisons. A variant that the device
// lacks is an error that wraps vk.ErrUnsupported.
//
//	          attention             perceptrons of blocks     heads and loss
//	Fastest   what is the fastest   likewise                  likewise
//	Unfused   S in memory           two products              outputs in memory, then gmm
//	Separate  one kernel            two products              outputs in memory, then gmm
//	Fused     one kernel            one kernel forward,       one kernel forward
//	                                whose hidden units are
//	                                computed again backward
type Variant uint8

// The variants.
const (
	Fastest Variant = iota
	Unfused
	Separate
	Fused
)

var variantNames = enum.Names[Variant]{"auto", "unfused", "separate", "fused"}

// String returns auto, unfused, separate or fused.
func (v Variant) String() string { return variantNames.Of(v) }

// ParseVariant accepts the names that String returns.
func ParseVariant(name string) (Variant, error) { return variantNames.Parse("tnp: variant", name) }

// attention, mlp and mixture return the options of these packages.
func (o *PlanOptions) attention() attention.Options {
	if o.Variant == Unfused {
		return attention.Options{Impl: attention.Unfused}
	}
	return attention.Options{Impl: o.Attention}
}

func (o *PlanOptions) mlp() mlp.Options {
	opt := mlp.Options{Impl: o.Products}
	switch o.Variant {
	case Unfused, Separate:
		opt.Fused = mlp.FusedOff
	case Fused:
		opt.Fused = mlp.FusedOn
	}
	return opt
}

func (o *PlanOptions) mixture() mixture.Options {
	return mixture.Options{Impl: o.Products, Outputs: o.Variant == Unfused || o.Variant == Separate}
}
