// Package shaders holds the GLSL compute kernels and their SPIR-V.
//
//	NAME.comp            one kernel; lib/*.glsl is what kernels include
//	variants.go          the table of what is compiled: kernel, element type, macros, target
//	spv/NAME[.TYPE].spv  the SPIR-V of one row, generated and committed, embedded here
//	spv/manifest.txt     the hashes that prove that spv/ is current
//
// The SPIR-V is committed so that importing the library needs no shader
// compiler. `make shaders` (go test ./shaders -run TestCurrent -generate) writes
// it, and the same test without the flag checks it.
package shaders

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"sync"
)

// A Module is one compiled kernel.
type Module struct {
	Name  string // as Variant.Name
	SPIRV []byte // shared by all callers: do not change
}

//go:embed spv
var spv embed.FS

// key names a module without building its name, so that a lookup does not allocate.
type key struct{ kernel, typ string }

// modules reads every embedded module, once.
var modules = sync.OnceValues(func() (map[key]Module, error) {
	m := map[key]Module{}
	paths, err := fs.Glob(spv, "spv/*.spv")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		code, err := spv.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("shaders: %w", err)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(path, "spv/"), ".spv")
		kernel, typ, _ := strings.Cut(name, ".")
		m[key{kernel, typ}] = Module{Name: name, SPIRV: code}
	}
	return m, nil
})

// Get returns the module of a kernel for an element type: "f16", "bf16", "f32",
// or "" for a kernel that has only one. It is cheap enough to call each time a
// kernel is needed.
func Get(kernel, typ string) (Module, error) {
	all, err := modules()
	if err != nil {
		return Module{}, err
	}
	m, ok := all[key{kernel, typ}]
	if !ok {
		return Module{}, fmt.Errorf("shaders: no module %s", Variant{Kernel: kernel, Type: typ}.Name())
	}
	return m, nil
}
