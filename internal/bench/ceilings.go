package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A Ceiling is the highest rate of one kind of work on a device.
type Ceiling struct {
	Name   string // of the loop
	Unit   string // FLOP/s or B/s
	Work   float64
	Timing Timing
	Reason string // why there is no rate: the device cannot do it
	Wrong  error  // its results are wrong

	Modules []vk.ModuleInfo // that the loop runs; nil if the device cannot do it
}

// Rate returns the median rate, 0 if there is none.
func (c *Ceiling) Rate() float64 {
	ns := Summarize(c.Timing.DeviceNS).Median
	if ns == 0 {
		return 0
	}
	return c.Work / ns * 1e9
}

// ceilingCall is how long a call of a loop should take, which is long against the cost of
// starting it.
const ceilingCall = 2 * time.Millisecond

// Ceilings checks and times the loops, in turns. A loop that the device cannot
// run has a Reason. A loop that is wrong is not timed.
func Ceilings(ctx context.Context, d *vk.Device, pr Protocol, progress Progress) ([]Ceiling, error) {
	return ceilings(ctx, d, pr, loopNames, progress)
}

// CopyRate returns the bytes a second that a copy reads and writes, 0 if the device cannot run
// it.
func CopyRate(ctx context.Context, d *vk.Device, pr Protocol) (float64, error) {
	list, err := ceilings(ctx, d, pr, []string{copyLoop}, nil)
	if err != nil {
		return 0, err
	}
	return list[0].Rate(), list[0].Wrong
}

func ceilings(ctx context.Context, d *vk.Device, pr Protocol, names []string, progress Progress) ([]Ceiling, error) {
	list := make([]Ceiling, len(names))
	var targets []Target
	var timed []int
	step := progress.Steps(len(names) + MeasureSteps(len(names), pr))
	for i, name := range names {
		step("checking " + name)
		list[i].Name = name
		l, err := newLoop(d, name)
		if errors.Is(err, vk.ErrUnsupported) || errors.Is(err, vk.ErrOutOfDeviceMemory) {
			list[i].Reason = Reason("micro", "auto", err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		defer l.close()
		list[i].Unit = l.unit
		err = l.check(ctx)
		list[i].Modules = l.modules
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, vk.ErrDeviceLost) {
				return nil, err
			}
			list[i].Wrong = err
			continue
		}
		if err := l.calibrate(ctx, ceilingCall); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list[i].Work = l.perIter * float64(l.iters)
		targets = append(targets, Target{Name: name, Record: l.record})
		timed = append(timed, i)
	}
	pr.WallTime = -1
	measured, err := Measure(ctx, d, targets, 1, pr, func() { step("ceilings") })
	if err != nil {
		return nil, err
	}
	for j, m := range measured {
		list[timed[j]].Timing = m.Timing
	}
	return list, nil
}

// A Peak has the rates that the work of a problem is compared with, 0 where they are not known.
type Peak struct {
	FLOPs, Bytes float64
	Name         string // of the loop that FLOPs is from
	Note         string // how it was derived from the loop's rate
}

// PeakOf returns the peak for kernels on matrices of a format, or for others.
func PeakOf(list []Ceiling, matrices bool, t dtype.DType) Peak {
	var p Peak
	find := func(name string) float64 {
		for i := range list {
			if list[i].Name == name {
				return list[i].Rate()
			}
		}
		return 0
	}
	p.Bytes = find(copyLoop)
	p.Name = fmaLoop
	if matrices {
		p.Name = "matrix " + t.Short()
	}
	if p.Name == "matrix f32" { // shaders/lib/fwd_f32x2.glsl
		p.Name, p.Note = "matrix f16", "divided by 3: a product of float32 is three of float16"
		p.FLOPs = find(p.Name) / 3
		return p
	}
	p.FLOPs = find(p.Name)
	return p
}
