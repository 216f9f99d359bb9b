package vk

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
	"unsafe"
)

// Kernel is a compute pipeline whose push constants are a P. Goroutines may share it.
//
// P is a struct of uint32, int32, float32 and uint64 fields (or arrays or structs of them) without
// holes, laid out as the shader's push-constant block in scalar layout. It is copied as memory, and
// must have the size of the block. struct{} stands for no push constants.
type Kernel[P any] struct {
	*kernel
}

// kernel is the part of Kernel that does not depend on P.
type kernel struct {
	object
	raw       rawKernel
	bindings  int
	access    []access // of each binding
	pushBytes int
	code      []byte
	workgroup [3]uint32 // 0 if it is not known
	stats     KernelStats
}

// KernelOptions choose how a pipeline runs.
type KernelOptions struct {
	// SubgroupSize fixes the number of invocations of a subgroup, a power of
	// two from Caps.MinSubgroupSize to Caps.MaxSubgroupSize; 0 leaves it to
	// the driver. Other than the only one there is, it needs
	// Caps.SubgroupSizeControl.
	SubgroupSize uint32
	// FullSubgroups promises the shader that every subgroup is full; the
	// workgroup's X size must be a multiple of the subgroup size. Needs
	// Caps.ComputeFullSubgroups.
	FullSubgroups bool
}

// Groups is the number of workgroups in each direction; 0 means 1.
type Groups struct{ X, Y, Z uint32 }

// KernelStats are statistics of a pipeline.
type KernelStats struct {
	Created   time.Duration // wall time of pipeline creation
	Available bool          // whether the driver gave the numbers below
	// Per invocation: Registers, SpillBytes (memory that stands in for
	// registers). Per workgroup: SharedBytes. Those that the driver does not
	// name are 0; All has everything under the driver's own names.
	Registers, SpillBytes, SharedBytes, CodeBytes uint64
	SubgroupSize                                  uint32
	Waves                                         uint64 // subgroups that a SIMD of an AMD GPU holds
	All                                           []Statistic
}

// Statistic is one number that the driver reports about a pipeline.
type Statistic struct {
	Name  string
	Value float64
}

// NewKernel compiles a pipeline from a SPIR-V module with one compute entry point, whose resources
// are storage buffers 0 to n-1 of descriptor set 0.
//
// Spec is nil or a struct of uint32, int32, float32 and bool fields, or structs of them. Field i,
// counting the fields of structs in their place, is the specialization constant with constant_id =
// i. There must be one field for each constant of the module.
//
// A module may ask for maximal reconvergence (SPV_KHR_maximal_reconvergence). If the device lacks
// Caps.MaximalReconvergence, the module runs without it: after a branch that invocations take
// independently, the driver then decides which of them execute a subgroup operation together.
//
// The error wraps ErrUnsupported if the device cannot run the module with these options and P, or a
// Result if compilation failed.
func NewKernel[P any](d *Device, name string, spirv []byte, spec any, o KernelOptions) (*Kernel[P], error) {
	if !d.enter() {
		return nil, fmt.Errorf("vk: kernel %q: %w", name, d.errClosed())
	}
	defer d.leave()
	k, err := newKernel(d, name, spirv, spec, o, reflect.TypeFor[P]())
	if err != nil {
		return nil, fmt.Errorf("vk: kernel %q: %w", name, err)
	}
	k.register(d, "kernel", name, func() { d.api.destroyKernel(k.raw) })
	return &Kernel[P]{k}, nil
}

