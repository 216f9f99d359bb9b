package kernels

import (
	"maps"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A prefillOp is the beginning of a generation: Append of all keys to empty sequences, then Forward of
// as many queries with the keys in the cache.
type prefillOp struct {
	tunedOp[*decoding]
	forward bench.Op
}

func newPrefill(appends tunedOp[*decoding]) (bench.Op, error) {
	forward, err := Attention(appends.c.Problem)
	return prefillOp{appends, forward}, err
}

// Cost implements bench.Op.
func (o prefillOp) Cost(pass bench.Pass) (flops, bytes float64) {
	flops, bytes = o.forward.Cost(pass)
	return flops, bytes + o.c.appendBytes()
}

// Amounts says what else reports count: the cache, which is written and read.
func (o prefillOp) Amounts() []bench.Amount {
	p := &o.c.DecodeProblem
	return []bench.Amount{
		{Name: "tokens", Key: "token", Unit: "token", N: float64(p.Batch * p.SeqQ)},
		{Name: "K and V", Key: "kv_byte", Unit: "B", N: 2 * float64(p.DType.Size()*(call.Product(p.KShape())+call.Product(p.VShape())))},
	}
}

// Tensors implements bench.Op. K and V of the forward pass are in the cache.
func (o prefillOp) Tensors() (list []call.Tensor) {
	for _, t := range o.forward.Tensors() {
		if t.Role <= call.Output && t.Name != "k" && t.Name != "v" {
			list = append(list, t)
		}
	}
	for _, t := range o.tunedOp.Tensors() {
		if t.Role == call.Update {
			t.Role = call.Output
		}
		if t.Name != "q" {
			list = append(list, t)
		}
	}
	return list
}

// Choose implements bench.Op.
func (o prefillOp) Choose(caps *vk.Caps, impl string, p bench.Pass) (kit.Plan, error) {
	before, err := o.tunedOp.Choose(caps, impl, p)
	if err != nil {
		return nil, err
	}
	plan, err := o.forward.Choose(caps, impl, p)
	return prefillPlan{plan, before}, err
}

// A prefillPlan is the plan of the forward pass after Append.
type prefillPlan struct {
	kit.Plan
	before kit.Plan
}

// Kernels implements kit.Plan.
func (p prefillPlan) Kernels() []string { return append(p.before.Kernels(), p.Plan.Kernels()...) }

// Record implements bench.Op.
func (o prefillOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p bench.Pass) error {
	if err := o.tunedOp.Record(c, t, nil, impl, p); err != nil {
		return err
	}
	t = maps.Clone(t)
	for name, cache := range map[string]string{"k": "k_cache", "v": "v_cache"} {
		if t[name] = t[cache]; o.c.KeysFirst {
			t[name] = t[cache].Permute(0, 2, 1, 3)
		}
	}
	return o.forward.Record(c, t, workspace, impl, p)
}

// Reference implements bench.Op.
func (o prefillOp) Reference(t map[string][]float32, pass bench.Pass) (bench.Expectations, error) {
	t = maps.Clone(t)
	t["k"], t["v"] = t["k_new"], t["v_new"]
	return o.forward.Reference(t, pass)
}

// Use implements bench.Tuner.
func (o prefillOp) Use(tuning *kit.Tuning) bench.Op {
	return prefillOp{o.tunedOp, o.forward.(bench.Tuner).Use(tuning)}
}

// Note says what the dispatches of a call do.
func (o prefillOp) Note(caps *vk.Caps, impl string, p bench.Pass, list []bench.DispatchProfile) error {
	noted, ok := o.forward.(bench.Noter)
	if ok {
		if err := noted.Note(caps, impl, p, list); err != nil {
			return err
		}
	}
	for i := range list {
		if isAppend(list[i].Kernel) {
			list[i].Note.FLOPs, list[i].Note.Bytes = 0, o.c.appendBytes()
		}
	}
	return nil
}
