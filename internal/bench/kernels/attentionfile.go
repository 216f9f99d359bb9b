package kernels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/safetensors"
)

// inputNames are the tensors that an input file may hold; do and dlse go with --backward.
var inputNames = []string{"q", "k", "v", "bias", "alibi_slopes", "key_mask", "sinks", "cu_seqlens_q", "cu_seqlens_kv", "do", "dlse"}

// Inputs implements namer.
func (f *attentionFlags) Inputs() []string { return inputNames }

// Aliases implements namer: flash-attn's name.
func (f *attentionFlags) Aliases() map[string]string {
	return map[string]string{"cu_seqlens_kv": "cu_seqlens_k"}
}

// FromFile implements Flags. CheckFile checks the tensors of --backward.
func (f *attentionFlags) FromFile(in File) (bench.Op, error) {
	a, err := f.read(in)
	if err != nil {
		return nil, err
	}
	_, a.DLSE = in.Tensor("dlse")
	return f.valid(a, false)
}

// read returns the call of tensors in a file.
func (f *attentionFlags) read(in File) (*attending, error) {
	a := call.Copy(f.callFlags.given).(*attending)
	p := &a.Problem
	*p = attention.Problem{Causal: p.Causal, CausalAlign: p.CausalAlign, Scale: p.Scale, Window: p.Window, Softcap: p.Softcap}
	a.file = true
	if err := f.contradiction(a); err != nil {
		return nil, err
	}
	for _, t := range in.Tensors() {
		if !slices.Contains(inputNames, t.Name) {
			return nil, fmt.Errorf("tensor %s is not one of %s", shortName(t.Name), strings.Join(inputNames, ", "))
		}
	}
	cu, err := readCuSeqlens(in)
	if err == nil {
		err = readQKV(in, p, cu)
	}
	if err == nil {
		err = readFeatures(in, p)
	}
	if err == nil {
		if wrong := f.misaligned(a); wrong != nil {
			err = FlagError{wrong}
		}
	}
	for b := 1; err == nil && b < len(cu.q); b++ {
		a.Lengths = append(a.Lengths, [2]int{int(cu.q[b] - cu.q[b-1]), int(cu.kv[b] - cu.kv[b-1])})
	}
	if err == nil {
		err = p.Validate()
	}
	return a, err
}

// cuSeqlens are the offsets at which packed sequences begin; nil without packing.
type cuSeqlens struct{ q, kv []int32 }

// readCuSeqlens reads the starts of packed sequences, if the file has them.
func readCuSeqlens(in File) (cu cuSeqlens, err error) {
	for _, x := range []struct {
		name   string
		target *[]int32
	}{{"cu_seqlens_q", &cu.q}, {"cu_seqlens_kv", &cu.kv}} {
		t, ok := in.Tensor(x.name)
		if ok && t.DType == "I32" && (len(t.Shape) != 1 || t.Shape[0] < 2) {
			return cu, fmt.Errorf("tensor %q: shape %v is not batch+1, with a batch of 1 or more", x.name, t.Shape)
		}
		if *x.target, err = readTable(in, x.name, 1); err != nil {
			return cu, err
		}
	}
	switch {
	case (cu.q == nil) != (cu.kv == nil):
		return cu, errors.New(`tensors "cu_seqlens_q" and "cu_seqlens_kv" are needed both, or neither`)
	case len(cu.q) != len(cu.kv):
		return cu, fmt.Errorf(`tensor "cu_seqlens_kv": %d entries differ from %d of cu_seqlens_q`, len(cu.kv), len(cu.q))
	}
	return cu, nil
}

// longest returns the length of the longest sequence, at least 1.
func longest(cu []int32) int {
	most := 1
	for b := range len(cu) - 1 {
		most = max(most, int(cu[b+1])-int(cu[b]))
	}
	return most
}

