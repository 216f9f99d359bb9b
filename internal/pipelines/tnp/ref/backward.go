package ref

import (
	"math"
	"slices"

	gemmref "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	gmmref "github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

// backward computes the gradients of scale times the loss by all parameters.
func (m *model) backward(in Inputs, t *tape, scale float64) {
	c, inner := m.c, m.c.Heads*m.c.HeadDim
	dz := m.headsBackward(in, t, scale)
	dxt := m.store(m.normBackward(dz, t.xt, "norm.weight"))
	dx := m.scatter(dxt)
	for i := c.Layers - 1; i >= 0; i-- {
		b := &t.blocks[i]
		name := func(s string) string { return tnp.BlockName(i, s) }
		up, down := m.weight(name("up.weight"), c.DFF, c.DModel), m.weight(name("down.weight"), c.DModel, c.DFF)
		m.grads[name("down.weight")] = tn(dx, b.hidden).v
		dpre := m.store(nn(dx, down).times(b.pre, gemmref.DSiLU))
		m.grads[name("up.weight")] = tn(dpre, b.y2).v
		dy2 := m.store(nn(dpre, up))
		dx1 := m.store(plus(dx, m.normBackward(dy2, b.x1, name("norm2.weight"))))
		m.grads[name("out.weight")] = tn(dx1, b.o).v
		do := m.store(nn(dx1, m.weight(name("out.weight"), c.DModel, inner)))
		dqkv := m.store(m.attendBackward(b.qkv, b.o, do))
		m.grads[name("qkv.weight")] = tn(dqkv, b.y1).v
		dy1 := m.store(nn(dqkv, m.weight(name("qkv.weight"), 3*inner, c.DModel)))
		dx = m.store(plus(dx1, m.normBackward(dy1, b.x, name("norm1.weight"))))
	}
	m.grads["embed.weight"] = tn(dx, t.in).v
}

// headsBackward computes the gradients of the heads' weights, and returns the gradient of their
// input.
func (m *model) headsBackward(in Inputs, t *tape, scale float64) matrix {
	c, dheads := m.c, newMatrix(t.z.rows, 3*m.c.Components)
	mix, p := t.mixtures(in)
	g := gmmref.Backward(mix, scale, p)
	for i := range g.Logit {
		copy(dheads.v[3*i:], []float64{g.Logit[i], g.Mu[i], g.LogSigma[i]})
	}
	dheads = m.store(dheads)
	dz := newMatrix(t.z.rows, c.DModel)
	var dup, ddown []float64
	for k := range c.Components {
		dy := dheads.columns(3*k, 3*k+3)
		ddown = append(ddown, tn(t.hidden[k], dy).v...)
		dpre := m.store(nt(dy, m.head("heads.down", k, c.DFF, 3)).times(t.pre[k], gemmref.DSiLU))
		dup = append(dup, tn(t.z, dpre).v...)
		dz = plus(dz, nt(dpre, m.head("heads.up", k, c.DModel, c.DFF)))
	}
	m.grads["heads.up"], m.grads["heads.down"] = dup, ddown
	return m.store(dz)
}

// scatter returns the gradient of all rows, given the gradient of target rows.
func (m *model) scatter(t matrix) matrix {
	s := m.s
	x := newMatrix(s.Tokens(), t.cols)
	for b := range s.Batch {
		copy(x.v[(b*(s.Context+s.Targets)+s.Context)*t.cols:], t.v[b*s.Targets*t.cols:(b+1)*s.Targets*t.cols])
	}
	return x
}

// heads calls f with q of a head of a task, all rows, and k and v of its context rows, which
// are copies, and with where their rows and columns begin.
func (m *model) heads(qkv matrix, f func(q, k, v matrix, row, col int)) {
	d, inner, length := m.c.HeadDim, m.c.Heads*m.c.HeadDim, m.s.Context+m.s.Targets
	for b := range m.s.Batch {
		all := qkv.slice(b*length, (b+1)*length)
		for h := range m.c.Heads {
			col := h * d
			k, v := all.columns(inner+col, inner+col+d), all.columns(2*inner+col, 2*inner+col+d)
			f(all.columns(col, col+d), k.slice(0, m.s.Context), v.slice(0, m.s.Context), b*length, col)
		}
	}
}

// weights returns softmax(scale * q * kᵀ).
func (m *model) weights(q, k matrix) matrix {
	p := nt(q, k)
	for r := range p.rows {
		row, sum := p.row(r), 0.0
		top := slices.Max(row)
		for i, v := range row {
			row[i] = math.Exp((v - top) / math.Sqrt(float64(m.c.HeadDim)))
			sum += row[i]
		}
		for i := range row {
			row[i] /= sum
		}
	}
	return p
}

// attend returns O of all heads side by side.
func (m *model) attend(qkv matrix) matrix {
	o := newMatrix(qkv.rows, m.c.Heads*m.c.HeadDim)
	m.heads(qkv, func(q, k, v matrix, row, col int) {
		o.put(nn(m.store(m.weights(q, k)), v), row, col)
	})
	return o
}

// put copies x to a place in m.
func (m matrix) put(x matrix, row, col int) {
	for r := range x.rows {
		copy(m.row(row + r)[col:], x.row(r))
	}
}

// attendBackward returns the gradients by q, k and v side by side: 0 by k and v of target rows.
func (m *model) attendBackward(qkv, o, do matrix) matrix {
	inner, d := m.c.Heads*m.c.HeadDim, m.c.HeadDim
	dqkv := newMatrix(qkv.rows, qkv.cols)
	m.heads(qkv, func(q, k, v matrix, row, col int) {
		p := m.weights(q, k)
		dO, oo := do.slice(row, row+q.rows).columns(col, col+d), o.slice(row, row+q.rows).columns(col, col+d)
		ds := nt(dO, v)
		for r := range ds.rows {
			delta := 0.0
			for i, g := range dO.row(r) {
				delta += g * oo.row(r)[i]
			}
			for i := range ds.row(r) {
				ds.row(r)[i] = p.row(r)[i] * (ds.row(r)[i] - delta)
			}
		}
		ds = m.store(ds)
		scale := func(x float64) float64 { return x / math.Sqrt(float64(d)) }
		dqkv.put(nn(ds, k).apply(scale), row, col)
		dqkv.put(tn(ds, q).apply(scale), row, inner+col)
		dqkv.put(tn(m.store(p), dO), row, 2*inner+col)
	})
	return dqkv
}
