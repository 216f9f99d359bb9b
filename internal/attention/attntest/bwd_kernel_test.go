package attntest

import (
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
)

// A bwdKernel is the backward algorithm on strided memory with one mistake built in. Like the
// shaders it has a pass over rows for Delta, a kernel that owns keys for dK and dV, and a kernel
// that owns rows for dQ. It computes in float64. Scores, masks and dropout are those of kernel,
// with their mistakes.
type bwdKernel struct {
	kernel
	b     BackwardInputs
	g     Gradients
	delta map[[3]int]float64 // (batch, head, row): Delta - dLSE
}

// Backward makes the three passes.
func (k *bwdKernel) Backward(g Gradients, in BackwardInputs, p attention.Problem) error {
	k.calls++
	k.in, k.p, k.b, k.g = in.Inputs, p, in, g
	k.delta = map[[3]int]float64{}
	for _, t := range []*guard.View{g.DBias, g.DSinks} {
		if t != nil && !k.is("dbias and dsinks not cleared") {
			t.Scatter(make([]float64, t.NumElements()))
		}
	}
	for b := range p.Batch {
		k.m = k.mask(b)
		for h := range p.NumHeads {
			for i := range k.m.SeqQ {
				k.delta[[3]int{b, h, i}] = k.rowDelta(b, h, i)
			}
		}
		for kh := range p.NumKVHeads {
			for j := range k.m.SeqKV {
				k.key(b, kh, j)
			}
		}
		for h := range p.NumHeads {
			for i := range k.m.SeqQ {
				k.query(b, h, i)
			}
		}
	}
	k.strayGradients()
	return nil
}

// rowDelta returns rowsum(dO * O) - dLSE.
func (k *bwdKernel) rowDelta(b, h, i int) float64 {
	d, o, do := k.p.ValueHeadDim(), *k.b.O, *k.b.DO
	switch {
	case k.is("O read with dO's strides"):
		o.Strides = do.Strides
	case k.is("dO read with O's strides in Delta"):
		do.Strides = o.Strides
	case k.is("Delta of head_dim columns"):
		d = min(d, k.p.HeadDim)
	}
	x, y := min(k.at(&do, b, h, i), len(do.Data)-d), min(k.at(&o, b, h, i), len(o.Data)-d)
	sum := 0.0
	for e := range d {
		sum += do.Data[x+e] * o.Data[y+e]
	}
	if k.is("Delta in float16") {
		sum = float64(dtype.Float16.Round(float32(sum)))
	}
	dlse := 0.0
	if t := k.b.DLSE; t != nil {
		at := *t
		if k.is("dLSE read with LSE's strides") {
			at.Strides = k.b.LSE.Strides
		}
		dlse = t.Data[min(k.atLSE(&at, b, h, i), len(t.Data)-1)]
	}
	switch {
	case k.is("Delta ignored"):
		return -dlse
	case k.is("dLSE ignored"):
		return sum
	case k.is("dLSE added"):
		return sum + dlse
	}
	return sum - dlse
}

// A pairGradient has the weight of a row and a key, the gradient dS by the score, and dX by the
// product before softcap.
type pairGradient struct{ W, dS, dX float64 }

// pair computes the pairGradient of query head h and key head kh.
func (k *bwdKernel) pair(b, h, kh, i, j int) (x pairGradient) {
	lo, hi := k.keys(i)
	visible := lo <= j && j < hi && k.sees(b, j) && !math.IsInf(k.bias(b, h, kh, i, j), -1)
	if !visible && !k.is("hidden S is -Inf") && !k.is("hidden V in dP") && !k.is("hidden K in dX") {
		return x
	}
	s := math.Inf(-1)
	if visible || k.is("hidden K in dX") {
		s = k.score(b, h, kh, i, j)
	}
	if !visible {
		s += math.Inf(-1)
	}
	lse := k.b.LSE.Data[min(k.atLSE(k.b.LSE, b, h, i), len(k.b.LSE.Data)-1)]
	if math.IsInf(lse, -1) && !k.is("hidden S is -Inf") {
		lse = 0
	}
	P := math.Exp(s - lse)
	switch {
	case k.is("LSE in base 2"):
		P = math.Exp2(s*math.Log2E - lse)
	case k.is("P of 8 bits"):
		P = math.Round(P*256) / 256
	}
	if P == 0 && !k.is("hidden V in dP") && !k.is("hidden K in dX") {
		return x
	}
	keep := k.keep(&rowState{b: b, h: h, i: i}, j)
	dP := k.dP(b, h, kh, i, j)
	x.W = P * keep
	switch {
	case k.is("dropout not in dV"):
		x.W = P
	case k.is("dV unscaled by dropout") && keep > 0:
		x.W = P
	}
	if !k.is("dropout not in dP") {
		dP *= keep
	}
	if k.is("Delta dropped out") {
		dP -= k.delta[[3]int{b, h, i}] * (keep - 1)
	}
	delta := k.delta[[3]int{b, h, i}]
	switch {
	case k.is("Delta of the first head"):
		delta = k.delta[[3]int{b, 0, i}]
	case k.is("Delta of the row before") && i > 0:
		delta = k.delta[[3]int{b, h, i - 1}]
	}
	x.dS = P * (dP - delta)
	x.dX = x.dS * k.slope(b, h, kh, i, j)
	if k.is("dX in 8 bits") {
		x.dX = float64(dtype.BFloat16.Round(float32(x.dX)))
	}
	x.W, x.dX = k.stored(x.W), k.stored(x.dX)
	return x
}

