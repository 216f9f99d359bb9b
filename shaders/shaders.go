// Package shaders holds the GLSL compute kernels and their SPIR-V.
//
//	FILE.comp              one kernel, and what macros make of it; lib/*.glsl is what kernels include
//	variants.go            the table of what is compiled: kernel, file, element type, macros, target
//	spv/KERNEL[.TYPE].spv  the SPIR-V of one row, generated and committed, embedded here
//	spv/manifest.txt       the hashes that prove that spv/ is current
//
// The SPIR-V is committed so that importing the library needs no shader
// compiler. `make shaders` (go test ./shaders -run TestCurrent -generate) writes
// it, and the same test without the flag checks it.
package shaders

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/flashvk/flashvk/internal/spirv"
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

// replaced holds what Use took, and whether Get was called before.
var replaced struct {
	sync.Mutex
	dir  fs.FS
	read bool
}

// Use takes the modules NAME.spv of dir in place of the built-in modules of the same names. Use
// is for programs that try modules that are not committed, as flashvk selftest --modules does.
// The call comes before every Get.
func Use(dir fs.FS) error {
	replaced.Lock()
	defer replaced.Unlock()
	if replaced.read {
		return errors.New("shaders: Use comes after Get")
	}
	paths, err := fs.Glob(dir, "*.spv")
	if err != nil {
		return fmt.Errorf("shaders: %w", err)
	}
	if len(paths) == 0 {
		return errors.New("shaders: the folder of modules holds no .spv")
	}
	for _, path := range paths {
		if _, err := fs.Stat(spv, "spv/"+path); err != nil {
			return fmt.Errorf("shaders: %s: no module of that name is built in", path)
		}
	}
	replaced.dir = dir
	return nil
}

// modules reads every module, once.
var modules = sync.OnceValues(func() (map[key]Module, error) {
	replaced.Lock()
	defer replaced.Unlock()
	replaced.read = true
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
		file := strings.TrimPrefix(path, "spv/")
		if replaced.dir != nil {
			switch other, err := fs.ReadFile(replaced.dir, file); {
			case err == nil:
				code = other
			case !errors.Is(err, fs.ErrNotExist):
				return nil, fmt.Errorf("shaders: %w", err)
			}
		}
		name := strings.TrimSuffix(file, ".spv")
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

// Hash returns a short hash of the SPIR-V of kernels, names aside: of their modules for an element
// type, and of their modules that have one type only. A measurement holds for kernels of the same hash.
func Hash(typ string, kernels ...string) string {
	name := typ + " " + strings.Join(kernels, " ")
	if known, ok := hashes.Load(name); ok {
		return known.(string)
	}
	h := sha256.New()
	for _, v := range variants {
		if !slices.Contains(kernels, v.Kernel) || v.Type != "" && v.Type != typ {
			continue
		}
		if m, err := Get(v.Kernel, v.Type); err == nil {
			fmt.Fprintf(h, "%s %s\n", m.Name, spirv.Hash(m.SPIRV))
		}
	}
	hash := fmt.Sprintf("%x", h.Sum(nil)[:8])
	hashes.Store(name, hash)
	return hash
}

// hashes has what Hash returned.
var hashes sync.Map