// newKernel checks the arguments and creates the pipeline.
func newKernel(d *Device, name string, spirv []byte, spec any, o KernelOptions, params reflect.Type) (*kernel, error) {
	words, err := specWords(spec)
	if err != nil {
		return nil, err
	}
	code := d.caps.adapt(spirv)
	module, err := scanModule(code, words)
	if err != nil {
		return nil, err
	}
	pushBytes, err := checkParams(params)
	if err != nil {
		return nil, err
	}
	// NVIDIA's driver 580 takes a module with more shared memory, and hangs: with 16 bytes more, once there
	// are more workgroups than multiprocessors.
	for _, x := range []struct {
		n, limit int64
		what     string
	}{
		{module.shared, int64(d.caps.MaxSharedMemoryBytes), "bytes of shared memory"},
		{int64(module.bindings), int64(d.caps.MaxStorageBuffers), "storage buffers"},
		{int64(pushBytes), int64(min(d.caps.MaxPushConstantsBytes, maxPushBytes)), "bytes of push constants"},
	} {
		if x.n > x.limit {
			return nil, fmt.Errorf("%d %s, the device has %d: %w", x.n, x.what, x.limit, ErrUnsupported)
		}
	}
	if lack := d.caps.lack(module.needs); lack != "" {
		return nil, fmt.Errorf("the module needs %s, which the device has not: %w", lack, ErrUnsupported)
	}
	if module.pushBytes != pushBytes {
		return nil, fmt.Errorf("the shader has %d bytes of push constants, %v has %d", module.pushBytes, params, pushBytes)
	}
	if err := checkSpec(module.constants, words, spec); err != nil {
		return nil, err
	}
	info := rawKernelInfo{
		bindings: module.bindings, pushBytes: pushBytes, statistics: d.caps.ExecutableStats,
		fullSubgroups: o.FullSubgroups, cache: d.cache.handle,
	}
	if info.subgroupSize, err = requiredSubgroupSize(&d.caps, o); err != nil {
		return nil, err
	}
	if err := checkWorkgroup(&d.caps, module.workgroup, info.subgroupSize); err != nil {
		return nil, err
	}
	if r := d.fault("vkCreateComputePipelines"); r < 0 {
		return nil, partError("vkCreateComputePipelines", int32(r))
	}
	if d.options.Compiling != nil {
		if done := d.options.Compiling(name); done != nil {
			defer done()
		}
	}
	start := time.Now()
	raw, err := d.api.createKernel(info, code, module.entry, words)
	if err != nil {
		return nil, err
	}
	k := &kernel{raw: raw, bindings: module.bindings, access: module.access, pushBytes: pushBytes, code: spirv, workgroup: module.workgroup}
	k.stats.Created = time.Since(start)
	if d.caps.ExecutableStats {
		k.stats.read(d, raw)
	}
	d.setName(objectPipeline, raw.pipeline, name)
	return k, nil
}

// checkWorkgroup compares a workgroup size, where it is known, with the limits, and if subgroup is
// not 0, with the limits for subgroups of that size: drivers need not report a size beyond them.
func checkWorkgroup(c *Caps, size [3]uint32, subgroup int) error {
	total := uint64(1)
	for i, n := range size {
		if n > c.MaxWorkgroupSize[i] {
			return fmt.Errorf("workgroup of %v invocations, the device has %v: %w", size, c.MaxWorkgroupSize, ErrUnsupported)
		}
		total *= uint64(max(n, 1))
	}
	if total > uint64(c.MaxWorkgroupInvocations) {
		return fmt.Errorf("workgroup of %d invocations, the device has %d: %w", total, c.MaxWorkgroupInvocations, ErrUnsupported)
	}
	if most := uint64(subgroup) * uint64(c.MaxWorkgroupSubgroups); most > 0 && total > most {
		return fmt.Errorf("workgroup of %d invocations, in subgroups of %d the device has %d: %w", total, subgroup, most, ErrUnsupported)
	}
	return nil
}

// requiredSubgroupSize returns the size to ask the driver for, 0 for none.
func requiredSubgroupSize(c *Caps, o KernelOptions) (int, error) {
	if o.FullSubgroups && !c.ComputeFullSubgroups {
		return 0, fmt.Errorf("full subgroups: %w", ErrUnsupported)
	}
	n := o.SubgroupSize
	switch {
	case n == 0:
		return 0, nil
	case n < c.MinSubgroupSize || n > c.MaxSubgroupSize || n&(n-1) != 0:
		return 0, fmt.Errorf("subgroup size %d is not a power of two in %d..%d: %w", n, c.MinSubgroupSize, c.MaxSubgroupSize, ErrUnsupported)
	case c.SubgroupSizeControl:
		return int(n), nil
	case c.MinSubgroupSize == c.MaxSubgroupSize:
		return 0, nil // there is no other
	}
	return 0, fmt.Errorf("subgroup size control: %w", ErrUnsupported)
}

func checkParams(t reflect.Type) (int, error) {
	if t.Kind() != reflect.Struct {
		return 0, fmt.Errorf("push constants are a %v, not a struct", t)
	}
	if err := checkLayout(t); err != nil {
		return 0, err
	}
	return int(t.Size()), nil
}

// checkSpec compares the fields of a specialization with the constant_ids of a module:
// one field for each, from 0 on without gaps, as field i is constant i. Nil, which leaves
// every constant as it is, suits any module.
func checkSpec(constants, words []uint32, spec any) error {
	if spec == nil {
		return nil
	}
	for i, id := range constants {
		if id != uint32(i) {
			return fmt.Errorf("the shader's constant_ids are %v: there is none of %d for field %d of %T", constants, i, i, spec)
		}
	}
	if len(words) != len(constants) {
		return fmt.Errorf("the shader has %d specialization constants, %T has %d", len(constants), spec, len(words))
	}
	return nil
}