// dP returns the product of a row of dO and one of V.
func (k *bwdKernel) dP(b, h, kh, i, j int) float64 {
	do := *k.b.DO
	if k.is("dO read with O's strides") {
		do.Strides = k.b.O.Strides
	}
	v := k.value(b, kh, j)
	at := min(k.at(&do, b, h, i), len(do.Data)-len(v))
	sum := 0.0
	for e, x := range v {
		sum += do.Data[at+e] * x
	}
	return sum
}

// slope returns dX / dS.
func (k *bwdKernel) slope(b, h, kh, i, j int) float64 {
	c := k.p.Softcap
	if c == 0 || k.is("softcap not in the gradient") {
		return 1
	}
	t := math.Tanh(k.scale() * k.product(b, h, kh, i, j) / c)
	switch {
	case k.is("softcap's slope of the score") && k.p.Bias.On:
		t = math.Tanh(k.score(b, h, kh, i, j) / c)
	case k.is("softcap's slope without the square"):
		return 1 - math.Abs(t)
	}
	return 1 - t*t
}

// heads returns the query heads that a key head's gradients are summed over.
func (k *bwdKernel) heads(kh int) (heads []int) {
	for h := range k.p.NumHeads {
		if k.keyHead(h) == kh {
			heads = append(heads, h)
		}
	}
	if k.is("only the last head of a group") && len(heads) > 1 {
		heads = heads[len(heads)-1:]
	}
	if k.is("only the first head of a group") && len(heads) > 1 {
		heads = heads[:1]
	}
	return heads
}

// key computes dK and dV of one key.
func (k *bwdKernel) key(b, kh, j int) {
	p, m := k.p, k.m
	if k.is("keys' tail tile dropped") && j >= kernelBlock && j >= m.SeqKV/kernelBlock*kernelBlock {
		return
	}
	dk, dv := make([]float64, p.HeadDim), make([]float64, p.ValueHeadDim())
	seen := false
	for _, h := range k.heads(kh) {
		rows := m.SeqQ
		if k.is("rows' tail tile dropped") && rows > kernelBlock {
			rows = rows / kernelBlock * kernelBlock
		}
		first := 0
		if k.is("first rows skipped") && p.Causal && m.Shift <= 0 {
			first = max(j-m.Shift+1, 0) // the first row that sees the key
		}
		for i := first; i < rows; i++ {
			x := k.pair(b, h, kh, i, j)
			seen = seen || x.W != 0
			if x.W == 0 && x.dX == 0 {
				continue
			}
			q, do := k.at(k.in.Q, b, h, i), k.at(k.b.DO, b, h, i)
			for e := range dk {
				dk[e] += x.dX * k.in.Q.Data[q+e]
			}
			for e := range dv {
				dv[e] += x.W * k.b.DO.Data[do+e]
			}
			if k.is("dK summed in float16") {
				for e := range dk {
					dk[e] = float64(dtype.Float16.Round(float32(dk[e])))
				}
			}
		}
	}
	if !seen && k.is("keys that no row sees not written") {
		return
	}
	scale := k.scale()
	if k.is("dK not scaled") {
		scale = 1
	}
	for e := range dk {
		dk[e] = k.stored(dk[e] * scale)
	}
	for e := range dv {
		dv[e] = k.stored(dv[e])
	}
	outK, outV := *k.g.DK, *k.g.DV
	switch {
	case k.is("dK with K's strides"):
		outK.Strides = k.in.K.Strides
	case k.is("dV with V's strides"):
		outV.Strides = k.in.V.Strides
	}
	atK := min(k.at(&outK, b, kh, j), len(outK.Data)-len(dk))
	atV := min(k.at(&outV, b, kh, j), len(outV.Data)-len(dv))
	if k.is("dV added to what is there") {
		for e := range dv {
			dv[e] += outV.Data[atV+e]
		}
	}
	copy(outK.Data[atK:], dk)
	copy(outV.Data[atV:], dv)
}

