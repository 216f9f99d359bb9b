package conformance

import (
	"fmt"
	"maps"
	"slices"
)

// SameDevice returns why a and b cannot be one record, or nil: they are of another device,
// or of another driver or version of it.
func SameDevice(a, b *Record) error {
	if a.Device != b.Device || a.Type != b.Type || a.VendorID != b.VendorID || a.DeviceID != b.DeviceID ||
		a.Driver != b.Driver || a.DriverVersion != b.DriverVersion {
		return fmt.Errorf("conformance: a record of %v and one of %v do not merge", a, b)
	}
	return nil
}

// Merge returns what is known after the run b, before which a was. Neither is changed.
//
// Module by module: other SPIR-V in b replaces that of a. Of the same SPIR-V the
// counts are the larger ones, not the sums, so that merging a run twice is merging it
// once. If it was wrong in one of them it is wrong, until runs of other commits, with nothing
// wrong and no wrong one among them, have together run at least as many cases and problems of
// every kind, those that were wrong included (Module.Since). Without "another commit" a failure that comes and
// goes could be repeated until it goes; with none at all, the mending of what is not
// SPIR-V, such as a stride or a missing barrier between two kernels, would never show.
//
// A run of random problems in b replaces that of a with the same kernel and seed, if
// it is of another commit; else the larger counts hold.
func Merge(a, b *Record) (*Record, error) {
	if err := SameDevice(a, b); err != nil {
		return nil, err
	}
	out := *b // its Vulkan version and family are the program's, and may be newer
	out.Modules, out.Random = cloneModules(b.Modules), slices.Clone(b.Random)
	for _, old := range cloneModules(a.Modules) {
		i := slices.IndexFunc(out.Modules, func(m Module) bool { return m.Name == old.Name })
		if i < 0 {
			out.Modules = append(out.Modules, old)
		} else if m := &out.Modules[i]; m.SHA256 == old.SHA256 {
			*m = mergeModule(old, *m)
		}
	}
	for _, old := range a.Random {
		i := slices.IndexFunc(out.Random, func(r Random) bool { return r.Kernel == old.Kernel && r.Seed == old.Seed })
		if i < 0 {
			out.Random = append(out.Random, old)
		} else if r := &out.Random[i]; r.Commit == old.Commit {
			r.Problems, r.Failed = max(r.Problems, old.Problems), max(r.Failed, old.Failed)
		}
	}
	out.sort()
	return &out, nil
}

// mergeModule merges runs of the same SPIR-V, b the newer one.
func mergeModule(a, b Module) Module {
	if a.Wrong == 0 || b.Wrong > 0 || a.Commit == "" || b.Commit == "" || a.Commit == b.Commit {
		since := a.Since
		if b.Wrong > 0 {
			since = b.Since
		}
		a = largest(a, b)
		a.Since = since
		return a
	}
	since := b
	if a.Since != nil {
		since = largest(*a.Since, b)
	}
	if since.covers(&a) {
		return since // its commit, too: it is the first that is right
	}
	a.Since = &since
	return a
}

// largest returns a with the larger counts of both.
func largest(a, b Module) Module {
	a.Fixed, a.Wrong = max(a.Fixed, b.Fixed), max(a.Wrong, b.Wrong)
	for kernel, n := range b.Random {
		if a.Random == nil {
			a.Random = map[string]int{}
		}
		a.Random[kernel] = max(a.Random[kernel], n)
	}
	a.conclude()
	return a
}

// covers reports whether m ran at least what old did, of every kind.
func (m *Module) covers(old *Module) bool {
	for kernel, n := range old.Random {
		if m.Random[kernel] < n {
			return false
		}
	}
	return m.Fixed >= old.Fixed && m.ran() >= old.ran()+old.Wrong
}

// cloneModules copies modules with their maps.
func cloneModules(list []Module) []Module {
	out := slices.Clone(list)
	for i := range out {
		out[i].Random = maps.Clone(out[i].Random)
		if out[i].Since != nil {
			out[i].Since = &cloneModules([]Module{*out[i].Since})[0]
		}
	}
	return out
}