// checkLayout refuses fields that a shader has no equal of, and holes: the
// shader's layout has none.
func checkLayout(t reflect.Type) error {
	end := uintptr(0)
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Offset != end {
			return fmt.Errorf("%v has a hole before %s; put 8-byte fields first", t, f.Name)
		}
		end += f.Type.Size()
		elem := f.Type
		for elem.Kind() == reflect.Array {
			elem = elem.Elem()
		}
		switch elem.Kind() {
		case reflect.Uint32, reflect.Int32, reflect.Float32, reflect.Uint64:
		case reflect.Struct:
			if err := checkLayout(elem); err != nil {
				return err
			}
		default:
			return fmt.Errorf("field %s of %v has type %v, not uint32, int32, float32 or uint64", f.Name, t, f.Type)
		}
	}
	if end != t.Size() {
		return fmt.Errorf("%v has a hole at its end; fill it with a field", t)
	}
	return nil
}

// specWords returns the specialization constants in the order of the fields.
func specWords(spec any) ([]uint32, error) {
	v := reflect.ValueOf(spec)
	if spec == nil || v.Kind() == reflect.Struct {
		return appendSpecWords(nil, v)
	}
	return nil, fmt.Errorf("specialization is a %T, not a struct", spec)
}

func appendSpecWords(words []uint32, v reflect.Value) (_ []uint32, err error) {
	if !v.IsValid() {
		return nil, nil
	}
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint32:
			words = append(words, uint32(f.Uint()))
		case reflect.Int32:
			words = append(words, uint32(int32(f.Int())))
		case reflect.Float32:
			words = append(words, math.Float32bits(float32(f.Float())))
		case reflect.Bool:
			words = append(words, onOff(f.Bool()))
		case reflect.Struct:
			if words, err = appendSpecWords(words, f); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("field %s of %v has type %v, not uint32, int32, float32 or bool", v.Type().Field(i).Name, v.Type(), f.Type())
		}
	}
	return words, nil
}

// Name returns the debug name.
func (k *Kernel[P]) Name() string { return k.name }

// Stats returns the statistics of the pipeline.
func (k *Kernel[P]) Stats() KernelStats { return k.stats }

// Bindings returns the number of tensors that Dispatch takes.
func (k *Kernel[P]) Bindings() int { return k.bindings }

// Close destroys k once the submissions so far have finished. It is idempotent, may be called on
// nil, and does nothing to a kernel of CachedKernel.
func (k *Kernel[P]) Close() {
	if k != nil && k.kernel != nil {
		k.kernel.object.close()
	}
}

// Dispatch records one run of k over g workgroups: tensor i is bound to
// binding i. The whole buffer or slice of each tensor is bound, from its first byte:
// the kernel gets offsets and strides, in elements, from params.
//
// Errors are kept by c: a wrong number of tensors, a buffer that is closed or
// of another device, more workgroups than Caps.MaxWorkgroupCount, and a buffer
// larger than Caps.MaxStorageBufferRange (wraps ErrUnsupported).
func (k *Kernel[P]) Dispatch(c *Cmd, g Groups, params P, tensors ...Tensor) {
	if !c.begin() {
		return
	}
	defer c.leave()
	if !c.checkDispatch(k.kernel, &g, tensors) {
		return
	}
	if k.pushBytes > 0 {
		*(*P)(unsafe.Pointer(&c.args.push)) = params
	}
	c.dispatch(k.kernel)
}

// checkDispatch checks the arguments of Dispatch and puts them into c.args.
func (c *Cmd) checkDispatch(k *kernel, g *Groups, tensors []Tensor) bool {
	switch {
	case k.d != c.d:
		c.fail("kernel %q is of another device", k.name)
	case k.isClosed():
		c.fail("kernel %q is closed", k.name)
	case len(tensors) != k.bindings:
		c.fail("kernel %q takes %d tensors, got %d", k.name, k.bindings, len(tensors))
	}
	c.args.groups = [3]uint32{max(g.X, 1), max(g.Y, 1), max(g.Z, 1)}
	for i, limit := range c.d.caps.MaxWorkgroupCount {
		if c.args.groups[i] > limit {
			c.fail("kernel %q: %d workgroups in direction %c, the device allows %d: %w", k.name, c.args.groups[i], 'X'+i, limit, ErrUnsupported)
		}
	}
	for i := 0; i < len(tensors) && c.err == nil; i++ {
		b := tensors[i].Buffer
		switch {
		case b == nil || b.d == nil || b.isClosed():
			c.fail("kernel %q: tensor %d has no open buffer", k.name, i)
		case b.d != c.d:
			c.fail("kernel %q: buffer %q of tensor %d is of another device", k.name, b.name, i)
		case b.whole().raw == 0 && !c.arena.dry:
			c.fail("kernel %q: tensor %d: %w", k.name, i, b.errNoMemory())
		case tensors[i].DType.Size() == 2 && !c.d.caps.Storage16: // see without16
			c.fail("kernel %q: tensor %d is %v, but the device has no 16-bit storage: %w", k.name, i, tensors[i].DType, ErrUnsupported)
		case uint64(b.bytes) > c.d.caps.MaxStorageBufferRange:
			c.fail("kernel %q: %v of tensor %d has %d bytes, a kernel sees %d: %w", k.name, b, i, b.bytes, c.d.caps.MaxStorageBufferRange, ErrUnsupported)
		}
		if c.err != nil {
			return false
		}
		c.args.buffers[i] = b.bound()
		use := c.use(&b.whole().object)
		if access := k.access[i]; access != 0 {
			start, end := b.boundSpan(c.args.buffers[i])
			c.tracker.touch(use, start, end, access&writes != 0)
		}
	}
	if c.err == nil {
		c.use(&k.object).kernel = k
	}
	return c.err == nil
}

