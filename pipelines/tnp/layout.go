package tnp

// On the device parameters lie one after the other in one buffer. Gradients and moments have the
// same order in buffers of their own. Linear layers are transposed, (in, out), so that a product
// is x * w. Sizes that are no multiples of 8 are padded with zeros, so that all rows are
// multiples of 16 bytes:
//
//	file                         device
//	embed.weight  (512, 3)       (8, 512)          of rows x of zeros, too
//	up.weight     (1365, 512)    (512, 1368)
//	down.weight   (512, 1365)    (1368, 512)
//	heads.up      (10, 512, 1365)  (10, 512, 1368)
//	heads.down    (10, 1365, 3)    (10, 1368, 3)
//
// The zeros stay. A hidden unit without weights is silu(0) = 0, the gradients of its weights are
// 0, and so are their moments and their updates.

// A slot is where a parameter lies.
type slot struct {
	Param
	first int   // elements
	shape []int // on the device
}

// slotMultiple is the alignment of slots in elements: 256 bytes in 16-bit formats.
const slotMultiple = 128

// padded returns n rounded up to a multiple of 8.
func padded(n int) int { return (n + rowMultiple - 1) &^ (rowMultiple - 1) }

// ff and input are the numbers of hidden units and of elements of a token on the device.
func (c Config) ff() int    { return padded(c.DFF) }
func (c Config) input() int { return padded(c.InputDim) }

// slots returns the slots of parameters by name, and the number of elements of all.
func (c Config) slots() (map[string]*slot, int) {
	slots, at := map[string]*slot{}, 0
	for _, p := range c.Params() {
		s := &slot{Param: p, first: at}
		switch shape := p.Shape; p.kind {
		case normWeight:
			s.shape = shape
		case linear:
			s.shape = []int{padded(shape[1]), padded(shape[0])}
		case head:
			s.shape = []int{shape[0], padded(shape[1]), padded(shape[2])}
			if p.Name == "heads.down" {
				s.shape[2] = shape[2]
			}
		}
		slots[p.Name] = s
		at += (s.size() + slotMultiple - 1) / slotMultiple * slotMultiple
	}
	return slots, at
}

// size returns the number of elements of a slot.
func (s *slot) size() int {
	n := 1
	for _, d := range s.shape {
		n *= d
	}
	return n
}

// each calls f with the index on the device and in the file of each element.
func (s *slot) each(f func(device, file int)) {
	switch s.kind {
	case normWeight:
		for i := range s.Shape[0] {
			f(i, i)
		}
	case linear:
		out, in := s.Shape[0], s.Shape[1]
		for i := range in {
			for o := range out {
				f(i*s.shape[1]+o, o*in+i)
			}
		}
	case head:
		rows, cols := s.Shape[1], s.Shape[2]
		for k := range s.Shape[0] {
			for r := range rows {
				for c := range cols {
					f((k*s.shape[1]+r)*s.shape[2]+c, (k*rows+r)*cols+c)
				}
			}
		}
	}
}

// pack returns all values in the layout of the device.
func (c Config) pack(w Weights) []float32 {
	slots, n := c.slots()
	flat := make([]float32, n)
	for name, s := range slots {
		to, from := flat[s.first:], w[name]
		s.each(func(device, file int) { to[device] = from[file] })
	}
	return flat
}

// unpack is the inverse of pack. It multiplies all values by scale.
func (c Config) unpack(flat []float32, scale float32) Weights {
	slots, _ := c.slots()
	w := Weights{}
	for name, s := range slots {
		from, to := flat[s.first:], make([]float32, s.Size())
		s.each(func(device, file int) { to[file] = scale * from[device] })
		w[name] = to
	}
	return w
}