// query computes dQ of one row, and adds the row's terms to dBias and dSinks.
func (k *bwdKernel) query(b, h, i int) {
	p, kh := k.p, k.keyHead(h)
	dq := make([]float64, p.HeadDim)
	for j := range k.m.SeqKV {
		x := k.pair(b, h, kh, i, j)
		k.addBias(b, h, i, j, x)
		if x.dX == 0 && !k.is("hidden K times 0") {
			continue
		}
		key := k.at(k.in.K, b, kh, j)
		for e := range dq {
			dq[e] += x.dX * k.in.K.Data[key+e]
		}
		if k.is("dQ summed in float16") {
			for e := range dq {
				dq[e] = float64(dtype.Float16.Round(float32(dq[e])))
			}
		}
	}
	scale := k.scale()
	if k.is("dQ not scaled") {
		scale = 1
	}
	for e := range dq {
		dq[e] = k.stored(dq[e] * scale)
		if k.is("differs from call to call") && k.calls > 1 && i == k.m.SeqQ-1 {
			dq[e] = math.Nextafter(dq[e], 9)
		}
	}
	if k.is("rows that see nothing not written") {
		if lo, hi := k.keys(i); lo == hi {
			return
		}
	}
	out := *k.g.DQ
	if k.is("dQ with Q's strides") {
		out.Strides = k.in.Q.Strides
	}
	copy(out.Data[min(k.at(&out, b, h, i), len(out.Data)-len(dq)):], dq)
	k.addSink(b, h, i)
}

// addBias adds the gradient of a score to that of the bias.
func (k *bwdKernel) addBias(b, h, i, j int, x pairGradient) {
	t := k.g.DBias
	if t == nil {
		return
	}
	at := t.Offset + j
	for axis, n := range []int{b, h, i} {
		switch {
		case t.Shape[axis] > 1:
			at += n * t.Strides[axis]
		case k.is("dbias of the first batch") && axis == 0 && n > 0,
			k.is("dbias of the first head") && axis == 1 && n > 0,
			k.is("dbias of the first row") && axis == 2 && n > 0:
			return
		}
	}
	switch {
	case k.is("dbias scaled"):
		x.dS *= k.p.EffectiveScale()
	case k.is("dbias with the slope of softcap"):
		x.dS = x.dX
	}
	t.Data[at] += x.dS
}

// addSink adds a row's term to the gradient of its sink.
func (k *bwdKernel) addSink(b, h, i int) {
	t := k.g.DSinks
	if t == nil {
		return
	}
	lo, hi := k.keys(i)
	lse := k.b.LSE.Data[k.atLSE(k.b.LSE, b, h, i)]
	sink := k.sink(h, 0)
	if math.IsInf(sink, -1) && !k.is("-Inf - -Inf in the sink") {
		return
	}
	x := -math.Exp(sink-lse) * k.delta[[3]int{b, h, i}]
	switch {
	case k.is("dsinks negated"):
		x = -x
	case k.is("dsinks without the weight"):
		x = -k.delta[[3]int{b, h, i}]
	case k.is("dsinks without rows that see nothing") && lo == hi,
		k.is("dsinks of the first batch") && b > 0:
		return
	}
	t.Data[t.Offset+h] += x
}

// strayGradients makes the mistakes that are wrong writes.
func (k *bwdKernel) strayGradients() {
	p, g := k.p, k.g
	if p.Varlen.On {
		cuQ, cuKV := k.in.CuSeqlensQ, k.in.CuSeqlensKV
		if k.is("rows in no sequence written") && int(cuQ.Data[cuQ.Offset+p.Batch]) < p.Varlen.TotalQ {
			g.DQ.Data[g.DQ.Offset+(p.Varlen.TotalQ-1)*g.DQ.Strides[0]] = 0
		}
		if k.is("keys in no sequence written") && int(cuKV.Data[cuKV.Offset+p.Batch]) < p.Varlen.TotalKV {
			g.DK.Data[g.DK.Offset+(p.Varlen.TotalKV-1)*g.DK.Strides[0]] = 0
		}
		return
	}
	switch {
	case k.is("dO scaled in place"):
		k.b.DO.Data[k.b.DO.Offset] = 3
	case k.is("LSE turned into base 2 in place"):
		k.b.LSE.Data[k.b.LSE.Offset] += 1
	case k.is("dQ padded to the tile") && p.SeqQ%kernelBlock != 0:
		g.DQ.Data[min(k.at(g.DQ, p.Batch-1, p.NumHeads-1, p.SeqQ), len(g.DQ.Data)-1)] = 0
	case k.is("dK padded to the tile") && p.SeqKV%kernelBlock != 0:
		g.DK.Data[min(k.at(g.DK, p.Batch-1, p.NumKVHeads-1, p.SeqKV), len(g.DK.Data)-1)] = 0
	case k.is("dV one element past each row"):
		g.DV.Data[k.at(g.DV, p.Batch-1, p.NumKVHeads-1, p.SeqKV-1)+p.ValueHeadDim()] = 0
	}
}