// ReadInt32 reads a tensor of integers.
func ReadInt32(in File, t safetensors.Tensor) ([]int32, error) {
	raw := make([]byte, t.Bytes())
	if err := in.ReadAt(t, raw, 0); err != nil {
		return nil, err
	}
	list := make([]int32, len(raw)/4)
	for i := range list {
		list[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return list, nil
}

// readQKV sets the sizes and formats of p that q, k and v show.
func readQKV(in File, p *attention.Problem, cu cuSeqlens) error {
	axes := []string{"batch", "heads", "seq", "headdim"}
	if cu.q != nil {
		axes = []string{"total", "heads", "headdim"}
	}
	var shapes [3][]int
	for i, name := range []string{"q", "k", "v"} {
		shape, format, err := Header(in.Tensors()).Floats(name, axes...)
		if err != nil {
			return err
		}
		if i == 0 {
			p.DType = format
		}
		if format != p.DType {
			return fmt.Errorf("tensor %q: dtype %s differs from %s of q", name, bench.FileDType(format), bench.FileDType(p.DType))
		}
		shapes[i] = shape
	}
	q, k, v := shapes[0], shapes[1], shapes[2]
	last := len(axes) - 1
	if !slices.Equal(v[:last], k[:last]) {
		return fmt.Errorf(`tensor "v": shape %v differs from %v of k before the last axis`, v, k)
	}
	if k[last] != q[last] {
		return fmt.Errorf(`tensor "k": headdim %d differs from %d of q`, k[last], q[last])
	}
	p.HeadDim = q[last]
	if v[last] != q[last] {
		if v[last] == 0 { // 0 would stand for headdim
			return fmt.Errorf(`tensor "v": shape %v has a last axis of 0`, v)
		}
		p.ValueDim = v[last]
	}
	if cu.q != nil {
		p.Batch, p.NumHeads, p.NumKVHeads = len(cu.q)-1, q[1], k[1]
		p.SeqQ, p.SeqKV = longest(cu.q), longest(cu.kv)
		p.Varlen = attention.Varlen{On: true, TotalQ: q[0], TotalKV: k[0]}
		return p.CheckCuSeqlens(cu.q, cu.kv)
	}
	if k[0] != q[0] {
		return fmt.Errorf(`tensor "k": batch %d differs from %d of q`, k[0], q[0])
	}
	p.Batch, p.NumHeads, p.SeqQ = q[0], q[1], q[2]
	p.NumKVHeads, p.SeqKV = k[1], k[2]
	return nil
}

// readFeatures sets the features of p that the other tensors show.
func readFeatures(in File, p *attention.Problem) error {
	for _, f := range []struct {
		name    string
		formats []safetensors.DType
		read    func(t safetensors.Tensor, p *attention.Problem) error
	}{
		{"bias", []safetensors.DType{safetensors.F32, bench.FileDType(p.DType)}, readBias},
		{"alibi_slopes", []safetensors.DType{safetensors.F32}, readSlopes},
		{"key_mask", []safetensors.DType{"BOOL"}, func(t safetensors.Tensor, p *attention.Problem) error {
			p.KeyMask = true
			return wantShape(t, p.KeyMaskShape(), "batch, seq_kv")
		}},
		{"sinks", []safetensors.DType{safetensors.F32}, func(t safetensors.Tensor, p *attention.Problem) error {
			p.Sinks = true
			return wantShape(t, p.SinksShape(), "heads")
		}},
	} {
		t, ok := in.Tensor(f.name)
		if !ok {
			continue
		}
		if !slices.Contains(f.formats, t.DType) {
			return fmt.Errorf("tensor %q: dtype %s is not %s", f.name, t.DType, orList(f.formats))
		}
		if err := f.read(t, p); err != nil {
			return err
		}
	}
	return nil
}

// orList writes one format, or two that differ, as "F32 or F16".
func orList(formats []safetensors.DType) string {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = string(f)
	}
	return strings.Join(slices.Compact(names), " or ")
}

func wantShape(t safetensors.Tensor, shape []int, axes string) error {
	if !slices.Equal(t.Shape, shape) {
		return fmt.Errorf("tensor %q: shape %v, want %v: %s", t.Name, t.Shape, shape, axes)
	}
	return nil
}

func readSlopes(t safetensors.Tensor, p *attention.Problem) error {
	p.ALiBi = attention.ALiBiPerHead
	if len(t.Shape) == 2 {
		p.ALiBi = attention.ALiBiPerBatchHead
		return wantShape(t, p.SlopesShape(), "batch, heads")
	}
	return wantShape(t, p.SlopesShape(), "heads")
}

func readBias(t safetensors.Tensor, p *attention.Problem) error {
	p.Bias.On = true
	if t.DType != safetensors.F32 {
		p.Bias.DType = p.DType
	}
	if len(t.Shape) != 4 {
		return fmt.Errorf("tensor %q: shape %v has %d axes, want 4: batch or 1, heads or 1, seq_q or 1, seq_kv", t.Name, t.Shape, len(t.Shape))
	}
	for i, axis := range []struct {
		name   string
		n      int
		target *bool
	}{{"batch", p.Batch, &p.Bias.Batch}, {"heads", p.NumHeads, &p.Bias.Heads}, {"seq_q", p.SeqQ, &p.Bias.Rows}} {
		if n := t.Shape[i]; n != 1 && n != axis.n {
			return fmt.Errorf("tensor %q: %s %d is neither %d nor 1", t.Name, axis.name, n, axis.n)
		}
		*axis.target = t.Shape[i] != 1
	}
	if t.Shape[3] != p.SeqKV {
		return fmt.Errorf("tensor %q: seq_kv %d is not %d", t.Name, t.Shape[3], p.SeqKV)
	}
	return nil
}

// shortName quotes a name from a file, cut to a reasonable length.
func shortName(name string) string {
	const most = 80
	if len(name) > most {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(name[:most], ""))
	}
	return fmt.Sprintf("%q", name)
}
