// Package compile turns GLSL kernels into SPIR-V with glslc, and keeps the
// manifest that says which sources a SPIR-V file was made from.
package compile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/spirv"
)

// A Row is one module to be compiled.
type Row struct {
	Name    string   // of the module
	File    string   // source, relative to the shader folder
	Defines []string // NAME or NAME=VALUE
	Env     string   // glslc --target-env
	Loose   bool     // leaves out that invocations reconverge maximally: a mutation
}

// flags are the compiler's arguments for a row, without the source's and the
// output's name. They are part of the hash in the manifest.
//
// -O0: spirv-opt breaks cooperative-matrix modules, and drivers optimize anyway.
func (r Row) flags() []string {
	f := []string{"-O0", "-fshader-stage=compute", "--target-env=" + r.Env}
	for _, d := range r.Defines {
		f = append(f, "-D"+d)
	}
	return f
}

// A Compiler is a glslc program.
type Compiler struct {
	Path    string
	Version string // one line
}

// New returns the compiler at path.
func New(path string) (*Compiler, error) {
	out, err := exec.Command(path, "--version").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w: %s", path, err, bytes.TrimSpace(out))
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return &Compiler{Path: path, Version: strings.Join(lines, ", ")}, nil
}

// Compile returns the SPIR-V of a row of the shader folder dir. The error is the
// compiler's own output, one problem per line as path:line: text, with paths
// relative to the parent of dir.
func (c *Compiler) Compile(dir string, r Row) ([]byte, error) {
	source, err := flatten(dir, r.File)
	if err != nil {
		return nil, err
	}
	tmp, err := os.CreateTemp("", "flashvk-*.spv")
	if err != nil {
		return nil, err
	}
	tmp.Close()
	defer os.Remove(tmp.Name())
	cmd := exec.Command(c.Path, append(r.flags(), "-o", tmp.Name(), "-")...)
	cmd.Stdin = bytes.NewReader(source)
	out, err := cmd.CombinedOutput()
	if err != nil {
		if text := bytes.TrimSpace(out); len(text) > 0 {
			return nil, fmt.Errorf("%s", text)
		}
		return nil, fmt.Errorf("%s %s: %w", c.Path, r.File, err)
	}
	code, err := os.ReadFile(tmp.Name())
	if err != nil {
		return nil, err
	}
	list, err := spirv.Decode(code)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.File, err)
	}
	if list = dropAddressNames(list); !r.Loose {
		list = reconverge(list)
	}
	return spirv.Encode(code, list), nil
}

// Find returns the path of a tool ("glslc", "spirv-val"): the environment
// variable FLASHVK_GLSLC or FLASHVK_SPIRV_VAL, else what tools/toolchain of the
// repository root says. The toolchain folder is only made if build is set.
func Find(root, tool string, build bool) (string, error) {
	variable := "FLASHVK_" + strings.ToUpper(strings.ReplaceAll(tool, "-", "_"))
	if path := os.Getenv(variable); path != "" {
		return path, nil
	}
	args := []string{"--get", variable}
	if !build {
		args = append([]string{"--no-build"}, args...)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(root, "tools", "toolchain"), args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if text := strings.TrimSpace(stderr.String()); text != "" {
			return "", errors.New(text)
		}
		return "", fmt.Errorf("%s: %w", cmd.Path, err)
	}
	path := strings.TrimSpace(string(out))
	if path == "" {
		return "", fmt.Errorf("no %s: set %s, or run tools/toolchain", tool, variable)
	}
	return path, nil
}

// dropAddressNames removes the debug names that hold an address of the
// compiler's memory: glslang writes one into the mangled name of a function
// whose argument has an array sized by a specialization constant
// ("product_nt(struct-TileNT-f1[s0x5555573]1;"), and so makes other bytes in
// every run. Nothing reads the names of functions.
func dropAddressNames(list []spirv.Instruction) []spirv.Instruction {
	return slices.DeleteFunc(list, func(in spirv.Instruction) bool {
		return in.Op == spirv.OpName && strings.Contains(spirv.Text(in.Args[1:]), "[s0x")
	})
}

// reconverge makes a module whose invocations work together in subgroups, by operations
// of subgroups or on matrices, reconverge maximally: after a branch that invocations
// decide each for itself, they are together again where the source says so. Without it
// Vulkan leaves open which of them meet in an operation behind such a branch. It is done
// here and not in the sources so that no kernel can forget it. vk.NewKernel takes it out again for devices
// that lack VK_KHR_shader_maximal_reconvergence.
func reconverge(list []spirv.Instruction) []spirv.Instruction {
	const firstGroup, lastGroup, cooperativeMatrix = 61, 68, 6022 // capabilities; the groups are subgroup operations
	extensions, modes, together := 0, 0, false
	var function uint32
	for i, in := range list {
		switch in.Op {
		case spirv.OpCapability:
			c := in.Args[0]
			together = together || firstGroup <= c && c <= lastGroup || c == cooperativeMatrix
			extensions = i + 1
		case spirv.OpEntryPoint:
			function, modes = in.Args[1], i+1
		}
	}
	if !together || modes == 0 {
		return list
	}
	return slices.Concat(list[:extensions],
		[]spirv.Instruction{{Op: spirv.OpExtension, Args: spirv.Literal(spirv.Reconvergence)}}, list[extensions:modes],
		[]spirv.Instruction{{Op: spirv.OpExecutionMode, Args: []uint32{function, spirv.ModeMaximallyReconverges}}}, list[modes:])
}
