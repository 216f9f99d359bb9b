package train

import (
	"context"
	"regexp"

	"github.com/flashvk/flashvk/vk"
)

// A Stage is the time of all steps of one kind, over all blocks.
type Stage struct {
	Name       string // as in attention, backward
	Dispatches int
	NS         float64 // device time, each dispatch by itself
}

// maxDispatches is how many dispatches a Trace holds: 1,024 blocks have fewer.
const maxDispatches = 1 << 16

// Stages runs the plan once more with a timestamp around each dispatch. It returns the time of
// each stage, in the order in which they first ran. Dispatches run one after the other, so the
// sum is more than the time of Run. It is a step like any other: a plan of pass Train changes the
// weights. With Options.Accumulate it is the last batch of a step.
func (p *Plan) Stages(ctx context.Context) ([]Stage, error) {
	trace, err := p.m.d.NewTrace(maxDispatches)
	if err != nil {
		return nil, err
	}
	defer trace.Close()
	c, err := p.m.d.NewCmd("train stages")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.Trace(trace)
	var steps []string // of each dispatch
	step := ""
	follow := func() {
		for len(steps) < len(trace.Dispatches()) {
			steps = append(steps, step)
		}
	}
	if err := p.record([]*vk.Cmd{c}, p.batches()-1, func(name string) { follow(); step = stageOf(name) }); err != nil {
		return nil, err
	}
	follow()
	if err := c.Submit(ctx); err != nil {
		return nil, err
	}
	begin, end, err := trace.Times()
	if err != nil {
		return nil, err
	}
	var list []Stage
	at := map[string]int{}
	for i, name := range steps {
		if _, ok := at[name]; !ok {
			at[name] = len(list)
			list = append(list, Stage{Name: name})
		}
		s := &list[at[name]]
		s.Dispatches++
		s.NS += end[i] - begin[i]
	}
	return list, nil
}

// ofBlock matches the names of a block, such as "blocks.3.", "model.layers.3." or one after the other.
var ofBlock = regexp.MustCompile(`^.*\b\d+\.`)

// stageOf returns the stage of a step: its name without the name of its block.
func stageOf(step string) string { return ofBlock.ReplaceAllString(step, "") }