// dispatch records what checkDispatch prepared, or sees to it that it is recorded later.
func (c *Cmd) dispatch(k *kernel) {
	if c.later == nil {
		c.order(compute)
		c.dispatchOrdered(k)
		return
	}
	args, note := c.args, Note{}
	if c.trace != nil {
		note, c.trace.note = c.trace.note, note
	}
	c.put(compute, func() {
		if c.args = args; c.trace != nil {
			c.trace.note = note
		}
		c.dispatchOrdered(k)
	})
}

// dispatchOrdered records the dispatch of c.args, behind the barrier that it needs.
func (c *Cmd) dispatchOrdered(k *kernel) {
	if c.trace != nil && !c.trace.before(c, k) {
		return
	}
	c.dispatchUntraced(k)
	if c.trace != nil {
		c.trace.after(c)
	}
}

func (c *Cmd) dispatchUntraced(k *kernel) {
	if c.arena.dry {
		return
	}
	c.args.setLayout, c.args.layout, c.args.pipeline = k.raw.setLayout, k.raw.layout, k.raw.pipeline
	c.args.numBuffers, c.args.pushBytes = uint32(k.bindings), uint32(k.pushBytes)
	for {
		if c.pool == len(c.pools) && !c.addPool() {
			return
		}
		r := c.d.api.dispatch(c.rec.cmd, c.pools[c.pool], &c.args)
		switch {
		case r == resultOutOfPoolMemory || r == resultFragmentedPool:
			c.pool++
			continue
		case r < 0:
			c.fail("kernel %q: vkAllocateDescriptorSets: %w", k.name, r)
		}
		return
	}
}

func (c *Cmd) addPool() bool {
	if r := c.d.fault("vkCreateDescriptorPool"); r < 0 {
		c.fail("vkCreateDescriptorPool: %w", r)
		return false
	}
	pool, err := c.d.api.createPool(poolSets, poolBuffers)
	if err != nil {
		c.fail("%w", err)
		return false
	}
	c.pools = append(c.pools, pool)
	return true
}

// read asks the driver for the statistics of a pipeline. Not getting them is
// no failure.
func (s *KernelStats) read(d *Device, raw rawKernel) {
	size, list, err := d.api.statistics(raw.pipeline)
	if err != nil || len(list) == 0 {
		return
	}
	s.Available = true
	s.SubgroupSize = size
	for _, r := range list {
		s.All = append(s.All, Statistic{r.name, r.value()})
	}
	s.name()
}

// name picks the numbers with a field of their own out of s.All.
func (s *KernelStats) name() {
	s.Registers = s.find("register count", "vgprs", "registers")
	// NVIDIA (driver 580) has something else in the upper half of "Local Memory Size".
	s.SpillBytes = s.find("local memory", "spill size") & math.MaxUint32
	if scratch := s.find("scratch"); scratch > 0 { // of a subgroup, on AMD
		s.SpillBytes = scratch / uint64(max(s.SubgroupSize, 1))
	}
	s.Waves = s.find("subgroups per simd")
	s.SharedBytes = s.find("shared memory", "lds size")
	s.CodeBytes = s.find("binary size", "code size")
}

// value returns the number in whatever format it came.
func (r rawStatistic) value() float64 {
	switch r.format {
	case 0: // boolean, of which the driver writes half the union
		return float64(uint32(r.bits))
	case 1:
		return float64(int64(r.bits))
	case 3:
		return math.Float64frombits(r.bits)
	}
	return float64(r.bits)
}

// find returns the first statistic that begins with one of the names, in any
// case; drivers do not agree on them.
func (s *KernelStats) find(names ...string) uint64 {
	for _, name := range names {
		for _, st := range s.All {
			if strings.HasPrefix(strings.ToLower(st.Name), name) {
				return uint64(st.Value)
			}
		}
	}
	return 0
}
